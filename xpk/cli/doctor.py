"""`xpk doctor`."""

from __future__ import annotations

from dataclasses import asdict

import click

from xpk.capacity import user_config
from xpk.capacity.inspect.doctor import Prerequisite, of_cluster, of_machine
from xpk.capacity.provider import load_provider, provider_of
from xpk.cli.options import namespace_option, optional_cluster_option, output_option, provider_option
from xpk.cli.target import is_cluster_named, the_cluster
from xpk.cli.terminal.help import Command
from xpk.cli.terminal.output import Console
from xpk.cli.terminal.tables import Column
from xpk.model.errors import MissingToolError

_COLUMNS = (
    Column("CHECK", lambda c: c.name),
    Column("STATE", lambda c: _state(c)),
    Column("VERSION", lambda c: c.version or "-"),
    Column("DETAIL", lambda c: c.detail, wrap=True),
)
_NEXT = Column("NEXT", lambda c: c.next, wrap=True)


@click.command(cls=Command)
@provider_option
@optional_cluster_option
@namespace_option
@output_option
@click.pass_obj
def doctor(console: Console, provider: str | None, cluster: str | None, namespace: str, output: str | None) -> None:
    """Check prerequisites: programs and packages, and a cluster's controllers and your permissions.

    Changes nothing. Without --cluster, checks this machine for --provider [default: local]. Exit code 7 if a
    required item is missing.
    """
    console, checks = console.choosing(output), list[Prerequisite]()
    if is_cluster_named(cluster):
        place = the_cluster(cluster)
        owner = provider_of(place, provider)
        provider = owner.name
        checks = of_cluster(lambda: owner.connect(place), provider, place, namespace)
    provider = provider or user_config.load().get("provider", "local")
    load_provider(provider)  # raises for an unknown name
    checks = [*of_machine(provider), *checks]
    below = console.output == "table" and console.width is not None  # unwrapped, so that commands can be copied
    console.items(checks, columns=_COLUMNS if below else (*_COLUMNS, _NEXT), data=asdict)
    if below:
        for check in filter(lambda check: check.next and not check.ok, checks):
            console.tell(f"  next ({check.name}): {check.next}")
    missing = [check for check in checks if check.needed and check.ok is False]
    if missing:
        raise MissingToolError(
            f"missing for provider {provider}: {', '.join(check.name for check in missing)}",
            hint=next((check.next for check in missing if check.next), "see the table above"),
        )


def _state(check: Prerequisite) -> str:
    if check.ok is None:
        return "unknown"
    return "ok" if check.ok else "missing" if check.needed else "not found"
