"""`xpk inspector`: diagnostics of a cluster in one file."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from xpk.capacity.inspect import support_bundle, versions
from xpk.capacity.nodes.health import health_of
from xpk.capacity.provider import Provider, provider_of
from xpk.cli.google_xpk import ClusterCommand
from xpk.cli.options import cluster_option, namespace_option
from xpk.cli.target import the_cluster
from xpk.cli.terminal.output import Console, echo
from xpk.model.errors import XpkError


@click.command(cls=ClusterCommand)
@click.option("--workload", metavar="NAME", help="Include the objects and logs of this workload.")
@click.option("--print-to-terminal", is_flag=True, help="Also print the text.")
@click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File to write. [default: a new file in the temporary folder]",
)
@namespace_option
@cluster_option
@click.pass_obj
def inspector(
    console: Console,
    workload: str | None,
    print_to_terminal: bool,
    path: Path | None,
    namespace: str,
    cluster: str | None,
) -> None:
    """Collect diagnostics of a cluster into one text file, without secrets.

    \b
      xpk inspector --cluster prod --workload train

    Contains versions, nodes, slices, queues, controllers with their logs, workloads and warnings.
    """
    place = the_cluster(cluster)
    owner = provider_of(place)
    text = support_bundle.bundle(_sections(owner, place, workload, namespace))
    file = _write(text, path, place)
    if print_to_terminal:
        echo(text)
    console.tell("review the file before you share it: output of your programs may contain secrets")
    echo(str(file))


def _sections(owner: Provider, place: str, workload: str | None, namespace: str) -> dict[str, support_bundle.Read]:
    from xpk.jobs.status.reader import find_all

    api = owner.connect(place)
    sections: dict[str, support_bundle.Read] = {
        "this machine": lambda: {
            "xpk": versions.client().version,
            "python": sys.version,
            "platform": platform.platform(),
            "provider": owner.name,
        },
        "versions": lambda: [asdict(version) for version in versions.of_cluster(lambda: api)],
        "cluster": lambda: asdict(owner.describe(place)),
        "slices": lambda: [asdict(health) for health in health_of(api, owner.describe(place))],
        "workloads": lambda: [_row(status) for status in find_all(api, None, brief=True)],
        **support_bundle.of_cluster(api),
    }
    return sections | (support_bundle.of_workload(api, workload, namespace) if workload else {})


def _row(status: Any) -> dict[str, Any]:
    fields = ("name", "namespace", "phase", "reason", "priority", "accelerator_type", "num_slices", "restarts", "queue")
    return {field: str(getattr(status, field)) for field in (*fields, "position", "created")}


def _write(text: str, path: Path | None, place: str) -> Path:
    """Write the text to a file that only this user can read."""
    try:
        if path is None:
            safe = "".join(char if char.isalnum() or char in "-." else "-" for char in place)
            handle, name = tempfile.mkstemp(prefix=f"xpk-inspector-{safe}-", suffix=".txt")
        else:
            name, flags = str(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            handle = os.open(path, flags, 0o600)
            os.fchmod(handle, 0o600)  # the file may have existed
        with open(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise XpkError(f"cannot write {path or 'the file'}: {error.strerror}", hint="--file FILE") from error
    return Path(name)
