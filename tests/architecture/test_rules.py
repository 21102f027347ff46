"""Rules of CONTRIBUTING.md that a program can check."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from xpk.cli.main import COMMANDS
from xpk.model import errors

ROOT = Path(__file__).resolve().parents[2]
OURS = [*sorted((ROOT / "xpk").rglob("*.py")), *sorted((ROOT / "workloads").rglob("*.py"))]
PACKAGES = {"xpk", "trainer", "xpk_ray", "xpk_shared"}
MAX_MODULE_LINES, MAX_FUNCTION_LINES = 400, 50
HEAVY = ("kubernetes", "google", "ray", "jax", "rich", "yaml", "jinja2", "sqlite3")


# Modules below the command line that read the environment, with the reason; provider options are not allowed to.
READERS = {
    "xpk/api/credentials.py": "environment of a kubeconfig's program",
    "xpk/api/kubefile.py": "KUBECONFIG",
    "xpk/capacity/docker.py": "environment of kind and docker",
    "xpk/capacity/gke/cloud/configuration.py": "gcloud's folder, and the emulator",
    "xpk/capacity/state.py": "XPK_STATE_DIR",
    "xpk/capacity/user_config.py": "XPK_CONFIG_DIR, and variables before preferences",
}


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("file", OURS, ids=lambda file: str(file.relative_to(ROOT)))
def test_modules_and_functions_are_small_and_public_ones_have_docstrings(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert len(text.splitlines()) <= MAX_MODULE_LINES
    assert file.stem not in ("utils", "common", "helpers", "misc")
    for function in functions(tree):
        body = function.body[1:] if ast.get_docstring(function) else function.body
        length = (function.end_lineno or 0) - body[0].lineno + 1 if body else 0
        assert length <= MAX_FUNCTION_LINES, f"{function.name} has {length} lines"
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{node.name} has no docstring"


def test_the_generator_that_all_threads_share_is_not_used() -> None:
    """A retry on another thread must not change what a seeded program, or a test, draws from `random`."""
    for file in (*OURS, *(ROOT / "tools").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if "\nimport random\n" in text:
            assert re.findall(r"(?<![\w.])random\.(?!Random\b)\w+", text) == [], file


def test_options_of_providers_are_not_read_from_the_environment() -> None:
    files = [*(ROOT / "xpk" / "api").rglob("*.py"), *(ROOT / "xpk" / "capacity").rglob("*.py")]
    reading = {str(file.relative_to(ROOT)) for file in files if "os.environ" in file.read_text(encoding="utf-8")}
    assert reading == set(READERS)


def test_the_program_ends_in_one_place() -> None:
    for file in (ROOT / "xpk").rglob("*.py"):
        if file.name not in (
            "main.py",
            "__main__.py",
            "shim.py",
            "daemon.py",
        ):  # the last two are separate programs
            assert "sys.exit" not in file.read_text(encoding="utf-8"), file


def test_errors_have_distinct_exit_codes_except_1_and_are_in_the_tree() -> None:
    kinds = [kind for kind in errors.XpkError.__subclasses__() if kind.__module__ == errors.__name__]
    codes = [kind.exit_code for kind in kinds if kind.exit_code != errors.XpkError.exit_code]
    assert len(set(codes)) == len(codes)
    for kind in kinds:
        assert f"{kind.__name__} ({kind.exit_code})" in (errors.__doc__ or "")


def test_help_imports_nothing_heavy() -> None:
    program = "import sys; from xpk.cli.main import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {module.partition(".")[0] for module in done.stderr.split()}
    assert not loaded & set(HEAVY)
    assert all(command in done.stdout for command in COMMANDS)


PATCHED = {
    # The provider that `cluster adapt` creates would need a real API server; e2e/test_gke_emulator.py has one.
    "tests/capacity/gke/test_upstream.py": ["xpk.capacity.gke.api_access.KnownClusters"],
    # Faults of machines in hosts that are separate processes running the trainer's `main`: passing them in would need
    # parameters through the whole trainer that only tests use.
    "tests/trainer/planted.py": [
        "trainer.data.batches",
        "trainer.checkpoint.manager.Checkpoints",
        "trainer.checkpoint.manager.Checkpoints",
        "trainer.data.reader.Reader",
        "trainer.checkpoint.local.LocalTier",
        "trainer.train",
        "trainer.elastic.train",
        "xpk_shared.links.connection.Link",
        "xpk_shared.links.connection.Link",
    ],
}


def imported(tree: ast.AST) -> dict[str, str]:
    """Return the names that a file imports, with their modules."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names}
    return names


