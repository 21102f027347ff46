"""Options and arguments that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from xpk.cli import complete
from xpk.cli.output import FORMATS
from xpk.model.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from xpk.jobs.output_roots import OutputRoots

Command = TypeVar("Command", bound=Callable[..., Any])

_CONTEXT, _PLACE, _ROOT = "xpk.context", "xpk.place", "xpk.output-root"
# What is preferred where: `project` and `zone` say where to look, and `provider` what to make, in other ways.
_PREFERRED = {
    "workload": ("cluster", "namespace", "queue", "image", "script-dir", "output-root", "priority", "max-restarts"),
    "queue": ("cluster",),
    "doctor": ("namespace",),
    "storage": ("cluster", "namespace"),
    "info": ("cluster",),
    "inspector": ("cluster", "namespace"),
    "version": ("cluster",),
}
_ALONE = ("doctor", "info", "inspector", "version")  # commands that are no groups
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class _OfEach(dict[str, Any]):
    """The same defaults for each command of a group, by whatever name it is called."""

    def get(self, key: str, default: Any = None) -> Any:
        """Return the defaults of a command."""
        return dict(self)


def output_option(command: Command) -> Command:
    """Take `-o` after the command too."""
    return click.option("-o", "--output", type=click.Choice(FORMATS), help="How to print what is read.")(command)


def name_argument(what: str) -> Callable[[Command], Command]:
    """Take a name as NAME or, as Google's xpk does, as `--cluster NAME` or `--workload NAME`."""

    def decorate(command: Command) -> Command:
        known = {"cluster": complete.clusters, "workload": complete.workloads, "queue": complete.queues}.get(what)
        command = click.argument("name", required=False, shell_complete=known)(command)
        text = f"The {what}; same as NAME."
        return click.option(f"--{what}", "name_flag", metavar="NAME", shell_complete=known, help=text)(command)

    return decorate


def names_argument(command: Command) -> Command:
    """Take names of workloads as NAME... or as `--workload NAME`, which may be repeated."""
    known = complete.workloads
    command = click.argument("given_names", nargs=-1, metavar="[NAME]...", shell_complete=known)(command)
    text, flags = "A workload; same as NAME; may be repeated.", ("--workload", "name_flags")
    return click.option(*flags, multiple=True, metavar="NAME", shell_complete=known, help=text)(command)


def accelerator_option(text: str, *, name: str = "accelerator_type") -> Callable[[Command], Command]:
    """Take an accelerator type, as the parameter `name`; `text` is the help."""
    return click.option(
        "--tpu-type", "--device-type", name, metavar="TYPE", shell_complete=complete.accelerator_types, help=text
    )


def cluster_option(command: Command) -> Command:
    """Take the cluster that a workload is on; `the_cluster` finds it."""

    def keep(ctx: click.Context, option: click.Parameter, value: str | None) -> None:
        if value:
            ctx.meta.setdefault(_PLACE, {})[option.opts[0]] = value

    for flag, what in (("--zone", "the zone of its nodes"), ("--project", "its project")):
        text = f"gke: {what}, if the cluster is not known here yet."
        command = click.option(flag, metavar=flag[2:].upper(), expose_value=False, callback=keep, help=text)(command)
    return click.option(
        "--cluster",
        metavar="CLUSTER",
        envvar="XPK_CLUSTER",
        show_envvar=True,
        shell_complete=complete.clusters,
        help="The cluster; may be left out if there is only one.",
    )(context_option(command))


