"""The command line in its own folder with invariants that hold after every command, and the count of inputs."""

from __future__ import annotations

import io
import os
import shutil
import sqlite3
import time
from collections.abc import Generator, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tests.trainer.conftest  # noqa: F401  # emulates chips, before tests import JAX
from tests.fuzz.counts import PLANNED, TRIED
from xpk.cli.main import INTERRUPTED, main
from xpk.local.cluster import delete_cluster
from xpk.model import errors
from xpk.model.terminal import printable

CODES = {0, 125, INTERRUPTED} | {
    item.exit_code for item in vars(errors).values() if isinstance(item, type) and issubclass(item, errors.XpkError)
}
PROGRAMS = ("bash", "true")  # programs that commands find: no docker, kubectl or gcloud
COUNT = "hostile inputs"  # property of a test's report
# Exit codes without an error in this process: results of commands, and errors that the trainer prints.
ANSWERS = {("workload diff", 1), ("cluster health", 1), ("config get", 3), ("data prepare", 2)}


@dataclass
class CommandLine:
    """`xpk` in this process, on a cluster `fz` with a workload `w0`."""

    folder: Path

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Return the exit code, stdout and stderr of a command."""
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        with redirect_stdout(out), redirect_stderr(err):
            code = main(arguments)
        out.seek(0)
        err.seek(0)
        return code, out.read(), err.read()

    def check(self, *arguments: str) -> str:
        """Run a command; check its code, errors and time, and that a failure changes nothing. Return stderr."""
        return self.outcome(*arguments)[2]

    def outcome(self, *arguments: str) -> tuple[int, str, str]:
        """Check a command as `check`; return its exit code, stdout and stderr."""
        before, began = self.everything(), time.process_time()
        code, out, err = self.run(*arguments)
        assert time.process_time() - began < 10
        assert code in CODES and "internal error" not in err and "Traceback" not in err, err[-2000:]
        assert len(err) < 20_000 and printable(err) == err, "escaped and shortened"
        if code and (" ".join(arguments[:2]), code) not in ANSWERS:
            lines = err.splitlines()
            assert any(line.startswith("error: ") for line in lines) and lines[-1].startswith("  hint: "), err[-2000:]
        if code:
            assert self.everything() == before, "nothing is partially changed"
        elif "--dry-run" in arguments:  # which may write its plan to a file that the user names
            assert self._objects() == before[0]
        shutil.rmtree(self.folder / "config", ignore_errors=True)
        return code, out, err

    def everything(self) -> tuple[set[str], set[Path]]:
        """Return the names of all clusters and objects, and all files outside clusters."""
        return self._objects(), self._files()

    def revision(self) -> str:
        """Return the newest revision of the objects of `fz`."""
        (newest,) = self._query("select max(revision) from objects where kind not like 'Usage%'")
        return newest

    def _query(self, text: str) -> set[str]:
        store = sqlite3.connect(f"file:{self.folder}/state/clusters/fz/store.db?mode=ro", uri=True)
        try:
            return {str(row) for row in store.execute(text)}
        finally:
            store.close()

    def _objects(self) -> set[str]:
        """Return the names of all clusters, and of all objects of `fz`."""
        objects = self._query(
            "select kind, namespace, name from objects where kind not like 'Usage%'"
        )  # recorded by itself
        return objects | {item.name for item in (self.folder / "state" / "clusters").iterdir()}

    def _files(self) -> set[Path]:
        """Return all files outside clusters."""
        return {item for place in (self.folder / "work", self.folder / "config") for item in place.rglob("*")}


@pytest.fixture(scope="module")
def command_line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """Return the command line, with a folder of invalid files as the working directory."""
    folder = tmp_path_factory.mktemp("fuzz")
    for name in ("bin", "work", "state"):
        (folder / name).mkdir()
    for program in PROGRAMS:
        (folder / "bin" / program).symlink_to(shutil.which(program) or f"/bin/{program}")
    odd_files(folder / "work")
    with pytest.MonkeyPatch.context() as patch:
        for name in [item for item in os.environ if item.startswith("XPK_")]:
            patch.delenv(name)
        for name, value in {"XPK_STATE_DIR": "state", "XPK_CONFIG_DIR": "config", "HOME": "work"}.items():
            patch.setenv(name, str(folder / value))
        patch.setenv(
            "GOOGLE_APPLICATION_CREDENTIALS", str(folder / "none")
        )  # no search for other credentials in the network
        patch.setenv("KUBECONFIG", str(folder / "none"))
        patch.setenv("PATH", str(folder / "bin"))
        patch.setattr("sys.stdin", io.StringIO())
        patch.chdir(folder / "work")
        made = CommandLine(folder)
        for line in ("cluster create fz --tpu-type v4-8", "workload create w0 --cluster fz --command true --wait"):
            code, _, err = made.run(*line.split())
            assert code == 0, err
        yield made
        for place in (folder / "state" / "clusters").iterdir():
            delete_cluster(place, force=True)


def odd_files(folder: Path) -> None:
    """Create invalid files."""
    os.mkfifo(folder / "fifo")
    (folder / "device").symlink_to("/dev/zero")
    (folder / "loop").symlink_to("loop")
    (folder / "folder").mkdir()
    (folder / "binary").write_bytes(b"\xff\xfe\x00")
    (folder / "deep").write_bytes(b"[" * 20_000)
    with (folder / "huge").open("wb") as file:
        file.truncate(10 << 30)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Accept long inputs: Hypothesis warns of those that are too long to be printed."""
    item.add_marker(pytest.mark.filterwarnings("ignore:Generating overly large repr"))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Check that a test has tried as many inputs as planned, and report them."""
    result = yield
    key = f"{pyfuncitem.function.__module__}.{pyfuncitem.originalname}"
    if key in PLANNED:
        pyfuncitem.user_properties.append((COUNT, TRIED[key]))
        assert TRIED[key] >= PLANNED[key], f"{TRIED[key]} inputs instead of {PLANNED[key]}"
    return result


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the number of inputs that were tried."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)]
    tried = sum(value for report in reports if report.when == "call" for key, value in report.user_properties
                if key == COUNT)  # fmt: skip
    terminalreporter.write_line(f"{tried:,} hostile inputs tried")
