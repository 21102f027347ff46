"""Plans for clusters that are not observed, for lack of credentials; used by dry runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from xpk.capacity.gke.api_access import ClusterLocation
from xpk.capacity.gke.observed.state import Observed
from xpk.capacity.gke.request.option_lines import option_lines
from xpk.capacity.gke.request.options import GkeOptions
from xpk.capacity.plan.plan import Plan, Step
from xpk.model.accelerators import find_shape
from xpk.model.errors import AuthorizationError
from xpk.model.specs import ClusterSpec

NOTHING = Observed(guess=True)
CREATED = "no Google Cloud credentials found: this plan assumes an empty project, and quotas are unknown"
_ADAPTED = "no Google Cloud credentials found: this plan assumes that nothing is installed there"
_RESIZED = "no Google Cloud credentials found: the existing slices, limits and quotas are unknown"
_DELETED = "no Google Cloud credentials found: this plan assumes that the cluster exists and runs no workloads"


def place_of(request: GkeOptions) -> ClusterLocation:
    """Return a cluster's location from the given project and zone."""
    return ClusterLocation(project=request.project, location=request.region, zone=request.zone)


def adaptation(
    name: str, request: GkeOptions, specs: Sequence[ClusterSpec], steps: Sequence[Step], why: AuthorizationError
) -> Plan:
    """Return the plan of adapting a cluster."""
    slices = ", ".join(f"{spec.num_slices} x {spec.shape.name}" for spec in specs) or "the slices that it has"
    return _unseen(f"cluster '{name}' in {request.region}: {slices}", steps, _ADAPTED, why, option_lines(request, {}))


def resizing(
    name: str, place: ClusterLocation | None, num_slices: int, request: GkeOptions, why: AuthorizationError
) -> Plan:
    """Return the plan of another number of slices, without the node pools that it creates or deletes."""
    kind = f" of {find_shape(request.tpu_type).name}" if request.tpu_type else ""
    place = place or place_of(request)
    where = f"--cluster={name} --project={place.project} --location={place.location}"
    step = Step(
        f"create or delete node pools until there are {num_slices} slices{kind}",
        partial(_refuse, why),
        key="resize",
        commands=(f"gcloud container node-pools list {where}", "# then create or delete the difference"),
    )
    queue = Step("set the quota of its queue to these slices", partial(_refuse, why), key="queues", after=("resize",))
    return _unseen(f"cluster '{name}' in {place.location}: {num_slices} slices{kind}", [step, queue], _RESIZED, why)


def deletion(name: str, place: ClusterLocation, steps: Sequence[Step], why: AuthorizationError) -> Plan:
    """Return the plan of deleting a cluster."""
    return _unseen(f"delete cluster '{name}' in {place.location} of project {place.project}", steps, _DELETED, why)


def _refuse(why: AuthorizationError) -> None:
    raise why


def _unseen(
    summary: str, steps: Sequence[Step], note: str, why: AuthorizationError, option_texts: Sequence[str] = ()
) -> Plan:
    return Plan(summary, list(steps), notes=(note, *option_texts), facts={"guess": True}, refusal=why)
