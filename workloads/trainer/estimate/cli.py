"""The commands that tell what a run takes before there is anything to run it on: estimate and compile."""

import argparse
import json
from pathlib import Path
from typing import Any

from trainer import config as configs
from trainer.config import Config
from trainer.errors import ExitCode, FatalError, Problem, reason
from trainer.estimate.accelerators import Slice, find_slice
from trainer.parallel import layout


def add_commands(commands: Any, parents: list[argparse.ArgumentParser]) -> None:
    """Add `estimate` and `compile` to the parser's commands."""
    for name, command, about in (
        ("estimate", _estimate, "estimate memory, arithmetic, traffic and time of a step, in closed form"),
        ("compile", _compile, "compile the step for TPUs that need not be there; takes minutes"),
    ):
        parser = commands.add_parser(name, parents=parents, help=about, description=about)
        parser.add_argument("--tpu-type", required=True, metavar="TYPE", help="for example v5litepod-256")
        parser.add_argument("--num-slices", type=int, default=1, metavar="N")
        parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
        if name == "compile":
            parser.add_argument("--executable", type=Path, metavar="FILE", help="keep the program, as JAX reads it")
        parser.set_defaults(command=command)


def _estimate(options: argparse.Namespace) -> int:
    from trainer.estimate.closed_form import estimate

    config, slice_, num_slices = _asked(options)
    if config.model.family != "decoder":
        message = f"the estimate's formulas are of the decoder, and model.family is {config.model.family}"
        raise FatalError(Problem(message, "Compile it instead: python -m trainer compile"))
    return _show(estimate(config, slice_, num_slices), options.output)


def _compile(options: argparse.Namespace) -> int:
    from trainer.estimate.aot import compile_step

    return _show(compile_step(*_asked(options), options.executable), options.output)


def _asked(options: argparse.Namespace) -> tuple[Config, Slice, int]:
    """Return what was asked for. Raises FatalError with all that keeps it from running at all."""
    problems: list[Problem] = []
    if options.num_slices < 1:
        problems.append(Problem(f"--num-slices is {options.num_slices}", "Use 1 or more"))
    try:
        config = configs.load(options.config, options.set)
    except FatalError as error:
        problems += error.problems
    try:
        slice_ = find_slice(options.tpu_type)
    except FatalError as error:
        problems += error.problems
    problems += _unwritable(getattr(options, "executable", None))
    if not problems:
        problems = layout.check(config, layout.Chips(options.num_slices, slice_.hosts, slice_.chips_per_host))
    if problems:
        raise FatalError(*problems)
    return config, slice_, options.num_slices


def _unwritable(executable: Path | None) -> list[Problem]:
    """Return why the program could not be kept: after minutes of compiling it would be too late to say."""
    if executable is None:
        return []
    try:
        there = executable.exists()
        executable.open("ab").close()
        if not there:
            executable.unlink()
    except OSError as error:
        return [Problem(f"{executable} cannot be written: {reason(error)}", "Use another --executable")]
    return []


def _show(report: dict[str, Any], output: str) -> int:
    if output == "json":
        print(json.dumps(report))
        return ExitCode.DONE
    width = max(map(len, report))
    for key, value in report.items():
        print(f"{key:<{width}}  {_text(value)}")
    return ExitCode.DONE


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return " x ".join(f"{key} {each}" for key, each in value.items())
    if isinstance(value, list):
        rows = (row if isinstance(row, str) else ", ".join(f"{k} {each}" for k, each in row.items()) for row in value)
        return "; ".join(rows) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and abs(value) >= 1e6:
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
