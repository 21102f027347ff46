"""Options and arguments that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from xpk.cli import complete
from xpk.cli.target import CONTEXT_KEY, PLACE_KEY, ROOT_KEY
from xpk.cli.terminal.output import FORMATS
from xpk.model.errors import UsageError

Command = TypeVar("Command", bound=Callable[..., Any])


def output_option(command: Command) -> Command:
    """Add `-o`, so that it may also follow the command."""
    text = "Output format. [default: table]"
    return click.option("-o", "--output", type=click.Choice(FORMATS), help=text)(command)


def name_argument(what: str) -> Callable[[Command], Command]:
    """Add a name as NAME or, as Google's xpk does, as `--cluster NAME` or `--workload NAME`."""

    def decorate(command: Command) -> Command:
        known = {"cluster": complete.clusters, "workload": complete.workloads, "queue": complete.queues}.get(what)
        command = click.argument("name", required=False, shell_complete=known)(command)
        text = f"Name of the {what}; same as NAME."
        return click.option(f"--{what}", "name_flag", metavar="NAME", shell_complete=known, help=text)(command)

    return decorate


def names_argument(command: Command) -> Command:
    """Add names of workloads as NAME... or as `--workload NAME`, which may be repeated."""
    known = complete.workloads
    command = click.argument("given_names", nargs=-1, metavar="[NAME]...", shell_complete=known)(command)
    text, flags = "Name of a workload; same as NAME; may be repeated.", ("--workload", "name_flags")
    return click.option(*flags, multiple=True, metavar="NAME", shell_complete=known, help=text)(command)


def accelerator_option(text: str, *, name: str = "accelerator_type") -> Callable[[Command], Command]:
    """Add an accelerator type as the parameter `name`; `text` is the help."""
    return click.option(
        "--tpu-type", "--device-type", name, metavar="TYPE", shell_complete=complete.accelerator_types, help=text
    )


def cluster_option(command: Command) -> Command:
    """Add the options that name a cluster; `the_cluster` resolves them."""
    return _cluster_options(command, "Name of the cluster. [default: the only cluster]")


def optional_cluster_option(command: Command) -> Command:
    """Add the options that name a cluster, for commands that also work without one."""
    return _cluster_options(command, "Name of a cluster to include.")


def several_clusters_option(command: Command) -> Command:
    """Add the options that name a cluster; `named_or_all_clusters` resolves them."""
    return _cluster_options(command, "Name of the cluster. [default: all clusters]")


def all_namespaces_option(command: Command) -> Command:
    """Add `-A`."""
    text = "Include the workloads of all namespaces."
    return click.option("-A", "--all-namespaces", is_flag=True, help=text)(command)


def _cluster_options(command: Command, help: str) -> Command:
    def keep(ctx: click.Context, option: click.Parameter, value: str | None) -> None:
        if value:
            ctx.meta.setdefault(PLACE_KEY, {})[option.opts[0]] = value

    for flag, what in (("--zone", "zone of the nodes"), ("--project", "project of the cluster")):
        text = f"gke: {what}, if this machine does not know the cluster yet."
        command = click.option(flag, metavar=flag[2:].upper(), expose_value=False, callback=keep, help=text)(command)
    return click.option(
        "--cluster",
        metavar="CLUSTER",
        envvar="XPK_CLUSTER",
        show_envvar=True,
        shell_complete=complete.clusters,
        help=help,
    )(context_option(command))


def context_option(command: Command) -> Command:
    """Add a context of the user's kubeconfig instead of a cluster's name; `the_cluster` resolves it."""

    def keep(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
        ctx.meta[CONTEXT_KEY] = value

    return click.option(
        "--context",
        metavar="CONTEXT",
        expose_value=False,
        callback=keep,
        shell_complete=complete.contexts,
        help="Context of your kubeconfig, instead of a cluster's name.",
    )(command)


def namespace_option(command: Command) -> Command:
    """Add the namespace of a workload."""
    return click.option(
        "-n",
        "--namespace",
        default="default",
        show_default=True,
        envvar="XPK_NAMESPACE",
        show_envvar=True,
        shell_complete=complete.namespaces,
        help="Kubernetes namespace.",
    )(command)


def output_root_option(command: Command) -> Command:
    """Add the root of a workload's output if it is not the cluster's own; `output_roots` reads it."""

    def keep(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
        ctx.meta[ROOT_KEY] = value

    return click.option(
        "--output-root",
        metavar="OUTPUT_ROOT",
        envvar="XPK_OUTPUT_ROOT",
        show_envvar=True,
        expose_value=False,
        callback=keep,
        help="Output root that the workload was created with.",
    )(command)


def _provider_option(metavar: str, help: str, envvar: str | None = "XPK_PROVIDER") -> Callable[[Command], Command]:
    more: Any = {"envvar": envvar, "show_envvar": envvar is not None, "shell_complete": complete.providers}
    return click.option("--provider", metavar=metavar, help=help, **more)


def provider_option(command: Command) -> Command:
    """Add the provider of a cluster."""
    return _provider_option("PROVIDER", "Provider of the cluster: local, kind, gke or adapted.")(command)


def provider_filter_option(command: Command) -> Command:
    """Add the provider of listed clusters. A default for new clusters, from the environment, hides no cluster."""
    text = "Show only clusters of this provider: local, kind, gke or adapted. [default: all]"
    return _provider_option("PROVIDER", text, None)(command)


def maker_option(command: Command) -> Command:
    """Add the provider of a new cluster."""
    text = "Where slices run: this machine (local), Docker (kind) or Google Cloud (gke). [default: local]"
    return _provider_option("local|kind|gke", text)(command)


def the_name(what: str, name: str | None, name_flag: str | None) -> str:
    """Return the name from NAME or its flag. Raises UsageError for none or two."""
    if name and name_flag and name != name_flag:
        raise UsageError(f"two names for one {what}: '{name}' and '{name_flag}'", hint="pass one of them")
    chosen = name or name_flag
    if not chosen:
        path = click.get_current_context().command_path
        hint = f"run `xpk {what} list` to see the names"
        raise UsageError(f"no {what} given", hint=f"{path} NAME ..." if path.endswith(" create") else hint)
    return chosen


def is_typed(parameter: str) -> bool:
    """Return whether the user has typed an option of the present command, which may be its default value."""
    source = click.get_current_context().get_parameter_source(parameter)
    return source is click.core.ParameterSource.COMMANDLINE
