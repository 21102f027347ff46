"""`xpk cluster adapt`: preparation of an existing cluster for workloads."""

from __future__ import annotations

from typing import Any

import click

from xpk.capacity.adapted.options import AdaptedOptions
from xpk.capacity.gke.request.options import GkeOptions
from xpk.capacity.kind.options import KindOptions
from xpk.capacity.plan.plan import Plan
from xpk.capacity.provider import check_free, load_provider, provider_names, provider_of
from xpk.cli.cluster.provider_options import chosen_provider, given_flags, located, provider_options, valid_options
from xpk.cli.cluster.run_plan import carry_out, dry_run_option, plan_output_option
from xpk.cli.google_xpk import AdaptCommand
from xpk.cli.options import accelerator_option, name_argument, the_name
from xpk.cli.terminal.output import Console
from xpk.model.accelerators import find_shape
from xpk.model.errors import UsageError
from xpk.model.options import options_of
from xpk.model.specs import ClusterSpec

_ADAPTED = "adapted"
# Options of clusters that xpk did not create; for its own clusters these values are known.
_OWN = ("context", "tpu_type", "emulated", "num_slices", "fenced", "take_over")
_OF_NODES = ("--context", "--tpu-type", "--emulated", "--num-slices")


@click.command(cls=AdaptCommand)
@name_argument("cluster")
@click.option("--context", metavar="CONTEXT", help="Context of your kubeconfig. [default: its current context]")
@accelerator_option("Use only slices of this accelerator type.", name="tpu_type")
@click.option("--emulated", is_flag=True, help="Use each node without accelerators as one slice.")
@click.option(
    "--num-slices", type=int, help="Number of slices; required with --emulated. [default: the existing slices]"
)
@click.option("--num-nodes", type=int, help="Number of hosts, for GPU and CPU types; each is a slice.")
@click.option(
    "--fenced/--no-fenced",
    default=None,
    help="Treat unreachable nodes as dead: delete their pods by force so that workloads restart on other slices.",
)
@click.option("--take-over", is_flag=True, help="Allow changes to the quota of queues that another tool manages.")
@click.option(
    "--provider", metavar="PROVIDER", help="Provider of the cluster; gke finds it by --project instead of --context."
)
@provider_options("adapt", AdaptedOptions, GkeOptions, KindOptions)
@dry_run_option
@plan_output_option
@click.pass_obj
def adapt(
    console: Console,
    /,
    name: str | None,
    name_flag: str | None,
    num_nodes: int | None,
    provider: str | None,
    dry_run: bool,
    output: str | None,
    **flags: Any,
) -> None:
    """Prepare an existing Kubernetes cluster: install JobSet and Kueue, and create a queue over its slices.

    Idempotent: a second run applies only differences. Your kubeconfig is read, never written. GKE clusters are found
    by --project, without a context; clusters created by xpk, by their name.
    """
    cluster_name = the_name("cluster", name, name_flag)
    kind = _provider_kind(cluster_name, provider, given_flags(flags))
    if kind not in _PLANS:
        load_provider(kind)  # raises for an unknown name
        raise UsageError(
            f"provider '{kind}' does not support `adapt`",
            hint=f"run `xpk cluster create {cluster_name} --provider {kind} ...` again; it completes missing parts",
        )
    check_free(cluster_name, kind)
    if num_nodes is not None:
        flags["num_slices"] = _counted(console, flags["num_slices"], num_nodes, flags["tpu_type"])
    plan = _PLANS[kind](cluster_name, flags)
    carry_out(
        console.choosing(output), plan, dry_run=dry_run, then=f"xpk workload create NAME --cluster {cluster_name}"
    )


def adapt_as_created(
    console: Console,
    names: tuple[str | None, str | None],
    tpu_type: str | None,
    counts: tuple[int | None, ...],
    flags: dict[str, Any],
    *,
    dry_run: bool,
) -> None:
    """Adapt a GKE cluster by the flags of `xpk cluster create`; its nodes exist, so no capacity is needed."""
    cluster_name = the_name("cluster", *names)
    check_free(cluster_name, "gke")
    others = {"tpu_type": tpu_type, "num_slices": next((count for count in counts if count is not None), None)}
    plan = _gke(cluster_name, {**flags, **others, "fenced": None, "take_over": False})
    carry_out(console, plan, dry_run=dry_run, then=f"xpk workload create NAME --cluster {cluster_name}")


