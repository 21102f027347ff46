"""`xpk serve`: the live console as a page of this machine."""

from __future__ import annotations

import ipaddress
from contextlib import suppress

import click

from xpk.cli.options import (
    all_namespaces_option,
    namespace_option,
    output_root_option,
    several_clusters_option,
)
from xpk.cli.target import ROOT_KEY, named_or_all_clusters
from xpk.cli.terminal.help import Command
from xpk.cli.terminal.output import Console, echo
from xpk.model.errors import MissingToolError


@click.command(cls=Command)
@several_clusters_option
@namespace_option
@all_namespaces_option
@output_root_option
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Port; 0 for a free one.")
@click.option("--host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.pass_context
def serve(
    ctx: click.Context, /, cluster: str | None, namespace: str, all_namespaces: bool, port: int, host: str
) -> None:
    """Serve the live console: clusters, queues and runs in a browser.

    It only reads. The printed address admits one browser and is then replaced by another one. For a console on another
    machine, forward its port: `ssh -L 8080:localhost:8080 MACHINE`.
    """
    console: Console = ctx.obj
    names = named_or_all_clusters(cluster)
    try:
        from xpk.console import server
        from xpk.console.access import Access
    except ModuleNotFoundError as error:
        raise MissingToolError(
            f"`xpk serve` needs the package '{error.name}'", hint="pip install 'xpk-multislice[serve]'"
        ) from error
    from xpk.console.clusters import open_clusters
    from xpk.console.feed import Feed
    from xpk.console.views import Views

    readers = open_clusters(names, None if all_namespaces else namespace, ctx.meta.get(ROOT_KEY))
    feed = Feed(readers, Views(tuple(names)))
    listening = server.open_socket(host, port)
    chosen_port = listening.getsockname()[1]
    if not _is_loopback(host):
        console.warn(f"{host} is reachable from other machines, and the connection is not encrypted")
    console.tell(f"Serving {', '.join(names)}; Ctrl-C stops. Open this address, which works once:")
    access = Access(lambda token: echo(f"http://{_shown(host)}:{chosen_port}/?token={token}"))
    app = server.application(feed, access, cookie=f"xpk-console-{chosen_port}", own_name=host)
    server.make_server(app).run(sockets=[listening])


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _shown(host: str) -> str:
    """Return the host of an address: one at which a server on all of a machine's addresses can be reached."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (compared, not bound)
    return f"[{shown}]" if ":" in shown else shown
