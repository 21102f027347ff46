"""`xpk version`: versions of xpk and of a cluster's components."""

from __future__ import annotations

from dataclasses import asdict

import click

from xpk.capacity.inspect import versions
from xpk.capacity.provider import provider_of
from xpk.cli.google_xpk import ClusterCommand
from xpk.cli.options import optional_cluster_option, output_option
from xpk.cli.target import is_cluster_named, the_cluster
from xpk.cli.terminal.output import Console
from xpk.cli.terminal.tables import Column
from xpk.model.errors import XpkError

_COLUMNS = (
    Column("PART", lambda v: v.name),
    Column("VERSION", lambda v: v.version, wrap=True),
    Column("INSTALLED BY THIS XPK", lambda v: v.installs or "-"),
)


@click.command(cls=ClusterCommand)
@optional_cluster_option
@output_option
@click.pass_obj
def version(console: Console, cluster: str | None, output: str | None) -> None:
    """Show the versions of xpk and of the API server, JobSet and Kueue of the given or default cluster."""
    component_versions = [versions.client()]
    if is_cluster_named(cluster):
        try:
            place = the_cluster(cluster)
            owner = provider_of(place)
            component_versions += versions.of_cluster(lambda: owner.connect(place))
        except XpkError as error:
            if _is_given():
                raise
            console.warn(f"cannot reach the default cluster: {error.message}")
    console.choosing(output).items(component_versions, columns=_COLUMNS, data=asdict)


def _is_given() -> bool:
    """Return True if the cluster was named on the command line."""
    source = click.get_current_context().get_parameter_source("cluster")
    return source is click.core.ParameterSource.COMMANDLINE
