"""Health of slices: whether hosts are registered, ready, schedulable, with all their chips, and not about to end."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from xpk.api.base import Obj, ObjectApi, Objs
from xpk.api.quantities import quantity
from xpk.api.text import short
from xpk.capacity.nodes import conditions as conditions_of_nodes
from xpk.capacity.nodes import out_of_service as marks
from xpk.capacity.nodes import quarantine
from xpk.capacity.nodes.cordon import is_marked
from xpk.capacity.nodes.inventory import in_slices, is_ready, pool_order, pools_of, shape_of
from xpk.capacity.plan.executor import Activity, Step
from xpk.capacity.provider import ClusterInfo
from xpk.model import names
from xpk.model.accelerators import SliceShape, find_shape
from xpk.model.errors import TimedOutError, XpkError

TITLE = "wait until all hosts are ready and offer their chips"
_HOSTS_SECONDS, _POLL_SECONDS = 900.0, 5.0

# Conditions of the kubelet, and of node problem detectors.
_BLOCKING = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable", *conditions_of_nodes.PROBLEMS)
_WARNING = conditions_of_nodes.WARNINGS
# Taints that duplicate conditions and `unschedulable`.
_TOLD_OTHERWISE = (
    *("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", "node.kubernetes.io/unschedulable"),
    *("node.kubernetes.io/memory-pressure", "node.kubernetes.io/disk-pressure", "node.kubernetes.io/pid-pressure"),
    "node.kubernetes.io/network-unavailable",
)
# https://cloud.google.com/kubernetes-engine/docs/concepts/handle-disruption-gpu-tpu
_TERMINATION_TAINT = "cloud.google.com/impending-node-termination"
_MAINTENANCE_LABEL = "cloud.google.com/active-node-maintenance"
_SECONDS = re.compile(r"[0-9]{1,11}")
_SCHEDULED_LABEL = "cloud.google.com/scheduled-maintenance-time"  # seconds since 1970
_PLUGINS = {"google.com/tpu": "tpu-device-plugin", "nvidia.com/gpu": "nvidia-gpu-device-plugin"}  # label k8s-app


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTrouble:
    """A present or coming problem of a host."""

    node: str  # name of the node; empty if it does not exist
    reason: str  # reason in one word
    message: str  # details
    since: str | None = None  # time at which it began
    blocks: bool = True  # whether workloads cannot start there


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceHealth:
    """One slice: its expected and its ready hosts, its expected and its advertised chips."""

    node_pool: str  # name of its node pool
    accelerator_type: str  # accelerator type; unknown if its nodes do not show it
    hosts: int  # number of expected hosts
    hosts_ready: int  # number of ready hosts
    chips: int  # number of expected chips
    chips_offered: int  # number of chips that nodes advertise
    workload: str | None = None  # workload on the slice; null if it is free
    spare: bool = False  # whether it is outside of all quotas
    troubles: tuple[HostTrouble, ...] = ()  # problems of its hosts

    @property
    def is_up(self) -> bool:
        """Return whether all hosts are ready and offer all chips, whether or not this user may use them."""
        return self.hosts_ready >= self.hosts and self.chips_offered >= self.chips

    @property
    def is_usable(self) -> bool:
        """Return whether a workload can start on it now, or could if it were free."""
        return self.is_up and not any(trouble.blocks for trouble in self.troubles)

    @property
    def state(self) -> str:
        """Return `Ready`, or the reason why it is not."""
        blocking = [trouble.reason for trouble in self.troubles if trouble.blocks]
        return "Ready" if self.is_usable else blocking[0] if blocking else "NotReady"


def health_of(api: ObjectApi, info: ClusterInfo) -> list[SliceHealth]:
    """Return the health of a cluster's slices, in order, including those without nodes."""
    pools, slices, plugins = _by_pool(api.list("Node")), {item.node_pool: item for item in info.slices}, _Plugins(api)
    healths = []
    for pool in sorted({*pools, *slices}, key=pool_order):
        nodes, item = pools.get(pool, []), slices.get(pool)
        shape = _type_of(nodes, item.accelerator_type if item else "")
        if item and not item.hosts and not nodes:
            healths.append(_empty(pool, shape))
        else:
            healths.append(slice_health(pool, shape, nodes, workload=item.workload if item else None, plugins=plugins))
    return healths


def _empty(pool: str, shape: SliceShape | None) -> SliceHealth:
    """Return a slice whose nodes are created when a workload requests them."""
    trouble = HostTrouble(
        node="", reason="NotProvisioned", message="its nodes are created for a workload", blocks=False
    )
    kind = shape.name if shape else "unknown"
    return SliceHealth(
        node_pool=pool, accelerator_type=kind, hosts=0, hosts_ready=0, chips=0, chips_offered=0, troubles=(trouble,)
    )


