"""Rounds of fencing: nodes whose machines are gone are put out of service, and released once they are back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Literal

from xpk.api.base import Obj, ObjectApi, Objs
from xpk.capacity.fencing.budget import Budget
from xpk.capacity.fencing.machines import Machine, MachineState
from xpk.capacity.fencing.pods import end_pods, pods_to_end
from xpk.capacity.fencing.reports import lost_hosts
from xpk.capacity.nodes import out_of_service as marks
from xpk.capacity.nodes.inventory import in_slices, is_ready, pool_of, pool_order
from xpk.model.errors import ConflictError, NotFoundError

LEASES = "kube-node-lease"
_QUIET = timedelta(seconds=12)  # a kubelet renews its lease every 10 seconds
_SKEW = timedelta(seconds=1)  # between the clocks of a node and of its provider
_NO_ANSWER = Machine(MachineState.UNKNOWN, "the provider has no answer")

Action = Literal["fence", "release", "clear", "defer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fencing:
    """Action on one node.

    `fence`: put out of service, its pods ended. `clear`: pods ended on a node that was fenced before. `release`: back
    in service. `defer`: its machine is gone, but the budget is used up.
    """

    node: str  # name of the node
    slice: str  # node pool of the node
    action: Action  # action on the node
    reason: str  # evidence, or reason for the deferral
    pods: tuple[str, ...] = ()  # pods that are ended, as NAMESPACE/NAME


class Fencer:
    """Fencing of one cluster. All state is in the annotations of its nodes.

    `read_machines`: the machines of some nodes, once they have been quiet for `quiet_seconds`.
    `vouches`: someone vouches that unreachable nodes are dead, as for `cluster adapt --fenced`.
    """

    def __init__(
        self,
        api: ObjectApi,
        read_machines: Callable[[Objs], Mapping[str, Machine]],
        *,
        budget: Budget | None = None,
        per_seconds: float = 600.0,
        quiet_seconds: float = 0.0,
        vouches: bool = False,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api, self._read_machines, self._clock = api, read_machines, clock
        self._budget, self._per_seconds = budget, per_seconds
        self._quiet, self._vouches = timedelta(seconds=quiet_seconds), vouches

    def run(self, *, dry_run: bool = False) -> list[Fencing]:
        """Check all nodes once, act, and return the actions; with `dry_run`, only return them."""
        nodes = sorted(in_slices(self._api.list("Node")), key=lambda node: pool_order(node["metadata"]["name"]))
        state = self._read(nodes)
        now, actions = self._clock(), [self._judged(node, state) for node in nodes]
        return self._carried_out(nodes, state, actions, now, dry_run=dry_run)

    def _read(self, nodes: Objs) -> _State:
        """Return the leases of nodes, and the machines of those that may be gone or are fenced."""
        leases = {str(lease["metadata"]["name"]): lease for lease in self._api.list("Lease", LEASES)}
        times = {name: marks.parse_time((lease.get("spec") or {}).get("renewTime")) for name, lease in leases.items()}
        renewed = {name: time for name, time in times.items() if time}
        # The newest renewal is the present: no clock of this machine is compared with those of nodes.
        latest = max(renewed.values(), default=None)
        away = {str(node["metadata"]["name"]) for node in nodes if _is_away(node)}
        state = _State(renewed, latest, away, {})
        candidates = [node for node in nodes if marks.reason_of(node) or state.silence(node) >= self._quiet]
        return replace(state, machines=dict(self._read_machines(candidates)) if candidates else {})

    def _judged(self, node: Obj, state: _State) -> Fencing | None:
        """Return the action that a node needs, whatever the budget; None if it needs none."""
        machine = state.machines.get(node["metadata"]["name"], _NO_ANSWER)
        if (reason := marks.reason_of(node)) is not None:
            return self._judged_again(node, state, machine, reason)
        if marks.is_tainted(node):
            return None  # someone else has fenced it, and ends or releases it
        if machine.state == MachineState.GONE:
            return None if state.contradicts(node, machine) else self._ending(node, "fence", machine.words)
        name = str(node["metadata"]["name"])
        if machine.state == MachineState.RUNNING or not self._vouches or name not in state.away:
            return None
        lost = lost_hosts(self._api, self._pods(name), state.renewed.get(name), state.away)
        return self._ending(node, "fence", f"unreachable, and its peers report {lost} lost") if lost else None

    def _judged_again(self, node: Obj, state: _State, machine: Machine, reason: str) -> Fencing | None:
        """Return the action for a node that is fenced: its release, or the end of pods that are left on it."""
        is_back = marks.has_renewed(node, state.renewed.get(node["metadata"]["name"]))
        if is_back and is_ready(node) and machine.state != MachineState.GONE:
            return _fencing(node, "release", "its kubelet is back")
        if is_back or machine.state == MachineState.RUNNING:
            return None  # its kubelet ends pods that are left
        remaining = self._ending(node, "clear", reason)
        return remaining if remaining.pods else None

    def _carried_out(
        self, nodes: Objs, state: _State, actions: list[Fencing | None], now: datetime, *, dry_run: bool
    ) -> list[Fencing]:
        times = [time for node in nodes if (time := marks.fenced_at(node))]
        room, done = self._budget_for(nodes).room(times, now), list[Fencing]()
        for node, action in zip(nodes, actions, strict=True):
            if action is None:
                continue
            if action.action == "fence":
                if room <= 0:
                    action = replace(action, action="defer", pods=())
                room -= 1
            if dry_run or self._carry_out(node, state, action, now):
                done.append(action)
        return done

    def _carry_out(self, node: Obj, state: _State, action: Fencing, now: datetime) -> bool:
        """Carry an action out; return False if the node has changed or gone, so that the next round checks it again."""
        name = str(node["metadata"]["name"])
        try:
            if action.action == "fence":
                marks.fence(self._api, node, action.reason, renewed=state.renewed.get(name), now=now)
            elif action.action == "release":
                marks.release(self._api, node)
        except (ConflictError, NotFoundError):
            return False
        if action.action in ("fence", "clear"):
            end_pods(self._api, self._pods(name), f"node {name} was fenced: {action.reason}", now)
        return True

    def _ending(self, node: Obj, action: Action, reason: str) -> Fencing:
        pods = self._pods(str(node["metadata"]["name"]))
        names = tuple(f"{pod['metadata'].get('namespace', 'default')}/{pod['metadata']['name']}" for pod in pods)
        return replace(_fencing(node, action, reason), pods=names)

    def _pods(self, node: str) -> Objs:
        return pods_to_end(self._api, node)

    def _budget_for(self, nodes: Objs) -> Budget:
        """Return the budget; by default one slice, the unit that fails as a whole, or a tenth of all nodes."""
        if self._budget:
            return self._budget
        largest = max(Counter(map(pool_of, nodes)).values(), default=1)
        return Budget(max(largest, len(nodes) // 10), self._per_seconds)


@dataclass(frozen=True, slots=True)
class _State:
    """State of a cluster in one round: last renewals, the newest of them, nodes that are away, and machines."""

    renewed: Mapping[str, datetime]
    latest: datetime | None
    away: set[str]
    machines: Mapping[str, Machine]

    def silence(self, node: Obj) -> timedelta:
        """Return the time by which a node's last renewal is older than the newest one; the longest without any."""
        renewed = self.renewed.get(node["metadata"]["name"])
        return self.latest - renewed if self.latest and renewed else timedelta.max

    def contradicts(self, node: Obj, machine: Machine) -> bool:
        """Return whether a node has shown that it lives after its machine has stopped, or lately."""
        renewed = self.renewed.get(node["metadata"]["name"])
        if machine.stopped and renewed:
            return renewed > machine.stopped + _SKEW
        return self.silence(node) < _QUIET


def _fencing(node: Obj, action: Action, reason: str) -> Fencing:
    return Fencing(node=str(node["metadata"]["name"]), slice=pool_of(node), action=action, reason=reason)


def _is_away(node: Obj) -> bool:
    """Return whether a node has been unreachable for the control plane's grace period."""
    return any(item["type"] == "Ready" and item["status"] == "Unknown" for item in node["status"].get("conditions", []))
