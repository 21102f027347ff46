"""Commands that need no TPUs: estimate, compile and search."""

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer import config as configs
from trainer.config import IMAGE_FAMILIES, TRANSLATION_FAMILIES, Config
from trainer.errors import ExitCode, FatalError, Problem, reason
from trainer.estimate.accelerators import Slice, find_slice
from trainer.parallel import layout


def add_commands(commands: Any, parents: list[argparse.ArgumentParser]) -> None:
    """Add `estimate`, `compile` and `search` to the parser's commands."""
    for name, command, description in (
        ("estimate", _estimate, "estimate a step's memory, FLOPs, traffic and time in closed form"),
        ("compile", _compile, "compile the step for TPUs, without TPUs; takes minutes"),
    ):
        parser = commands.add_parser(name, parents=parents, help=description, description=description)
        parser.add_argument(
            "--tpu-type", required=True, metavar="TYPE", help="type of a slice, for example v5litepod-256"
        )
        parser.add_argument("--num-slices", type=int, default=1, metavar="N", help="number of slices [default: 1]")
        parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="[default: table]")
        if name == "estimate":
            parser.add_argument(
                "--min-slices", type=int, default=0, metavar="N", help="number of slices with which the run continues"
            )
        else:
            parser.add_argument("--executable", type=Path, metavar="FILE", help="save the program in JAX's format")
        parser.set_defaults(command=command)
    description = (
        "find the fastest mesh, batch and rematerialization that fit on slices, in closed form; keeps what --set sets; "
        "prints JSON"
    )
    parser = commands.add_parser("search", parents=parents, help=description, description=description)
    parser.add_argument("--tpu-types", type=_words, required=True, metavar="TYPE,...", help="types of slices")
    parser.add_argument("--num-slices", type=_numbers, required=True, metavar="N,...", help="numbers of slices")
    parser.add_argument("--products", type=_words, action="append", metavar="NAME,...", help="int8 products to try")
    parser.add_argument("--max-chips", type=int, default=2**31, metavar="N", help="most chips of all slices")
    parser.add_argument("--max-global-batch", type=int, default=2**31, metavar="N", help="most examples in a step")
    parser.add_argument("--rank-by", choices=("bound", "expected"), default="bound", help="[default: bound]")
    parser.set_defaults(command=_search)


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _numbers(text: str) -> list[int]:
    return [int(word) for word in _words(text)]


def _search(options: argparse.Namespace) -> int:
    from trainer.estimate.search import Grid, search

    problems = [_too_few_slices(number) for number in options.num_slices if number < 1]
    slices = []
    for tpu_type in options.tpu_types:
        try:
            slices.append(find_slice(tpu_type))
        except FatalError as error:
            problems += error.problems
    if problems:
        raise FatalError(*problems)
    config = configs.load(options.config, options.set)
    grid = Grid(
        slices=slices,
        num_slices=options.num_slices,
        products=[config.quant.matmuls, *(",".join(names) for names in options.products or ())],
        max_chips=options.max_chips,
        max_global_batch=options.max_global_batch,
        rank_by=options.rank_by,
    )
    keys = {setting.partition("=")[0].strip() for setting in options.set}
    return _print([json.dumps(search(config, grid.keeping(config, keys)))])


def _estimate(options: argparse.Namespace) -> int:
    config, slice_, num_slices = _read_options(options, options.min_slices)
    estimate = _estimate_of(config.model.family)
    return _show(estimate(config, slice_, num_slices, is_elastic=bool(options.min_slices)), options.output)


def _estimate_of(family: str) -> Callable[..., dict[str, Any]]:
    """Return the estimate of a model family; only that of translations imports JAX."""
    from trainer.estimate import bert, closed_form, dlrm, images

    if family in TRANSLATION_FAMILIES:
        from trainer.estimate import translation

        return translation.estimate
    if family in IMAGE_FAMILIES:
        return images.estimate
    return {"decoder": closed_form.estimate, "bert": bert.estimate, "dlrm": dlrm.estimate}[family]


def _compile(options: argparse.Namespace) -> int:
    from trainer.estimate.aot import compile_step

    return _show(compile_step(*_read_options(options), options.executable), options.output)


def _read_options(options: argparse.Namespace, min_slices: int = 0) -> tuple[Config, Slice, int]:
    """Return the configuration and sizes given on the command line. Raises FatalError with all their problems."""
    problems: list[Problem] = []
    if options.num_slices < 1:
        problems.append(_too_few_slices(options.num_slices))
    elif not 0 <= min_slices <= options.num_slices:
        message = f"--min-slices must be from 1 to --num-slices = {options.num_slices}, got {min_slices}"
        problems.append(Problem(message, "Use a valid number, or omit it"))
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
        replicas = options.num_slices if min_slices else 1
        chips = layout.Chips(options.num_slices // replicas, slice_.hosts, slice_.chips_per_host)
        problems = layout.check(config, chips, replicas)
    if problems:
        raise FatalError(*problems)
    return config, slice_, options.num_slices


def _too_few_slices(number: int) -> Problem:
    return Problem(f"--num-slices must be at least 1, got {number}", "Use 1 or more")


def _unwritable(executable: Path | None) -> list[Problem]:
    """Return the problem of an unwritable output file, before minutes of compiling."""
    if executable is None:
        return []
    try:
        is_existing = executable.exists()
        executable.open("ab").close()
        if not is_existing:
            executable.unlink()
    except OSError as error:
        return [Problem(f"{executable} cannot be written: {reason(error)}", "Use another --executable")]
    return []


def _show(report: dict[str, Any], output: str) -> int:
    if output == "json":
        return _print([json.dumps(report)])
    width = max(map(len, report))
    return _print([f"{key:<{width}}  {_text(value)}" for key, value in report.items()])


def _print(lines: list[str]) -> int:
    """Print lines, as far as the output has a reader; `... | head` closes it."""
    try:
        print("\n".join(lines), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's own flush at exit
    return ExitCode.DONE


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return " x ".join(f"{key} {item}" for key, item in value.items())
    if isinstance(value, list):
        rows = (
            row if isinstance(row, str) else ", ".join(f"{key} {item}" for key, item in row.items()) for row in value
        )
        return "; ".join(rows) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and abs(value) >= 1e6:
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
