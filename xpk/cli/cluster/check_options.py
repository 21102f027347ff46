"""Options of preflight checks, which `xpk cluster preflight` and `xpk node return --preflight` share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from xpk.cli.options import is_typed, namespace_option
from xpk.cli.terminal.output import Console
from xpk.model import names
from xpk.model.durations import parse_duration
from xpk.model.errors import UsageError
from xpk.model.status import WorkloadStatus

Command = TypeVar("Command", bound=Callable[..., Any])
# Flags by parameter.
_FLAGS = {
    "min_ici_gbps": "--min-ici-gbps",
    "min_dcn_gbps": "--min-dcn-gbps",
    "queue": "--queue",
    "image": "--docker-image",
    "output_root": "--output-root",
    "timeout": "--timeout",
    "namespace": "--namespace",
}


def check_options(command: Command) -> Command:
    """Add the options of the checks; `read_options` reads them."""
    for add in reversed(
        (
            click.option(
                "--min-ici-gbps", type=click.FloatRange(0), metavar="GB/S", help="Minimum bandwidth within a slice."
            ),
            click.option(
                "--min-dcn-gbps", type=click.FloatRange(0), metavar="GB/S", help="Minimum bandwidth between slices."
            ),
            click.option(
                "--queue",
                help=f"LocalQueue of the checks. [default: {names.QUEUE}, or the only queue of the namespace]",
            ),
            click.option(
                "--docker-image",
                "--image",
                "image",
                metavar="IMAGE",
                help="Trainer image. [default: the cluster's trainer image]",
            ),
            click.option(
                "--output-root",
                metavar="OUTPUT_ROOT",
                envvar="XPK_OUTPUT_ROOT",
                show_envvar=True,
                help="Write results to OUTPUT_ROOT/NAME. [default: the cluster's output root]",
            ),
            click.option(
                "--timeout", default="15m", show_default=True, metavar="TIME", help="Time limit, including the queue."
            ),
            namespace_option,
        )
    ):
        command = add(command)
    return command


def read_options(values: Mapping[str, Any], console: Console) -> dict[str, Any]:
    """Return the arguments of `xpk.check_hosts` for the values of the options, with progress for the user.

    Raises UsageError for an invalid time limit.
    """
    from xpk.cli.workload.create import print_steps  # brings what creates workloads

    floors = {"ici": values["min_ici_gbps"], "dcn": values["min_dcn_gbps"]}
    return {
        "namespace": values["namespace"],
        "queue": values["queue"],
        "image": values["image"],
        "output_root": values["output_root"],
        "min_gbps": {link: gbps for link, gbps in floors.items() if gbps is not None},
        "timeout": parse_duration(values["timeout"], "--timeout"),
        "on_progress": print_steps(console),
        "on_status": _teller(console),
    }


def refuse_options() -> None:
    """Raise UsageError for the options of the checks that the user has typed, on a command without checks."""
    flags = [flag for name, flag in _FLAGS.items() if is_typed(name)]
    if flags:
        problems = [f"{flag} requires --preflight" for flag in flags]
        raise UsageError(problems[0], problems=problems, hint="add --preflight to check the slice first")


def _teller(console: Console) -> Callable[[WorkloadStatus], None]:
    last: list[str] = []

    def tell(status: WorkloadStatus) -> None:
        text = f"{status.name}: {status.phase}, {status.reason}"
        if last[-1:] != [text]:
            last.append(text)
            console.tell(f" • {text}")

    return tell
