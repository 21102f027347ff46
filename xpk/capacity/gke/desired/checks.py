"""Validation of a cluster request that needs no cloud access. Pure."""

from __future__ import annotations

from dataclasses import replace

from xpk.capacity.gke.desired import limits
from xpk.capacity.gke.desired.networks import data_networks
from xpk.capacity.gke.request.gcloud_arguments import unknown_arguments
from xpk.capacity.gke.request.option_problems import option_problems
from xpk.capacity.gke.request.options import GkeOptions
from xpk.model import names
from xpk.model.errors import UsageError
from xpk.model.specs import ClusterSpec

_SLICE_CONTROLLER = "install Kueue's slice controller yourself, without which no slice is formed: `xpk docs gke`"
_NAME_LENGTH = 63  # of Compute Engine's resources


def fitted(spec: ClusterSpec, request: GkeOptions) -> ClusterSpec:
    """Return the requested slices with the options of GKE flags."""
    most = (
        request.autoprovisioning_max_chips // spec.shape.chips
        if request.enable_autoprovisioning and request.autoprovisioning_max_chips
        else None
    )
    return replace(
        spec,
        sub_slicing=request.sub_slicing,
        super_slicing=request.super_slicing,
        queued=request.queued_provisioning,
        max_slices=most,
    )


def with_room(spec: ClusterSpec, request: GkeOptions) -> GkeOptions:
    """Return a request whose chip limit includes the requested slices: GKE adds none beyond the limit."""
    if request.autoprovisioning_max_chips is None:
        return request
    return replace(
        request,
        autoprovisioning_max_chips=max(request.autoprovisioning_max_chips, max(1, spec.num_slices) * spec.shape.chips),
    )


def warnings(original: GkeOptions, request: GkeOptions) -> tuple[str, ...]:
    """Return how the plan deviates from `original`, and what it leaves to you, one line each."""
    notes = (_SLICE_CONTROLLER,) if request.super_slicing else ()
    before, now = original.autoprovisioning_max_chips, request.autoprovisioning_max_chips
    if before == now:
        return notes
    most = f"raised from {before} to {now} chips, those of the slices"
    return (*notes, f"warning: --autoprovisioning-max-chips {most}: GKE adds no slices beyond that")


def lacks(request: GkeOptions) -> list[str]:
    """Return requirements for carrying a plan out, but not for showing it, one line each."""
    problems = []
    if request.capacity is None:
        problems.append("no capacity given: pass one of --on-demand, --spot, --flex, --reservation R")
    problems += [
        f"--super-slicing requires a block: --reservation {reservation}/reservationBlocks/B"
        for reservation in request.reservation
        if request.super_slicing and "/reservationBlocks/" not in reservation
    ]
    return [*problems, *unknown_arguments(request.custom_cluster_arguments, request.custom_pool)]


def check(spec: ClusterSpec | None, request: GkeOptions, *, lenient: bool = False) -> None:
    """Raise UsageError with all problems of a request and of the slices.

    Without `spec`, as for an unknown type, only the request is checked. `lenient`: see `Checks.check_create`.
    """
    problems = option_problems(request)
    if not lenient:
        problems += lacks(request)
    if spec:
        # A cluster without slices has only its default pool; slices can be added later.
        empty = not spec.num_slices and spec.shape.kind == "cpu"
        sized = fitted(replace(spec, num_slices=1) if empty else spec, with_room(spec, request))
        problems += [*sized.problems(), *_name_problems(spec, request)]
    if spec and request.enable_autoprovisioning:
        problems += _limit_problems(request)
    if problems:
        what = f"cluster '{spec.name}'" if spec else "the cluster"
        raise UsageError(f"{what} cannot be created", problems=problems, hint="see `xpk cluster create --help`")


def _name_problems(spec: ClusterSpec, request: GkeOptions) -> list[str]:
    """Return names derived from the cluster's that are too long, one line each."""
    problems = []
    longest = len(names.node_pool_name(spec.name, max(0, spec.num_slices - 1)))
    if longest > limits.NAME_LENGTH:
        problems.append(
            f"node pool name {spec.name}-np-{spec.num_slices - 1} has {longest} characters, GKE allows "
            f"{limits.NAME_LENGTH}; choose a shorter cluster name"
        )
    for network in data_networks(spec.name, request.region, spec.shape, spec.num_slices):
        if len(network.subnetwork) > _NAME_LENGTH:
            problems.append(f"subnetwork name {network.subnetwork}: Compute Engine allows {_NAME_LENGTH} characters")
            break
    return problems


def _limit_problems(request: GkeOptions) -> list[str]:
    """Return conflicts with node autoprovisioning, one line each."""
    problems = []
    for flag, is_given in (("--sub-slicing", request.sub_slicing), ("--super-slicing", request.super_slicing)):
        if is_given:
            problems.append(f"{flag} and --enable-autoprovisioning exclude each other: GKE adds whole slices only")
    if len(request.reservation) > 1:
        problems.append("--enable-autoprovisioning allows only one --reservation, which GKE uses for new slices")
    return problems
