"""Command line of the launcher, which every host of the workload runs; `train` and `run` differ only on the head."""

import argparse
import sys
from collections.abc import Sequence

from trainer.errors import ExitCode, FatalError
from xpk_ray import launcher
from xpk_ray.program import program
from xpk_ray.raylet import Services, Shape


def main(argv: Sequence[str] | None = None) -> None:
    """Run a host until it ends, and exit with its exit code."""
    options = _parser().parse_args(argv)
    shape = Shape(options.chips, options.resource, options.accelerator, options.topology)
    rest = options.rest[1:] if options.rest[:1] == ["--"] else options.rest
    try:
        if options.command == "train":
            from xpk_ray.driver import training

            work = training(rest, options.max_restarts)
        else:
            work = program(rest)
        # Trainers print to their own hosts' logs.
        services = Services(options.dashboard, driver_logs=options.command == "run")
        launcher.launch(work, shape, services, join_seconds=options.join_seconds, ships_code=options.ship_code)
    except FatalError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        sys.exit(ExitCode.FATAL)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m xpk_ray", description="Run a host of a workload that Ray coordinates."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="{train,run}")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--chips", type=int, default=0, help="number of chips of this host [default: %(default)s]")
    common.add_argument(
        "--resource",
        default="TPU",
        choices=("TPU", "GPU"),
        help="Ray's name of the chips' resource [default: %(default)s]",
    )
    common.add_argument("--accelerator", default="", metavar="TYPE", help="type of the slice, such as v5litepod-8")
    common.add_argument("--topology", default="", metavar="AxB", help="topology of the slice")
    common.add_argument(
        "--join-seconds",
        type=float,
        default=launcher.JOIN_SECONDS,
        help="timeout for all hosts to join, in seconds [default: %(default)s]",
    )
    common.add_argument("--dashboard", action="store_true", help="serve Ray's dashboard and jobs")
    common.add_argument("--ship-code", action="store_true", help="ship the head's working folder to all hosts")
    train = commands.add_parser("train", parents=[common], help="run the bundled trainer, one actor per host")
    train.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="N",
        help="maximum number of replacements of the actors and restarts of the JobSet [default: %(default)s]",
    )
    run = commands.add_parser("run", parents=[common], help="run a program on the head")
    for command in (train, run):
        command.add_argument("rest", nargs=argparse.REMAINDER, metavar="-- ARGUMENTS")
    return parser
