"""Imports between folders: no cycles in any package, including imports inside functions and for types."""

from __future__ import annotations

import ast
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "trainer": ROOT / "workloads" / "trainer",
    "xpk_shared": ROOT / "workloads" / "xpk_shared",
    "trainer.checkpoint": ROOT / "workloads" / "trainer" / "checkpoint",
    "xpk": ROOT / "xpk",
    **{f"xpk.{path.name}": path for path in sorted((ROOT / "xpk").iterdir()) if (path / "__init__.py").is_file()},
    "xpk.capacity.gke": ROOT / "xpk" / "capacity" / "gke",
}
LAZY = {  # imports by name, which linters do not see
    "workloads/trainer/imports.py": "modules of a training run, for an interpreter that stands by",
    "workloads/xpk_shared/supervisor/idle.py": "modules that a user names, and the user's program",
    "xpk/__init__.py": "the Python API, when a name of it is first used",
    "xpk/capacity/gke/cloud/client.py": "Google's client libraries",
    "xpk/capacity/provider.py": "the provider that is asked for",
    "xpk/cli/google_xpk.py": "commands of a group, when they are used",
    "xpk/cli/main.py": "its own commands",
    "xpk/jobs/create/trainer_preflight.py": "the one place where the tool asks the trainer, by its command line",
}
IMPORTERS = {"import_module", "__import__", "exec_module", "spec_from_file_location", "run_module", "run_path"}


def modules(package: str, folder: Path) -> dict[str, Path]:
    """Return the modules of a package by their dotted names."""
    names = {
        ".".join((package, *path.relative_to(folder).with_suffix("").parts)): path for path in folder.rglob("*.py")
    }
    return {name.removesuffix(".__init__"): path for name, path in names.items()}


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """Return the modules that a file imports at any level."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {full if (full := f"{node.module}.{alias.name}") in known else node.module for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & known.keys()


@pytest.mark.parametrize("package", PACKAGES)
def test_folders_do_not_import_each_other_in_cycles(package: str) -> None:
    known = modules(package, PACKAGES[package])

    def part(module: str) -> str:
        return module.removeprefix(package).lstrip(".").partition(".")[0]

    arrows: dict[str, set[str]] = defaultdict(set)
    for module, path in known.items():
        arrows[part(module)] |= {part(other) for other in imports(path, known)} - {part(module), ""}
    arrows.pop("", None)  # the package itself may import its modules
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def names(path: Path) -> set[str]:
    """Return the names and attributes that a file uses."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return attributes | {node.id for node in nodes if isinstance(node, ast.Name)}


def test_imports_by_name_are_declared() -> None:
    files = [path for folder in ("xpk", "workloads") for path in (ROOT / folder).rglob("*.py")]
    assert {path.relative_to(ROOT).as_posix() for path in files if names(path) & IMPORTERS} == set(LAZY)
