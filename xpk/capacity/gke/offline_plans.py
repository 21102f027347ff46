"""Plans for clusters that are not observed, for lack of credentials; used by dry runs."""

from __future__ import annotations

from collections.abc import Sequence

from xpk.capacity.gke.observed import Observed
from xpk.capacity.gke.option_lines import option_lines
from xpk.capacity.gke.reach import ClusterLocation
from xpk.capacity.gke.request import Request
from xpk.capacity.plan.plan import Plan, Step
from xpk.model.errors import AuthorizationError
from xpk.model.specs import ClusterSpec

NOTHING = Observed(guess=True)
CREATED = "no Google Cloud credentials found: this plan assumes an empty project, and quotas are unknown"
_ADAPTED = "no Google Cloud credentials found: this plan assumes that nothing is installed there"
_DELETED = "no Google Cloud credentials found: this plan assumes that the cluster exists and runs no workloads"


def place_of(request: Request) -> ClusterLocation:
    """Return a cluster's location from the given project and zone."""
    return ClusterLocation(project=request.project, location=request.region, zone=request.zone)


def adaptation(
    name: str, request: Request, specs: Sequence[ClusterSpec], steps: Sequence[Step], why: AuthorizationError
) -> Plan:
    """Return the plan of adapting a cluster."""
    there = ", ".join(f"{spec.num_slices} x {spec.shape.name}" for spec in specs) or "the slices that it has"
    return _unseen(f"cluster '{name}' in {request.region}: {there}", steps, _ADAPTED, why, option_lines(request, {}))


def deletion(name: str, place: ClusterLocation, steps: Sequence[Step], why: AuthorizationError) -> Plan:
    """Return the plan of deleting a cluster."""
    return _unseen(f"delete cluster '{name}' in {place.location} of project {place.project}", steps, _DELETED, why)


def _unseen(summary: str, steps: Sequence[Step], note: str, why: AuthorizationError, asked: Sequence[str] = ()) -> Plan:
    return Plan(summary, list(steps), notes=(note, *asked), facts={"guess": True}, refusal=why)