def lacking(expected: Mapping[str, SliceShape], nodes: Objs) -> list[SliceHealth]:
    """Return the slices whose hosts are not all ready with all their chips. `expected`: types, by node pool."""
    pools = _by_pool(nodes)
    slices = [slice_health(pool, shape, pools.get(pool, [])) for pool, shape in expected.items()]
    return [health for health in slices if not health.is_up]


def wait_step(
    connect: Callable[[], ObjectApi],
    cluster: str,
    expected: Callable[[], Mapping[str, SliceShape]],
    activity: Activity,
    *,
    pause: Callable[[float], None],
    poll: float = _POLL_SECONDS,
    after: tuple[str, ...] = (),
) -> Step:
    """Return the step that waits until hosts are ready; it raises TimedOutError that names those that are not.

    `expected`: the types of ready slices, by node pool. `poll`: polling interval in seconds.
    """

    def act() -> None:
        api, types, waited = connect(), expected(), 0.0
        try:
            while late := lacking(types, api.list("Node")):
                ready = len(types) - len(late)
                activity.update(
                    TITLE, f"{ready} of {len(types)} slices, {waited:.0f} s; {late[0].node_pool}: {_why(late[0])}"
                )
                if waited >= _HOSTS_SECONDS:
                    raise TimedOutError(
                        f"{len(late)} of {len(types)} slices are not ready after {_HOSTS_SECONDS:.0f} s; "
                        f"{late[0].node_pool}: {_why(late[0])}",
                        hint=f"`xpk cluster health {cluster}` shows each slice; the others accept workloads already",
                    )
                pause(poll)
                waited += poll
        finally:
            activity.clear(TITLE)

    return Step(TITLE, act, key="hosts", after=after)


def slice_health(
    pool: str,
    shape: SliceShape | None,
    nodes: Objs,
    *,
    workload: str | None = None,
    plugins: _Plugins | None = None,
) -> SliceHealth:
    """Return the health of one slice; of an unknown type, the existing hosts are the expected ones."""
    counted = shape if shape and shape.kind != "cpu" else None  # part of the CPUs is reserved
    hosts_of = {str(node["metadata"]["name"]): _hosts_of(node, counted) for node in nodes}
    hosts, come, offered = shape.hosts if shape else len(nodes), sum(hosts_of.values()), 0
    troubles = list[HostTrouble]()
    if come < hosts:
        troubles.append(HostTrouble(node="", reason="Missing", message=f"{hosts - come} hosts have not come up"))
    for node in nodes:
        troubles += _troubles_of(node, shape)
        if counted:
            units, has = hosts_of[node["metadata"]["name"]] * counted.resource_per_host, _amount(node, counted)
            offered += has
            if is_ready(node) and has < units:
                troubles.append(_no_chips(node, counted, has, units, plugins))
    return SliceHealth(
        node_pool=pool,
        accelerator_type=shape.name if shape else "unknown",
        hosts=hosts,
        hosts_ready=sum(hosts_of[node["metadata"]["name"]] for node in nodes if is_ready(node)),
        chips=hosts * counted.resource_per_host if counted else 0,
        chips_offered=offered,
        workload=workload,
        spare=any(names.SPARE_LABEL in node["metadata"]["labels"] for node in nodes),
        troubles=tuple(troubles),
    )


class _Plugins:
    """The device plugins' pods, which are listed only if chips are missing."""

    def __init__(self, api: ObjectApi) -> None:
        self._api = api
        self._pods: dict[str, dict[str, Obj]] = {}

    def on(self, node: str, resource: str) -> str:
        """Return the state of the plugin that offers a resource on a node; "" if it is healthy or unknown."""
        if resource not in self._pods:
            self._pods[resource] = {}
            with suppress(XpkError):  # some users may not list pods of the system's namespace
                daemon_pods = self._api.list("Pod", "kube-system", {"k8s-app": _PLUGINS[resource]})
                self._pods[resource] = {str(pod["spec"].get("nodeName")): pod for pod in daemon_pods}
        pods = self._pods[resource]
        if node not in pods:
            return f"no {_PLUGINS[resource]} runs on it" if pods else ""
        status = pods[node].get("status", {})
        states = [item.get("state", {}).get("waiting", {}) for item in status.get("containerStatuses") or []]
        waiting = next((str(state["reason"]) for state in states if state.get("reason")), "")
        name, phase = pods[node]["metadata"]["name"], str(status.get("phase", "Pending"))
        return "" if phase == "Running" and not waiting else f"{name}: {waiting or phase}"


