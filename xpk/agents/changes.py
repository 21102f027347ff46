"""Changes that an agent may plan: what each would do, as data to compare, and how it is carried out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from xpk import client
from xpk.agents import arguments
from xpk.agents.reads import HANDLE, PLACE, handle
from xpk.agents.tool import canonical
from xpk.capacity.gke.request.options import GkeOptions
from xpk.capacity.kind.options import KindOptions
from xpk.capacity.plan.plan import Plan
from xpk.client import Cluster, WorkloadHandle
from xpk.cost import price
from xpk.jobs.create.notice import Notice
from xpk.jobs.create.submit import preview
from xpk.jobs.create.workload import Workload
from xpk.model.errors import ConflictError, UsageError

Values = dict[str, Any]
Report = Callable[[Notice], None]


@dataclass(frozen=True, slots=True)
class Change:
    """A change: `plan` returns its effect without changing anything, `carry_out` makes it and returns its result."""

    name: str
    documented: Callable[..., Any]
    place: arguments.Fields
    plan: Callable[[Values], Any]
    carry_out: Callable[[Values, Report], Any]
    fields: arguments.Fields | None = None


def _effect_of(plan: Plan) -> Values:
    if plan.lacking:
        raise UsageError(plan.lacking[0], problems=plan.lacking)
    if plan.refusal:
        raise plan.refusal
    return {"summary": plan.summary, "steps": [step.title for step in plan.steps], "notes": list(plan.notes)}


def _cluster_arguments(values: Values) -> Values:
    """Return the arguments of `create_cluster`, with the options of at most one provider."""
    options = {kind: fields for kind in _OPTIONS if (fields := values.pop(f"{kind}_options")) is not None}
    if len(options) > 1:
        raise UsageError(f"pass only one of {' and '.join(f'{kind}_options' for kind in options)}")
    made = [_OPTIONS[kind](**fields) for kind, fields in options.items()]
    return values | {"options": made[0] if made else None}


def _plan_create_cluster(values: Values) -> Any:
    return _effect_of(client.create_cluster(**_cluster_arguments(values), dry_run=True))


def _create_cluster(values: Values, report: Report) -> Any:
    return client.create_cluster(**_cluster_arguments(values), on_progress=report).summary


def _planner(method: Callable[..., Plan]) -> Callable[[Values], Any]:
    return lambda values: _effect_of(method(Cluster(values.pop("cluster")), **values, dry_run=True))


def _runner(method: Callable[..., Plan]) -> Callable[[Values, Report], Any]:
    return lambda values, report: method(Cluster(values.pop("cluster")), **values, on_progress=report).summary


def _plan_create_workload(values: Values) -> Any:
    cluster, workload = Cluster(values.pop("cluster")), Workload(**values)
    notes: list[str] = []
    planned = preview(
        workload, client.destination_of(cluster, workload), report=lambda n: notes.append(n.text), price=price
    )
    digest = hashlib.sha256(canonical(planned.objects).encode()).hexdigest()
    spec = planned.spec
    size = f"{spec.num_slices} x {spec.shape.name}, {spec.num_slices * spec.shape.hosts} hosts"
    return {
        "summary": f"workload '{spec.name}' of {size} in the queue '{spec.queue}', priority {spec.priority}",
        "command": list(spec.command),
        "image": spec.image,
        "output": spec.output_dir,
        "cost": planned.cost,
        "objects": [f"{one['kind']} {one['metadata']['name']}" for one in planned.objects],
        "sha256_of_objects": digest,
        "notes": notes,
    }


def _create_workload(values: Values, report: Report) -> Any:
    Cluster(values.pop("cluster")).submit(Workload(**values), on_progress=report)
    return f"workload '{values['name']}' is created"


def _plan_delete_workloads(values: Values) -> Any:
    cluster, names = Cluster(values.pop("cluster")), values.pop("workloads")
    notes: list[str] = []
    planned = cluster.delete_workloads(*names, **values, dry_run=True, on_progress=lambda n: notes.append(n.text))
    made = cluster.api.list("JobSet", values["namespace"])
    uids = {one["metadata"]["name"]: one["metadata"].get("uid") for one in made}
    return {
        "summary": f"{len(planned)} workloads are deleted",
        # A uid, so that a plan is not applied to a later workload of the name.
        "workloads": [
            {"name": one.name, "uid": uids.get(one.name), "deleted_output": one.output_dir} for one in planned
        ],
        "notes": notes,
    }


def _delete_workloads(values: Values, report: Report) -> Any:
    names = values.pop("workloads")
    return Cluster(values.pop("cluster")).delete_workloads(*names, **values, on_progress=report)


def _plan_activity(verb: str) -> Callable[[Values], Any]:
    def plan(values: Values) -> Any:
        workload = handle(values)
        status = workload.status()
        if status.phase.is_final:
            raise ConflictError(f"workload '{status.name}' has ended", hint="`workload_status` shows how")
        made = workload.cluster.api.get("JobSet", workload.name, workload.namespace)
        return {"summary": f"{verb} workload '{status.name}'", "uid": made["metadata"].get("uid")}

    return plan


def _activity(method: Callable[[WorkloadHandle], None]) -> Callable[[Values, Report], Any]:
    return lambda values, report: method(handle(values))


_OPTIONS: dict[str, Callable[..., Any]] = {"gke": GkeOptions, "kind": KindOptions}
_CLUSTER_FIELDS: arguments.Fields = {
    **arguments.of_function(client.create_cluster),
    **{
        f"{kind}_options": (arguments.model(f"{kind}_options", arguments.of_dataclass(options)) | None, None)  # type: ignore[arg-type]
        for kind, options in _OPTIONS.items()
    },
}

CHANGES = (
    Change("create_cluster", client.create_cluster, {}, _plan_create_cluster, _create_cluster, _CLUSTER_FIELDS),
    Change("resize_cluster", Cluster.resize, PLACE, _planner(Cluster.resize), _runner(Cluster.resize)),
    Change("delete_cluster", Cluster.delete, PLACE, _planner(Cluster.delete), _runner(Cluster.delete)),
    Change(
        "create_workload",
        Cluster.submit,
        PLACE,
        _plan_create_workload,
        _create_workload,
        arguments.of_dataclass(Workload),
    ),
    Change("delete_workloads", Cluster.delete_workloads, PLACE, _plan_delete_workloads, _delete_workloads),
    Change(
        "suspend_workload", WorkloadHandle.suspend, HANDLE, _plan_activity("suspend"), _activity(WorkloadHandle.suspend)
    ),
    Change(
        "resume_workload", WorkloadHandle.resume, HANDLE, _plan_activity("resume"), _activity(WorkloadHandle.resume)
    ),
)