def context_option(command: Command) -> Command:
    """Take a context of the user's kubeconfig where a cluster is meant; `the_cluster` gives it back."""

    def keep(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
        ctx.meta[_CONTEXT] = value

    return click.option(
        "--context",
        metavar="CONTEXT",
        expose_value=False,
        callback=keep,
        shell_complete=complete.contexts,
        help="A context of your kubeconfig, instead of a cluster's name.",
    )(command)


def namespace_option(command: Command) -> Command:
    """Take the namespace that a workload is in."""
    return click.option(
        "-n",
        "--namespace",
        default="default",
        show_default=True,
        envvar="XPK_NAMESPACE",
        show_envvar=True,
        shell_complete=complete.namespaces,
        help="Where the workload is.",
    )(command)


def output_root_option(command: Command) -> Command:
    """Take the root of a workload's output where the cluster's own is not it; `output_roots` gives it back."""

    def keep(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
        ctx.meta[_ROOT] = value

    return click.option(
        "--output-root",
        metavar="OUTPUT_ROOT",
        envvar="XPK_OUTPUT_ROOT",
        show_envvar=True,
        expose_value=False,
        callback=keep,
        help="The --output-root that the workload was created with.",
    )(command)


def output_roots(cluster: str) -> OutputRoots:
    """Return the roots below which workloads of a cluster may have their output."""
    from xpk.capacity.provider import provider_of
    from xpk.jobs.output_roots import OutputRoots

    stated = click.get_current_context().meta.get(_ROOT)
    return OutputRoots(functools.cache(lambda: provider_of(cluster).target(cluster)), stated)


def provider_option(command: Command) -> Command:
    """Take the kind of capacity."""
    return click.option(
        "--provider",
        metavar="PROVIDER",
        envvar="XPK_PROVIDER",
        show_envvar=True,
        shell_complete=complete.providers,
        help="The kind of capacity; local by default.",
    )(command)


def stated_place(ctx: click.Context) -> dict[str, str]:
    """Return --context, --project and --zone as far as they were given."""
    stated = {flag.lstrip("-"): value for flag, value in ctx.meta.get(_PLACE, {}).items()}
    return stated | ({"context": context} if (context := ctx.meta.get(_CONTEXT)) else {})


def the_name(what: str, name: str | None, name_flag: str | None) -> str:
    """Return the one name that was given in either way. Raises UsageError for none or two."""
    if name and name_flag and name != name_flag:
        raise UsageError(f"two names for one {what}: '{name}' and '{name_flag}'", hint="give one of them")
    chosen = name or name_flag
    if not chosen:
        path = click.get_current_context().command_path
        known = f"`xpk {what} list` shows those there are"
        raise UsageError(f"which {what}?", hint=f"{path} NAME ..." if path.endswith(" create") else known)
    return chosen


def is_cluster_named(cluster: str | None) -> bool:
    """Tell whether a cluster was named, by its name or its context."""
    return bool(cluster or click.get_current_context().meta.get(_CONTEXT))


def the_cluster(cluster: str | None, provider: str | None = None) -> str:
    """Return the cluster that was named, by its name or its context, or the only one there is."""
    from xpk.capacity.provider import CONTEXT, cluster_names

    ctx = click.get_current_context()
    if context := ctx.meta.get(_CONTEXT):
        if cluster and ctx.get_parameter_source("cluster") is click.core.ParameterSource.COMMANDLINE:
            raise UsageError("--cluster and --context exclude each other", hint="give one of them")
        return f"{CONTEXT}{context}"
    place = ctx.meta.get(_PLACE)
    if cluster:
        if place := place or preferred_place(cluster):
            from xpk.capacity.gke.provider import find

            find(cluster, place)
        return cluster

    if place:
        raise UsageError(f"which cluster? {' and '.join(place)} only say where it is", hint="--cluster NAME")
    known = cluster_names(provider)
    if len(known) == 1:
        return known[0]
    if not known:
        raise NotFoundError("there is no cluster yet", hint="`xpk cluster create dev --tpu-type v5litepod-8` makes one")
    raise UsageError(
        f"which cluster? there are {', '.join(sorted(known))}",
        hint="--cluster NAME, XPK_CLUSTER, or `xpk config set cluster NAME`",
    )


def preferred_place(cluster: str) -> dict[str, str]:
    """Return where on Google Cloud the user prefers to look for a cluster that is not known here, if anywhere."""
    from xpk.capacity import preferences
    from xpk.capacity.provider import cluster_names

    saved = preferences.load()
    if "project" not in saved or cluster in cluster_names():
        return {}
    found = {f"--{name}": preferences.in_force(name, saved).value for name in ("project", "zone")}
    return {flag: value for flag, value in found.items() if value}


def preferred(command: str | None) -> dict[str, Any]:
    """Return the defaults that the user prefers for a command's flags, as click takes them."""
    if command not in _PREFERRED:
        return {}
    from xpk.capacity import preferences

    saved = preferences.load()
    flags = {name.replace("-", "_"): saved[name] for name in _PREFERRED[command] if name in saved}
    return {command: flags if command in _ALONE else _OfEach(flags)}


def count_slices(num_slices: int | None, num_nodes: int | None, kind: str) -> int:
    """Return how many slices are asked for: GPU and CPU hosts are slices of one host each. Raises UsageError."""
    if num_nodes is None:
        return 1 if num_slices is None else num_slices
    if kind == "tpu":
        raise UsageError("--num-nodes is for GPU and CPU types: TPU slices have a fixed size", hint="--num-slices N")
    if num_slices not in (None, num_nodes):
        raise UsageError("--num-nodes and --num-slices say different things", hint="give one of them")
    return num_nodes


def parse_since(text: str | None) -> datetime | None:
    """Return the time that `--since` means: `90s`, `5m`, `2h`, `1d`, or an RFC 3339 time."""
    if text is None:
        return None
    number, unit = text[:-1], text[-1:]
    try:
        if unit in _UNITS:
            return datetime.now(UTC) - timedelta(seconds=float(number) * _UNITS[unit])
        time = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise UsageError(
            f"--since '{text}' is not a time", hint="use 90s, 5m, 2h, 1d or 2026-01-31T12:00:00Z"
        ) from None
    return time if time.tzinfo else time.astimezone()


def parse_duration(text: str | None, flag: str) -> float | None:
    """Return the seconds of `300`, `90s`, `5m`, `2h` or `1d`. Raises UsageError for anything else."""
    if text is None:
        return None
    number, unit = (text[:-1], _UNITS[text[-1:]]) if text[-1:] in _UNITS else (text, 1)
    try:
        seconds = float(number) * unit
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise UsageError(f"{flag} '{text}' is not a time", hint="use seconds, or 90s, 5m, 2h, 1d")
    return seconds
