"""The target cluster of a command: named by flags, the user's default, or the only one."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from xpk.model.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from xpk.jobs.output.roots import OutputRoots

# Keys of flag values in click's context.
CONTEXT_KEY, PLACE_KEY, ROOT_KEY = "xpk.context", "xpk.place", "xpk.output-root"
# Settings that are defaults of each command's flags; `project`, `zone` and `provider` are read elsewhere.
_PREFERRED = {
    "workload": ("cluster", "namespace", "queue", "image", "script-dir", "output-root", "priority", "max-restarts"),
    "plan": ("cluster", "namespace", "output-root"),
    "queue": ("cluster",),
    "node": ("cluster",),
    "doctor": ("namespace",),
    "storage": ("cluster", "namespace"),
    "info": ("cluster",),
    "inspector": ("cluster", "namespace"),
    "version": ("cluster",),
    "usage": ("cluster", "prices"),
    "serve": ("cluster", "namespace", "output-root"),
    "top": ("cluster", "namespace", "output-root"),
}
_ALONE = ("doctor", "info", "inspector", "version", "usage", "serve", "top")  # commands that are not groups


class _OfEach(dict[str, Any]):
    """The same defaults for each command of a group, under any of its names."""

    def get(self, key: str, default: Any = None) -> Any:
        """Return the defaults of a command."""
        return dict(self)


def output_roots(cluster: str) -> OutputRoots:
    """Return the roots below which workloads of a cluster may write their output."""
    from xpk.capacity.provider import provider_of
    from xpk.jobs.output.roots import OutputRoots

    stated = click.get_current_context().meta.get(ROOT_KEY)
    return OutputRoots(functools.cache(lambda: provider_of(cluster).target(cluster)), stated)


def stated_place(ctx: click.Context) -> dict[str, str]:
    """Return the values of --context, --project and --zone that were given."""
    stated = {flag.lstrip("-"): value for flag, value in ctx.meta.get(PLACE_KEY, {}).items()}
    return stated | ({"context": context} if (context := ctx.meta.get(CONTEXT_KEY)) else {})


def is_cluster_named(cluster: str | None) -> bool:
    """Return True if a cluster was given, by its name or its context."""
    return bool(cluster or click.get_current_context().meta.get(CONTEXT_KEY))


def the_cluster(cluster: str | None, provider: str | None = None) -> str:
    """Return the cluster that was given, by its name or its context, or the only one."""
    from xpk.capacity.provider import CONTEXT, cluster_names

    ctx = click.get_current_context()
    if context := ctx.meta.get(CONTEXT_KEY):
        if cluster and ctx.get_parameter_source("cluster") is click.core.ParameterSource.COMMANDLINE:
            raise UsageError("--cluster and --context exclude each other", hint="pass one of them")
        return f"{CONTEXT}{context}"
    place = ctx.meta.get(PLACE_KEY)
    if cluster:
        if place := place or preferred_place(cluster):
            _find(cluster, place)
        return cluster

    if place:
        raise UsageError(f"no cluster given: {' and '.join(place)} only locate it", hint="--cluster NAME")
    existing = cluster_names(provider)
    if len(existing) == 1:
        return existing[0]
    if not existing:
        raise NotFoundError("there is no cluster", hint="`xpk cluster create dev --tpu-type v5litepod-8` creates one")
    raise UsageError(
        f"no cluster given; there are {', '.join(sorted(existing))}",
        hint="--cluster NAME, XPK_CLUSTER, or `xpk config set cluster NAME`",
    )


def named_or_all_clusters(cluster: str | None) -> list[str]:
    """Return the cluster that was given, or all that this machine knows. Raises NotFoundError without any."""
    from xpk.capacity.provider import cluster_names

    if is_cluster_named(cluster) or click.get_current_context().meta.get(PLACE_KEY):
        return [the_cluster(cluster)]
    return sorted(cluster_names()) or [the_cluster(cluster)]


def _find(cluster: str, place: Mapping[str, str]) -> None:
    """Find an unknown cluster by `--project` and `--zone`, and store its location.

    Raises NotFoundError, or UsageError if the cluster of that name is elsewhere.
    """
    from xpk.capacity.gke.request.options import GkeOptions
    from xpk.capacity.provider import configured_provider

    if project := place.get("--project") or default_place().get("project"):
        configured_provider(cluster, GkeOptions(project=project, zone=place.get("--zone", "")))


def default_place() -> dict[str, str]:
    """Return the project and zone of variables, of the preferences, or of gcloud's configuration."""
    from xpk.capacity import user_config
    from xpk.capacity.gke.cloud.configuration import gcloud_place

    saved, of_gcloud = user_config.load(), gcloud_place()
    values = {
        name: user_config.effective_setting(name, saved).value or of_gcloud.get(name) for name in ("project", "zone")
    }
    return {name: value for name, value in values.items() if value}


def preferred_place(cluster: str) -> dict[str, str]:
    """Return the user's default --project and --zone for a cluster that this machine does not know; may be empty."""
    from xpk.capacity import user_config
    from xpk.capacity.provider import cluster_names

    saved = user_config.load()
    if "project" not in saved or cluster in cluster_names():
        return {}
    values = {f"--{name}": user_config.effective_setting(name, saved).value for name in ("project", "zone")}
    return {flag: value for flag, value in values.items() if value}


def preferred(command: str | None) -> dict[str, Any]:
    """Return the user's defaults for a command's flags, as a click `default_map`."""
    if command not in _PREFERRED:
        return {}
    from xpk.capacity import user_config

    saved = user_config.load()
    flags = {name.replace("-", "_"): saved[name] for name in _PREFERRED[command] if name in saved}
    return {command: flags if command in _ALONE else _OfEach(flags)}
