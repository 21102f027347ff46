"""The command `preflight` of the trainer, alone or before another program."""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from trainer import config as configs
from trainer.errors import FatalError, Problem
from trainer.hosts.bootstrap import read_host
from trainer.hosts.job import end
from trainer.preflight.checks import Check
from trainer.preflight.program import Settings, run
from xpk_shared.supervisor.names import PASSED

_FLOORS = {Check.ICI: "PREFLIGHT_MIN_ICI_GBPS", Check.DCN: "PREFLIGHT_MIN_DCN_GBPS"}
_TRAINER = ("-m", "trainer", "train")


def add_command(commands: Any) -> None:
    """Add the command to the trainer's parser."""
    parser = commands.add_parser("preflight", help="check this host and its chips together with the job's other hosts")
    parser.add_argument("--disk", action="append", default=[], metavar="DIR", help="folder to check; repeatable")
    for check in _FLOORS:
        parser.add_argument(
            f"--min-{check}-gbps",
            type=float,
            metavar="GB/S",
            help=f"minimum bandwidth of {check} between two hosts [default: ${_FLOORS[check]}, or none]",
        )
    parser.add_argument(
        "--timeout", type=float, default=300.0, metavar="SECONDS", help="time limit of all checks [default: 300]"
    )
    parser.add_argument(
        "program", nargs="*", metavar="-- PROGRAM", help="program to run on this host once all hosts have passed"
    )
    parser.set_defaults(command=_preflight)


def _preflight(options: argparse.Namespace) -> int:
    floors = {check: _floor(options, check) for check in _FLOORS}
    if not 0 < options.timeout < float("inf"):
        raise FatalError(Problem(f"--timeout must be more than 0 seconds, got {options.timeout:g}", "Use 300"))
    if not options.program:
        settings = Settings(folders=options.disk, min_gbps=floors, timeout_seconds=options.timeout)
        host = read_host(os.environ)
        if host.is_elastic:
            for name in [name for name in os.environ if name.startswith("MEGASCALE_")]:
                del os.environ[name]  # libtpu would connect this slice to the others
        end(run(host, settings))
    code = _check(options, floors)
    if code == 0:
        os.environ.pop(PASSED, None)
        try:
            os.execvp(options.program[0], options.program)  # noqa: S606  # the user's own command
        except OSError as error:
            problem = Problem(f"cannot run {options.program[0]!r}: {error.strerror}", "Check the command")
            raise FatalError(problem) from error
    return code


def _floor(options: argparse.Namespace, check: Check) -> float:
    value = getattr(options, f"min_{check}_gbps")
    text = os.environ.get(_FLOORS[check]) or "0" if value is None else value
    try:
        floor = float(text)
    except ValueError:
        floor = -1.0
    if not 0 <= floor < float("inf"):
        what = f"environment variable {_FLOORS[check]}" if value is None else f"--min-{check}-gbps"
        raise FatalError(Problem(f"{what} must be a number of at least 0, got {text!r}", "Use a number such as 2.5"))
    return floor


def _check(options: argparse.Namespace, floors: dict[Check, float]) -> int:
    """Run the checks in a process of their own, which releases the chips when it ends; return its exit code."""
    folders = [*options.disk, *_local_tier(options.program)]
    arguments = [word for folder in folders for word in ("--disk", folder)]
    arguments += [word for check, floor in floors.items() for word in (f"--min-{check}-gbps", str(floor))]
    argv = [sys.executable, *(["-P"] if sys.flags.safe_path else []), "-m", "trainer", "preflight", *arguments]
    child = subprocess.Popen([*argv, "--timeout", str(options.timeout)])
    # The exit code is the child's, also if all commands are stopped just after it has failed.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: child.send_signal(number))
    code = child.wait()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    return code if code >= 0 else 128 - code


def _local_tier(program: Sequence[str]) -> list[str]:
    """Return the folder of the trainer's local checkpoints, if the program is the trainer and has one."""
    if tuple(program[1:4]) != _TRAINER:
        return []
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--config", default="tiny")
    parser.add_argument("--set", action="append", default=[])
    settings, _ = parser.parse_known_args(program[4:])
    with contextlib.suppress(FatalError):  # the trainer reports it
        path = configs.load(settings.config, settings.set, warn=lambda text: None).checkpoint.local_path
        return [path] if path else []
    return []
