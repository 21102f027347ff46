"""Command line of the trainer: train (the default), prepare, check, preflight, estimate, compile and search."""

import argparse
import contextlib
import dataclasses
import gc
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from trainer import config as configs
from trainer.checkpoint import trunk
from trainer.data import checks, preparation
from trainer.data.prepare import FILE_TOKENS
from trainer.errors import ExitCode, FatalError, Problem, reason
from trainer.estimate import cli
from trainer.hosts.bootstrap import read_host
from trainer.parallel import layout
from trainer.preflight import cli as preflight
from trainer.storage import open_place
from xpk_shared.storage import in_bucket

if TYPE_CHECKING:
    from concurrent.futures import Future

    from trainer.hosts.job import Address, Job

_COMMANDS = ("train", "prepare", "check", "preflight", "estimate", "compile", "search")


class _Parser(argparse.ArgumentParser):
    """Argument parser that reports a bad command line as a FatalError does, and accepts no abbreviated options."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with ExitCode.FATAL."""
        print(Problem(message, f"See {self.prog} --help"), file=sys.stderr)
        raise SystemExit(ExitCode.FATAL)


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command and end the process with its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or (arguments[0] not in _COMMANDS and arguments[0] not in ("-h", "--help")):
        arguments.insert(0, "train")
    options = _parser().parse_args(arguments)
    try:
        code: int = options.command(options)
    except FatalError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        code = error.exit_code
    sys.exit(code)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m trainer", description="Train a model on one or many slices.")
    commands = parser.add_subparsers(required=True, parser_class=_Parser, metavar=f"{{{','.join(_COMMANDS)}}}")
    config_options = _Parser(add_help=False)
    names = ", ".join(sorted(path.stem for path in configs.CONFIG_FOLDER.glob("*.yaml")))
    config_options.add_argument(
        "--config", default="tiny", help=f"configuration: one of {names}, or a YAML file [default: tiny]"
    )
    config_options.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="change a setting; repeatable"
    )
    train = commands.add_parser("train", parents=[config_options], help="train (the default command)")
    train.set_defaults(command=_train)
    _add_prepare(commands, names)
    check = commands.add_parser(
        "check", parents=[config_options], help="check a configuration for a number of slices, hosts and chips"
    )
    for option in ("--num-slices", "--hosts-per-slice", "--chips-per-host"):
        check.add_argument(
            option, type=int, required=True, metavar="N", help=f"number of {option[2:].replace('-', ' ')}"
        )
    check.add_argument(
        "--min-slices", type=int, default=0, metavar="N", help="number of slices with which the run continues"
    )
    check.add_argument("--settings-only", action="store_true", help="do not check the settings against these numbers")
    check.add_argument("--no-data", action="store_true", help="do not check data.path and the output folder")
    check.add_argument("arguments", nargs="*", metavar="ARG", help="after `--`: arguments of `train` to check")
    check.set_defaults(command=_check)
    preflight.add_command(commands)
    cli.add_commands(commands, [config_options])
    return parser


def _add_prepare(commands: Any, names: str) -> None:
    """Add the command `prepare`; `names` are those of the configurations."""
    prepare = commands.add_parser("prepare", help="prepare a data set")
    prepare.add_argument("source", metavar="SRC", help="source of the data: a path, or gs://BUCKET/NAME")
    prepare.add_argument("--out", required=True, help="output folder: a path, or gs://BUCKET/FOLDER")
    prepare.add_argument(
        "--config",
        default="",
        help=f"configuration of the model that reads the data: one of {names}, or a YAML file [default: reads text]",
    )
    prepare.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="change a setting of --config"
    )
    prepare.add_argument(
        "--target", default="", metavar="FILE", help="file with the translations of the sentences in the file SRC"
    )
    prepare.add_argument(
        "--suffixes", default="", help='file suffixes to read, for example ".py,.md" [default: all files]'
    )
    prepare.add_argument(
        "--tokenizer", default="", metavar="FILE", help="SentencePiece model, or vocab.txt of BERT [default: bytes]"
    )
    prepare.add_argument(
        "--file-tokens",
        type=int,
        default=FILE_TOKENS,
        metavar="N",
        help="start a new file after N tokens [default: %(default)s]",
    )
    prepare.set_defaults(command=_prepare)


def train_config(arguments: Sequence[str], warn: Callable[[str], None] = configs.warn) -> configs.Config:
    """Return the configuration for the arguments of `train`. Raises FatalError with all problems."""
    options = _parser().parse_args(["train", *arguments])
    return configs.load(options.config, options.set, warn)