def _by_pool(nodes: Objs) -> dict[str, Objs]:
    here = in_slices(nodes)
    return pools_of(here) | pools_of(here, spare=True)


def _type_of(nodes: Objs, fallback: str) -> SliceShape | None:
    """Return the type of a slice: from its nodes, else from its cloud."""
    recorded = next((shape for node in nodes if (shape := shape_of(node))), None)
    return recorded or (find_shape(fallback) if fallback else None)


def _hosts_of(node: Obj, shape: SliceShape | None) -> int:
    """Return the number of hosts on a node: several if it emulates accelerators."""
    return max(1, _amount(node, shape, "capacity") // shape.resource_per_host) if shape else 1


def _amount(node: Obj, shape: SliceShape, of: str = "allocatable") -> int:
    """Return the allocatable chips of a node."""
    return int(quantity(node["status"].get(of, {}).get(shape.resource, 0)))


def _troubles_of(node: Obj, shape: SliceShape | None) -> Iterator[HostTrouble]:
    name, labels = str(node["metadata"]["name"]), node["metadata"]["labels"]
    conditions = {item["type"]: item for item in node["status"].get("conditions", [])}
    taints = {taint["key"]: taint for taint in node["spec"].get("taints") or []}

    def trouble(reason: str, message: str, since: str | None = None, *, blocks: bool = True) -> HostTrouble:
        return HostTrouble(node=name, reason=reason, message=short(message), since=since, blocks=blocks)

    if not is_ready(node):
        ready = conditions.get("Ready", {})
        words = ": ".join(filter(None, (str(ready.get("reason", "")), str(ready.get("message", "")))))
        yield trouble("NotReady", words, ready.get("lastTransitionTime"))
    for kind in (*_BLOCKING, *_WARNING):
        item = conditions.get(kind, {})
        if item.get("status") == "True":
            yield trouble(kind, item.get("message", ""), item.get("lastTransitionTime"), blocks=kind in _BLOCKING)
    if node["spec"].get("unschedulable"):
        since = taints.get("node.kubernetes.io/unschedulable", {}).get("timeAdded")
        cordon_advice = (
            "cordoned by `xpk cluster resize` or `delete`: run that command again" if is_marked(node) else ""
        )
        yield trouble("Cordoned", cordon_advice or f"run `kubectl uncordon {name}`", since)
    if (reason := marks.reason_of(node)) is not None:
        message = f"{reason}; `xpk cluster fence` releases it when its kubelet is back"
        yield trouble("Fenced", message, taints[marks.TAINT].get("timeAdded"))
    if (kept := quarantine.quarantine_of(node)) is not None:
        message = f"{kept.reason}; `xpk node return {name}` returns it to service"
        yield trouble("Quarantined", message, kept.since or None)
    if _TERMINATION_TAINT in taints:
        yield trouble(
            "Terminating", "its machine is about to be terminated", taints[_TERMINATION_TAINT].get("timeAdded")
        )
    if labels.get(_MAINTENANCE_LABEL) == "ONGOING":
        yield trouble("Maintenance", "its host is under maintenance")
    elif _SECONDS.fullmatch(labels.get(_SCHEDULED_LABEL, "")):
        when = datetime.fromtimestamp(int(labels[_SCHEDULED_LABEL]), UTC)
        yield trouble("MaintenanceScheduled", f"its host is terminated at {when:%Y-%m-%dT%H:%M}Z", blocks=False)
    known = {
        *_TOLD_OTHERWISE,
        _TERMINATION_TAINT,
        quarantine.TAINT,
        shape.resource if shape else "",
        marks.TAINT if reason else "",
    }
    for key, taint in taints.items():
        if key not in known and taint.get("effect") in ("NoSchedule", "NoExecute"):
            yield trouble("Tainted", f"{key}={taint.get('value', '')}:{taint['effect']}", taint.get("timeAdded"))


def _no_chips(node: Obj, shape: SliceShape, has: int, units: int, plugins: _Plugins | None) -> HostTrouble:
    name = str(node["metadata"]["name"])
    state = plugins.on(name, shape.resource) if plugins and shape.resource in _PLUGINS else ""
    message = f"offers {has} of {units} {shape.resource}" + (f"; {state}" if state else "")
    return HostTrouble(node=name, reason="ChipsMissing", message=message)


def _why(late: SliceHealth) -> str:
    """Return the first reason why a slice is not ready."""
    trouble = late.troubles[0]
    return " ".join(filter(None, (trouble.node, trouble.reason, trouble.message)))
