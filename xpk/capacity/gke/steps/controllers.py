"""Steps after a cluster's node pools: JobSet, Kueue, queues, ready hosts, with the code that all providers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from xpk.api.base import ObjectApi, Objs
from xpk.capacity.cluster_setup import autoprovisioned_in, is_set_up, judge_queues, record, recorded, set_up
from xpk.capacity.controllers import install
from xpk.capacity.gke.observed import gpudirect
from xpk.capacity.gke.observed.slices import guessed, limits_of
from xpk.capacity.gke.observed.state import is_there
from xpk.capacity.gke.request.options import GkeOptions
from xpk.capacity.nodes.health import lacking, wait_step
from xpk.capacity.plan.executor import Activity, Step
from xpk.capacity.queues.foreign import Judgment
from xpk.capacity.queues.reading import check_promised
from xpk.model import names
from xpk.model.accelerators import SliceShape
from xpk.model.errors import CapacityError, XpkError
from xpk.model.specs import ClusterSpec

Connect = Callable[[], ObjectApi]
Specs = Callable[[], list[ClusterSpec]]
Slices = Callable[[], Mapping[str, SliceShape]]

QUEUES = "queues"


def steps_for(
    name: str,
    planned: Sequence[ClusterSpec],
    request: GkeOptions,
    *,
    connect: Connect,
    specs: Specs,
    is_reachable: bool,
    after: Sequence[str],
    activity: Activity,
    poll: float,
    slices: Slices | None,
    data_networks: Sequence[gpudirect.Config] = (),
) -> list[Step]:
    """Return the steps that a cluster still needs to run workloads.

    `planned`: its slices after the plan.
    `specs`: called at the end, returns the slices that came up; the queues are for those.
    `slices`: types by node pool whose hosts are waited for; None waits for none.
    `data_networks`: of the slices' hosts.
    `is_reachable`: the cluster is reachable already.
    `after`: keys of the changes to the cluster (`cluster:`) and its pools (the rest).
    """
    api, nodes = _reached(connect) if is_reachable else (None, [])
    pause = activity.pause
    of_cluster = tuple(
        key for key in after if key.startswith(("create-cluster:", "update-cluster:")) or key == f"wait:{name}"
    )
    steps = _install_steps(name, request, api, _hosts(planned), connect, after=of_cluster, pause=pause)
    networks = tuple(key for key in after if key.startswith("create-network:"))
    steps += gpudirect.steps_for(
        api, planned, data_networks, connect=connect, after=(*of_cluster, *networks),
        manifests=request.gpudirect_manifests, pause=pause,
    )  # fmt: skip
    if planned and not any(spec.quota_slices for spec in planned):
        return steps  # only a default pool: the queue is created with the first slice
    data = record(api, planned, request, region=request.region)["data"] if api else None
    if api is None or not is_set_up(api, *planned) or recorded(api) != data:
        quota = ", ".join(f"{spec.quota} {spec.shape.resource} ({spec.shape.name})" for spec in planned)
        title = f"set up queue '{names.QUEUE}' with a quota of {quota or 'the slices that it has'}"
        needs_check = any(spec.queued or spec.super_slicing for spec in planned)
        title += " and an admission check that requests slices from GKE" if needs_check else ""
        before = (*after, *(step.key for step in steps))
        step = partial(_queue, connect, specs, request)
        then = f"# then: xpk cluster adapt {name} --provider gke --project {request.project} --zone {request.zone}"
        steps.append(Step(title, step, key=QUEUES, after=before, commands=(then,)))
    grows = any(key.startswith(("create-pool:", "wait:")) for key in after)
    if slices and (api is None or grows or lacking(slices(), nodes)):
        keys = (*after, *(step.key for step in steps))
        ready = wait_step(connect, name, slices, activity, pause=pause, poll=poll, after=keys)
        steps.append(replace(ready, may_fail=request.ignore_nodepool_creation_errors))
    return steps


def _install_steps(
    name: str,
    request: GkeOptions,
    api: ObjectApi | None,
    hosts: int,
    connect: Connect,
    *,
    after: Sequence[str],
    pause: install.Pause,
) -> list[Step]:
    """Return the steps that install the controllers, in sequence."""
    steps: list[Step] = []
    for controller in install.CONTROLLERS:
        missing = install.missing_step(api, controller, hosts=hosts) if api else install.title_of(controller)
        if missing:
            before = (*after, *(step.key for step in steps))
            act = partial(_install, connect, controller, hosts, request, pause)
            place = f"--project={request.project} --location={request.region}"
            reach = f"gcloud container clusters get-credentials {name} {place} --dns-endpoint"
            commands = (*([] if steps else [reach]), f"kubectl apply --server-side -f {controller.url}")
            steps.append(Step(missing, act, key=f"install:{controller.name}", after=before, commands=commands))
    return steps


def notes_for(
    connect: Connect, specs: Sequence[ClusterSpec], request: GkeOptions, *, is_reachable: bool
) -> tuple[str, ...]:
    """Return missing settings of controllers that xpk did not install. Raises ConflictError if `--fenced` needs one."""
    api, _ = _reached(connect) if is_reachable else (None, [])
    return install.notes_of(api, hosts=_hosts(specs), fenced=request.fenced) if api else ()


def judge_others(
    connect: Connect, specs: Sequence[ClusterSpec], request: GkeOptions, *, is_reachable: bool, ends: bool = False
) -> Judgment:
    """Judge the quota changes of queues that another tool made, for these slices."""
    api, _ = _reached(connect) if is_reachable else (None, [])
    return judge_queues(api, specs, take_over=request.take_over, ends=ends) if api else Judgment()


def autoprovisioned(connect: Connect, cluster: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the types that GKE autoprovisions, each with its capacity: as recorded, else guessed."""
    if cluster is None or not limits_of(cluster.get("autoscaling")):
        return {}
    if is_there(cluster):
        with suppress(XpkError):
            if types := autoprovisioned_in(recorded(connect())):
                return types
    return guessed(cluster)


def check_limits(connect: Connect, cluster: Mapping[str, Any] | None, specs: Sequence[ClusterSpec]) -> None:
    """Raise ConflictError if node autoprovisioning's limits were below the quota of the queues."""
    limited = [spec for spec in specs if spec.max_slices is not None] if is_there(cluster) else []
    api = _reached(connect)[0] if limited else None
    for spec in limited:
        if api:
            check_promised(api, spec.shape, spec.quota_slices, cluster=spec.name)


def _hosts(specs: Sequence[ClusterSpec]) -> int:
    return sum(spec.quota_hosts for spec in specs)


def _reached(connect: Connect) -> tuple[ObjectApi | None, Objs]:
    """Return the API server and its nodes; None if it does not answer: all steps are repeated then, harmlessly."""
    try:
        api = connect()
        return api, api.list("Node")
    except XpkError:
        return None, []


def _install(
    connect: Connect, controller: install.Controller, hosts: int, request: GkeOptions, pause: install.Pause
) -> None:
    install.install(
        connect(), controller, pinned=False, hosts=hosts, source=request.manifest_of(controller.name), pause=pause
    )


def _queue(connect: Connect, specs: Specs, request: GkeOptions) -> None:
    api, slices = connect(), specs()
    if not slices:
        raise CapacityError("no slice came up", hint="run the same command again, or choose other capacity")
    set_up(api, slices, take_over=request.take_over)
    api.apply(record(api, slices, request, region=request.region))