def _train(options: argparse.Namespace) -> int:
    warnings: list[str] = []
    config = configs.load(options.config, options.set, warnings.append)
    host = read_host(os.environ)
    if host.process_id == 0:
        for warning in warnings:
            configs.warn(warning)
    if os.environ.get("JAX_PLATFORMS") == "cpu" and os.environ.get("JAX_NUM_CPU_DEVICES", "").isdigit():
        chips = layout.Chips(host.joined_slices, host.hosts_per_slice, int(os.environ["JAX_NUM_CPU_DEVICES"]))
        _refuse(layout.check(config, chips, host.replicas))
    from trainer.hosts import job as jobs

    job = jobs.open_job(config, host)
    try:
        coordinator_future = jobs.meet(job)
        code = _run(job, coordinator_future)
    except BaseException as error:
        jobs.fail(job, error)
    jobs.end(code)


def _run(job: "Job", coordinator_future: "Future[Address]") -> ExitCode:
    """Train; imports JAX while the hosts connect."""
    if not job.host.is_elastic:
        with _without_collection():
            from trainer.train import train

        return train(job, coordinator_future)
    for name in [name for name in os.environ if name.startswith("MEGASCALE_")]:
        del os.environ[name]  # libtpu would connect this slice to the others
    with _without_collection():
        from trainer.elastic.train import train as train_elastic

    return train_elastic(job, coordinator_future)


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Collect no garbage during imports, a sixth of their time, nor later among what they have allocated."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _prepare(options: argparse.Namespace) -> int:
    if options.file_tokens < 1:
        raise FatalError(Problem(f"--file-tokens must be at least 1, got {options.file_tokens}", "Use 1 or more"))
    if options.set and not options.config:
        raise FatalError(Problem("--set requires --config", "Add --config NAME of the model that reads the data"))
    config = configs.load(options.config, options.set) if options.config else configs.Config(name="text")
    named = {"path": options.source, "target": options.target}
    named |= {"suffixes": options.suffixes, "tokenizer": options.tokenizer}
    stated = {name: value for name, value in named.items() if value}
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, **stated))
    _refuse(list(layout.range_problems(config)))
    out = open_place(options.out)
    try:
        corpus = preparation.prepare(config, out, file_tokens=options.file_tokens)
    except OSError as error:
        where = str(error.filename or out)
        hint = "Use another --out" if where.startswith(str(out)) else "Use another SRC, or try again later"
        raise FatalError(Problem(f"{where!r}: {reason(error)}", hint)) from error
    print(corpus.path)
    print(preparation.summary(corpus, config.model), file=sys.stderr)
    return ExitCode.DONE


def _check(options: argparse.Namespace) -> int:
    chips = layout.Chips(options.num_slices, options.hosts_per_slice, options.chips_per_host)
    try:
        train = _parser().parse_args(["train", *options.arguments]) if options.arguments else options
        config = configs.load(train.config, train.set)
        if min(chips.num_slices, chips.hosts_per_slice, chips.chips_per_host) < 1:
            raise FatalError(
                Problem("--num-slices, --hosts-per-slice and --chips-per-host must be at least 1", "Use 1 or more")
            )
        problems = [] if options.settings_only else _check_layout(config, chips, is_elastic=options.min_slices > 0)
        if not (options.settings_only or options.no_data):
            problems += _check_output(config.run.output_dir or os.environ.get("XPK_OUTPUT_DIR", ""))
            problems += trunk.check(config.checkpoint.trunk_path)
            if not any(layout.range_problems(config)):  # else the size of a batch is unknown
                problems += checks.check_source(config, layout.layout(config, chips).global_batch)
    except FatalError as error:
        problems = list(error.problems)
    if not problems:
        return ExitCode.DONE
    print(json.dumps({"problems": [{"message": p.message, "hint": p.hint} for p in problems]}))
    return ExitCode.FATAL


def _check_layout(config: configs.Config, chips: layout.Chips, *, is_elastic: bool) -> list[Problem]:
    """Return the problems of a layout on all slices; elastic slices are worlds of one slice each."""
    if is_elastic:
        return layout.check(config, dataclasses.replace(chips, num_slices=1), chips.num_slices)
    return layout.check(config, chips)


def _check_output(address: str) -> list[Problem]:
    """Return the problems of an output address; a folder is not read, because it may exist on the hosts only."""
    try:
        place = open_place(address)
        if in_bucket(address):
            place.files()
    except FatalError as error:
        return list(error.problems)
    except OSError as error:
        return [
            Problem(f"output folder {address!r} cannot be used: {reason(error)}", "Use --set run.output_dir=FOLDER")
        ]
    return []


def _refuse(problems: list[Problem]) -> None:
    if problems:
        raise FatalError(*problems)
