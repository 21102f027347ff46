"""Preflight checks by the bundled trainer, on this machine, before any host exists."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from xpk.jobs.create.notice import Notice, Report, ignore
from xpk.model.errors import MissingToolError, UsageError, XpkError
from xpk.model.specs import WorkloadSpec
from xpk.proc import LocalRunner, Result, Runner
from xpk.render.resources import workloads_dir

WARNING = "warning: "  # begins the trainer's warnings on stderr


def check_trainer(
    runner: Runner,
    spec: WorkloadSpec,
    trainer_args: Sequence[str],
    *,
    see_data: bool,
    folder: Path | None = None,
    report: Report = ignore,
) -> None:
    """Check the settings of a run with the bundled trainer. Raises UsageError with all problems.

    `see_data`: whether paths mean the same here as on the hosts, so that the data set can be read. `folder`: a
    copy of the one that hosts start in.
    """
    shape = spec.shape
    arguments = ["--num-slices", str(spec.num_slices)]
    arguments += ["--min-slices", str(spec.min_slices)] if spec.min_slices else []
    arguments += ["--hosts-per-slice", str(shape.hosts), "--chips-per-host", str(shape.chips_per_host)]
    arguments += [*([] if see_data else ["--no-data"]), "--", *trainer_args]
    result = ask_trainer(runner, "check", arguments, folder)
    report_warnings(result, report)
    if result.exit_code == 0:
        return
    _raise_problems(result, spec.name)
    if result.exit_code in (2, 42):
        reason = result.last_line.removeprefix("error: ").partition(". See python -m trainer")[0]
        message = f"invalid trainer arguments: {reason}"
        raise UsageError(message, hint="`xpk docs trainer-settings` lists every setting")
    raise XpkError(
        f"the trainer cannot check its configuration: {result.last_line}",
        hint=f"`PYTHONPATH={workloads_dir()} python -m trainer check` shows more",
    )


def check_settings(runner: Runner, name: str, trainer_args: Sequence[str], script_dir: Path | None = None) -> None:
    """Check the settings of the workload `name`, whose size is unknown. Raises UsageError with all problems."""
    unknown_size = ("--num-slices", "1", "--hosts-per-slice", "1", "--chips-per-host", "1", "--settings-only")
    with start_folder(script_dir if script_dir and script_dir.is_dir() else None) as folder:
        _raise_problems(ask_trainer(runner, "check", [*unknown_size, "--", *trainer_args], folder), name)


@contextlib.contextmanager
def start_folder(script_dir: Path | None) -> Iterator[Path]:
    """Return the folder that hosts start in a copy of: an empty one without `script_dir`."""
    if script_dir:
        yield script_dir
        return
    with tempfile.TemporaryDirectory(prefix="xpk-empty-") as empty:
        yield Path(empty)


def _raise_problems(result: Result, name: str) -> None:
    """Raise UsageError for the problems that the trainer has printed, if there are any."""
    lines = [
        f"{problem['message']} ({problem['hint']})" if problem.get("hint") else problem["message"]
        for problem in _problems(result.stdout)
    ]
    if lines:
        raise UsageError(
            f"invalid trainer configuration for workload '{name}'",
            problems=lines,
            hint="`xpk docs trainer-settings` lists every setting",
        )


def ask_trainer(runner: Runner, command: str, arguments: Sequence[str], folder: Path | None = None) -> Result:
    """Run one of the bundled trainer's quick commands in `folder`, as hosts would: a trainer of its own goes first."""
    argv = (sys.executable, "-m", "trainer", command, *arguments)
    return runner.run(argv, env={**os.environ, "PYTHONPATH": str(workloads_dir())}, folder=folder)


def report_warnings(result: Result, report: Report) -> None:
    """Report the warnings of a trainer's command, such as former names of settings."""
    for line in result.stderr.splitlines():
        if line.startswith(WARNING):
            report(Notice(line.removeprefix(WARNING), is_warning=True))


class InProcessRunner(LocalRunner):
    """Runner of the bundled trainer in this process, which saves the start of another one.

    For a process without other threads or modules of the name `trainer`, such as the command line's: a run changes
    the working folder, stdout, stderr and the import path for a moment. The trainer's quick commands import nothing
    heavy. A folder with a trainer of its own, which is the user's code, gets its own process.
    """

    def run(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, folder: Path | None = None) -> Result:
        """See `Runner.run`."""
        if folder and any((folder / name).exists() for name in ("trainer/__init__.py", "trainer.py")):
            return super().run(argv, env=env, folder=folder)
        code, out, err = 0, io.StringIO(), io.StringIO()
        with (
            _importable(workloads_dir()),
            contextlib.chdir(folder) if folder else contextlib.nullcontext(),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                importlib.import_module("trainer.main").main(argv[3:])
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
            except Exception as error:  # as a separate process would end; the tool continues
                code = 1
                print(f"{type(error).__name__}: {error}", file=err)
        return Result(tuple(argv), code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Put a folder first on the import path."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def attach_trainer(runner: Runner, command: str, arguments: Sequence[str]) -> int:
    """Run one of the bundled trainer's commands on this process's stdout and stderr; return its exit code."""
    argv = (sys.executable, "-m", "trainer", command, *arguments)
    return runner.attach(argv, env={**os.environ, "PYTHONPATH": str(workloads_dir())})


def check_trainer_installed() -> None:
    """Raise MissingToolError unless hosts of this machine can run the bundled trainer."""
    missing = [package for package in ("jax", "optax", "orbax.checkpoint") if not _is_installed(package)]
    if missing:
        raise MissingToolError(
            f"the bundled trainer requires {', '.join(missing)} on this machine",
            hint="pip install 'xpk-multislice[trainer]', or pass a --command of your own",
        )


def check_ray_installed() -> None:
    """Raise MissingToolError unless hosts of this machine can run Ray."""
    if not _is_installed("ray"):
        raise MissingToolError(
            "--launcher ray requires Ray on this machine: hosts of a local cluster are its processes",
            hint="pip install 'xpk-multislice[ray]'",
        )


def _is_installed(package: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # the parent of a dotted name is missing
        return False


def _problems(stdout: str) -> list[dict[str, str]]:
    try:
        problems: list[dict[str, str]] = json.loads(stdout)["problems"]
    except (ValueError, KeyError, TypeError):
        return []
    return problems
