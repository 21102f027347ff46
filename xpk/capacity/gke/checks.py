"""What is wrong with a cluster that is asked for, whatever there is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from xpk.capacity.gke import limits
from xpk.capacity.gke.networks import data_networks
from xpk.capacity.gke.request import Request, parse_request
from xpk.model import names
from xpk.model.errors import UsageError
from xpk.model.specs import ClusterSpec

_NAME_LENGTH = 63  # of Compute Engine's resources


def fitted(spec: ClusterSpec, request: Request) -> ClusterSpec:
    """Return the slices that are asked for with what flags of GKE say of them."""
    most = request.max_chips // spec.shape.chips if request.autoprovisioning and request.max_chips else None
    return replace(spec, sub_slicing=request.sub_slicing, queued=request.queued, max_slices=most)


def check(spec: ClusterSpec | None, environ: Mapping[str, str]) -> Request:
    """Return what flags and variables ask for. Raises UsageError with all that is wrong with that and the slices.

    Without `spec`, as for a type that nobody knows, only what flags and variables say is looked at.
    """
    request, problems = parse_request(environ)
    if request.capacity is None:
        problems.append("which capacity? one of --on-demand, --spot, --flex, --reservation R")
    if spec:
        problems += [*fitted(spec, request).problems(), *_name_problems(spec, request)]
    if spec and request.autoprovisioning:
        problems += _limit_problems(spec, request)
    if problems:
        what = f"cluster '{spec.name}'" if spec else "the cluster"
        raise UsageError(f"{what} cannot be created", problems=problems, hint="see `xpk cluster create --help`")
    return request


def _name_problems(spec: ClusterSpec, request: Request) -> list[str]:
    """Return which names of what is made for a cluster are too long, one line each."""
    found = []
    longest = len(names.node_pool_name(spec.name, max(0, spec.num_slices - 1)))
    if longest > limits.NAME_LENGTH:
        found.append(
            f"node pools are called {spec.name}-np-{spec.num_slices - 1}: {longest} characters, GKE takes "
            f"{limits.NAME_LENGTH}; a shorter name for the cluster"
        )
    for each in data_networks(spec.name, request.region, spec.shape, spec.num_slices):
        if len(each.subnetwork) > _NAME_LENGTH:
            found.append(f"subnetworks are called {each.subnetwork}: Compute Engine takes {_NAME_LENGTH} characters")
            break
    return found


def _limit_problems(spec: ClusterSpec, request: Request) -> list[str]:
    """Return what is wrong with the limits of node autoprovisioning for these slices, one line each."""
    found, chips = [], spec.num_slices * spec.shape.chips
    if request.sub_slicing:
        found.append("--sub-slicing and --enable-autoprovisioning exclude each other: GKE makes whole slices")
    if len(request.reservations) > 1:
        found.append("--enable-autoprovisioning takes one --reservation: what GKE adds is of that")
    if request.max_chips is not None and request.max_chips < max(chips, spec.shape.chips):
        found.append(
            f"--autoprovisioning-max-chips {request.max_chips} counts all slices: {max(1, spec.num_slices)} of "
            f"{spec.shape.name} have {max(chips, spec.shape.chips)} chips"
        )
    return found
