"""Command line of the launcher: every host of the workload runs it; `train` and `run` differ on the head only."""

import argparse
import sys
from collections.abc import Sequence

from trainer.errors import ExitCode, FatalError
from xpk_ray import launcher
from xpk_ray.program import program
from xpk_ray.raylet import Services, Shape


def main(argv: Sequence[str] | None = None) -> None:
    """Run a host to its end; ends the process with its exit code."""
    options = _parser().parse_args(argv)
    shape = Shape(options.chips, options.resource, options.accelerator, options.topology)
    rest = options.rest[1:] if options.rest[:1] == ["--"] else options.rest
    try:
        if options.command == "train":
            from xpk_ray.driver import training

            work = training(rest, options.max_restarts)
        else:
            work = program(rest)
        # The trainers print into their own hosts' logs.
        services = Services(options.dashboard, driver_logs=options.command == "run")
        launcher.launch(work, shape, services, join_seconds=options.join_seconds, ships_code=options.ship_code)
    except FatalError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        sys.exit(ExitCode.FATAL)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m xpk_ray", description="A host of a workload that Ray coordinates.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="{train,run}")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--chips", type=int, default=0, help="chips of this host")
    common.add_argument("--resource", default="TPU", choices=("TPU", "GPU"), help="what Ray calls them")
    common.add_argument("--accelerator", default="", metavar="TYPE", help="the slice's type, such as v5litepod-8")
    common.add_argument("--topology", default="", metavar="AxB", help="the slice's topology")
    common.add_argument("--join-seconds", type=float, default=launcher.JOIN_SECONDS, help="that hosts may take to join")
    common.add_argument("--dashboard", action="store_true", help="serve Ray's dashboard and its jobs")
    common.add_argument("--ship-code", action="store_true", help="ship the folder that the head starts in to all")
    train = commands.add_parser("train", parents=[common], help="the bundled trainer, an actor a host")
    train.add_argument(
        "--max-restarts", type=int, default=0, metavar="N", help="how often actors are replaced, or the JobSet restarts"
    )
    run = commands.add_parser("run", parents=[common], help="a program on the head")
    for command in (train, run):
        command.add_argument("rest", nargs=argparse.REMAINDER, metavar="-- ARGUMENTS")
    return parser
