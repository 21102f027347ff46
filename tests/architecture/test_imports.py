"""Imports between folders: no cycle in any package, also through imports inside functions and of types only."""

from __future__ import annotations

import ast
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "trainer": ROOT / "workloads" / "trainer",
    "xpk": ROOT / "xpk",
    **{f"xpk.{path.name}": path for path in sorted((ROOT / "xpk").iterdir()) if (path / "__init__.py").is_file()},
    "xpk.capacity.gke": ROOT / "xpk" / "capacity" / "gke",
}
LAZY = {  # imports by name, which the linters do not see
    "xpk/__init__.py": "the Python API, when a name of it is first used",
    "xpk/cli/main.py": "its own commands",
    "xpk/capacity/gke/client.py": "Google's client libraries",
    "xpk/jobs/create/trainer_preflight.py": "the one place where the tool asks the trainer, by its command line",
}


def modules(package: str, folder: Path) -> dict[str, Path]:
    """Return the modules of a package by their dotted names."""
    names = {
        ".".join((package, *path.relative_to(folder).with_suffix("").parts)): path for path in folder.rglob("*.py")
    }
    return {name.removesuffix(".__init__"): path for name, path in names.items()}


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """Return the modules that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {full if (full := f"{node.module}.{alias.name}") in known else node.module for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names & known.keys()


@pytest.mark.parametrize("package", PACKAGES)
def test_no_folder_imports_one_that_imports_it(package: str) -> None:
    known = modules(package, PACKAGES[package])

    def part(module: str) -> str:
        return module.removeprefix(package).lstrip(".").partition(".")[0]

    arrows: dict[str, set[str]] = defaultdict(set)
    for module, path in known.items():
        arrows[part(module)] |= {part(other) for other in imports(path, known)} - {part(module), ""}
    arrows.pop("", None)  # the package itself imports what it offers
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_imports_by_name_are_declared() -> None:
    users = [path for path in (ROOT / "xpk").rglob("*.py") if "import_module(" in path.read_text(encoding="utf-8")]
    assert {path.relative_to(ROOT).as_posix() for path in users} == set(LAZY)