def _counted(console: Console, num_slices: int | None, num_nodes: int, tpu_type: str | None) -> int | None:
    """Return the given number of slices: --num-nodes counts slices of GPU and CPU types, but hosts of TPU types."""
    shape = find_shape(tpu_type) if tpu_type else None
    if num_slices is None and shape and shape.kind != "tpu":
        return num_nodes
    if num_slices != num_nodes:
        console.warn("--num-nodes has no effect: it counts slices of GPU and CPU types only; use --num-slices")
    return num_slices


def _provider_kind(name: str, provider: str | None, flags: list[str]) -> str:
    """Return the provider to adapt a cluster with: the given one, or the one that knows the cluster."""
    of_cloud = [flag for flag in flags if flag != "--output-root"]  # other providers have it, too
    if provider or chosen_provider(None, of_cloud) == "gke":
        return provider or "gke"
    return next((kind for kind in provider_names() if name in load_provider(kind).names()), _ADAPTED)


def _adapted(name: str, flags: dict[str, Any]) -> Plan:
    from xpk.capacity.adapted.provider import AdaptedProvider  # the other commands do not need it
    from xpk.capacity.nodes.emulated import Adaptation

    options = valid_options(AdaptedProvider.name, _without(flags, *_OWN))
    adaptation = Adaptation(
        name=name,
        shape=find_shape(flags["tpu_type"]) if flags["tpu_type"] else None,
        output_root=options.output_root,
        trainer_image=options.trainer_image,
        **{name: flags[name] for name in _OWN if name != "tpu_type"},
    )
    return AdaptedProvider(options=options).plan_adapt(adaptation)


def _gke(name: str, flags: dict[str, Any]) -> Plan:
    from xpk.capacity.gke.provider import GkeProvider

    own_flags = ("fenced", "take_over", "tpu_type", "num_slices")
    others = _without(flags, *own_flags)
    _check_known(name, GkeProvider.name, GkeProvider.options_type, others)
    options = located(valid_options(GkeProvider.name, _without(others, *_OWN)), flags, name)
    shape, count = find_shape(flags["tpu_type"]) if flags["tpu_type"] else None, flags["num_slices"]
    return GkeProvider(options=options).plan_adapt(
        name,
        fenced=flags["fenced"],
        take_over=flags["take_over"],
        stated=ClusterSpec(name=name, shape=shape, num_slices=count or 1) if shape else None,
        counted=count is not None,
    )


def _kind(name: str, flags: dict[str, Any]) -> Plan:
    from xpk.capacity.kind.provider import KindProvider

    _check_known(name, KindProvider.name, KindProvider.options_type, flags)
    return KindProvider(options=valid_options(KindProvider.name, _without(flags, *_OWN))).plan_adapt(name)


def _local(name: str, flags: dict[str, Any]) -> Plan:
    from xpk.capacity.local.provider import LocalProvider

    provider_of(name, LocalProvider.name)  # raises for an unknown name
    _check_known(name, LocalProvider.name, LocalProvider.options_type, flags)
    return Plan(f"cluster '{name}' runs as processes of this machine; there is nothing to install")


def _check_known(name: str, provider: str, options_type: type[Any], flags: dict[str, Any]) -> None:
    """Raise UsageError for flags that do not fit a cluster that xpk created."""
    flags_given = given_flags(_without(flags, "fenced"))
    if flags.get("fenced") is not None:
        flags_given.append("--fenced" if flags["fenced"] else "--no-fenced")
    supported = {option.flag for _, option in options_of(options_type)}
    if unsupported := [flag for flag in flags_given if flag in _OF_NODES or flag not in supported]:
        raise UsageError(
            f"cluster '{name}' is of provider '{provider}', which does not support {', '.join(unsupported)}",
            hint="omit these flags; another cluster needs another name",
        )


def _without(flags: dict[str, Any], *names: str) -> dict[str, Any]:
    return {flag: value for flag, value in flags.items() if flag not in names}


_PLANS = {_ADAPTED: _adapted, "gke": _gke, "kind": _kind, "local": _local}