def made(tree: ast.AST, names: dict[str, str]) -> dict[str, str]:
    """Return the variables that hold the result of a call of an imported name, with that name."""
    return {
        target.id: origin
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and (origin := names.get(root(node.value)))
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def root(node: ast.AST) -> str:
    """Return the first name of an expression, or "" if it does not begin with a name."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def called(function: ast.Attribute | ast.Name) -> str:
    """Return the last name of a function that is called."""
    return function.attr if isinstance(function, ast.Attribute) else function.id


def replaced(tree: ast.AST) -> list[str]:
    """Return the parts of our packages that a test replaces with `setattr` or `patch`."""
    names = imported(tree)
    names = made(tree, names) | names
    targets = [
        node.args[0].value if isinstance(node.args[0], ast.Constant) else names.get(root(node.args[0]), "")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Attribute | ast.Name)
        if called(node.func) in ("setattr", "object") or "mock" in root(node.func)
    ]
    return [target for target in map(str, targets) if target.partition(".")[0] in PACKAGES]


def test_doubles_are_passed_in_not_patched() -> None:
    files = [path for folder in ("tests", "e2e") for path in (ROOT / folder).rglob("*.py")]
    outcome = {path.relative_to(ROOT).as_posix(): replaced(ast.parse(path.read_text("utf-8"))) for path in files}
    assert {name: targets for name, targets in outcome.items() if targets} == PATCHED


def test_tests_import_only_modules_without_tests() -> None:
    files = [path for folder in ("tests", "e2e") for path in (ROOT / folder).rglob("*.py")]
    origins = {path.relative_to(ROOT).as_posix(): imported(ast.parse(path.read_text("utf-8"))) for path in files}
    wrong = [f"{file}: {name}" for file, names in origins.items() for name in names.values() if ".test_" in name]
    assert not wrong


def waits(tree: ast.AST) -> list[int]:
    """Return the lines of the loops that only wait for a condition: they sleep, and otherwise at most raise."""
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.While)]
    waiting = [loop for loop in loops if ast.unparse(loop.body[-1]).startswith("time.sleep(")]
    return [
        loop.lineno
        for loop in waiting
        if "monotonic" not in ast.unparse(loop.test) and all(map(_only_raises, loop.body[:-1]))
    ]


def _only_raises(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assert) or (isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise))


def test_tests_wait_with_one_helper() -> None:
    files = [path for folder in ("tests", "e2e") for path in (ROOT / folder).rglob("*.py")]
    waits_by_file = {path.relative_to(ROOT).as_posix(): waits(ast.parse(path.read_text("utf-8"))) for path in files}
    assert {file for file, lines in waits_by_file.items() if lines} == {"tests/waiting.py"}
    assert waits(ast.parse("while x():\n    assert y\n    time.sleep(1)")) == [1]


@pytest.mark.parametrize(
    "line",
    [
        'patch.setattr("xpk.jobs.logs._PAUSE", 1)',
        "patch.setattr(logs, '_PAUSE', 1)",
        "patch.setattr(logs.time, 'sleep', print)",
        "reader = logs.Reader(); patch.setattr(reader, 'read', print)",
        "mock.patch('xpk.jobs.logs.read_logs')",
        "setattr(logs, '_PAUSE', 1)",
    ],
)
def test_a_patched_double_is_detected(line: str) -> None:
    assert replaced(ast.parse(f"from xpk.jobs import logs\n{line}"))
