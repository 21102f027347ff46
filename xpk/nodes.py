"""The Python API of a cluster's nodes: the evidence against them, and quarantine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from xpk.api.base import ObjectApi, Objs
from xpk.capacity.nodes import quarantine as marks
from xpk.capacity.nodes.conditions import evidence_of_conditions
from xpk.capacity.nodes.inventory import pool_of
from xpk.capacity.provider import ClusterInfo
from xpk.capacity.quarantine.eviction import evict_workloads
from xpk.capacity.quarantine.listing import (
    NodeInfo,
    evidence_on,
    list_nodes,
    nodes_of_slices,
    slice_of,
    slice_states,
)
from xpk.capacity.quarantine.verdict import Action, Budget, Verdict, judge
from xpk.jobs.evidence import evidence_of_workloads
from xpk.jobs.output.roots import OutputRoots
from xpk.model.errors import ConflictError, Modified, NotFoundError, UsageError
from xpk.model.evidence import NEEDED_PASSES, Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceOfNode:
    """The slice of a node."""

    node_pool: str  # name of its node pool
    nodes: tuple[str, ...]  # names of its nodes
    is_quarantined: bool  # whether it is quarantined
    passes: int  # preflight checks that it has passed in a row since its quarantine


Verdicts = list[Verdict]  # aliases, since inside the class `list` is a method
Slices = list[SliceOfNode]
BY_HAND = "quarantined by hand"
_LONGEST = 500  # characters of a reason


class Nodes:
    """The nodes of a cluster's slices. A slice is quarantined as a whole, and returned as a whole.

    `describe` returns the slices of the cluster; `clock` the present time.
    """

    def __init__(
        self,
        api: ObjectApi,
        describe: Callable[[], ClusterInfo],
        roots: OutputRoots,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api, self._describe, self._roots, self._clock = api, describe, roots, clock

    def list(self) -> list[NodeInfo]:
        """Return the nodes with their evidence, quarantined ones first, then by score. Changes nothing."""
        nodes = nodes_of_slices(self._api)
        return list_nodes(self._api, nodes, self._observe(nodes), self._clock())

    def quarantine(self, name: str, *, reason: str = "", evict: bool = False, dry_run: bool = False) -> Verdict:
        """Quarantine the slice of a node, so that no workload starts there; whatever the budget.

        `evict` also ends the hosts on it: they get SIGTERM, save and restart elsewhere. Without it, a workload stays
        until it needs new pods. Raises NotFoundError, ConflictError if the nodes are changed concurrently, and
        ProtectedError if a PodDisruptionBudget forbids the eviction.
        """
        node, members = slice_of(nodes_of_slices(self._api), name)
        why = " ".join(reason.split())[:_LONGEST] or BY_HAND
        verdict = _verdict(node["metadata"]["name"], members, "quarantine", why)
        if not dry_run:
            self._quarantine(verdict, members, evict=evict)
        return verdict

    def return_to_service(self, name: str, *, force: bool = False, dry_run: bool = False) -> Verdict:
        """Return the slice of a node to service and forget the evidence against its nodes.

        The slice must have passed two preflight checks in a row (`xpk.check_hosts` with `node`), unless `force` is
        set. Raises NotFoundError, and ConflictError if the slice is not quarantined or has not passed them.
        """
        _, members = slice_of(nodes_of_slices(self._api), name)
        reasons = [quarantine.reason for node in members if (quarantine := marks.quarantine_of(node))]
        if not reasons:
            raise ConflictError(
                f"node '{name}' is not quarantined", hint="`xpk node list` shows the state of all nodes"
            )
        if (passes := marks.passes_of(members)) < NEEDED_PASSES and not force:
            raise ConflictError(
                f"slice {pool_of(members[0])} has passed {passes} of {NEEDED_PASSES} preflight checks since it "
                "was quarantined",
                hint=f"`xpk node return {name} --preflight` checks it; --force returns it without",
            )
        if not dry_run:
            marks.release(self._api, members, self._clock())
        return _verdict(name, members, "return", reasons[0])

    def slices_of(self, *names: str) -> Slices:
        """Return the slices of nodes, each once. Raises NotFoundError."""
        nodes, slices = nodes_of_slices(self._api), dict[str, SliceOfNode]()
        for name in names:
            _, members = slice_of(nodes, name)
            pool, is_quarantined = pool_of(members[0]), any(map(marks.quarantine_of, members))
            slices.setdefault(
                pool,
                SliceOfNode(
                    node_pool=pool,
                    nodes=tuple(str(node["metadata"]["name"]) for node in members),
                    is_quarantined=is_quarantined,
                    passes=marks.passes_of(members),
                ),
            )
        return [*slices.values()]

    def record_check(self, name: str, *, passed: bool) -> int:
        """Record a preflight check of the slice of a quarantined node; return how many it has passed in a row."""
        _, members = slice_of(nodes_of_slices(self._api), name)
        return marks.record_check(self._api, members, passed=passed)

    def quarantine_by_evidence(
        self, max_percent: float = 5.0, *, evict: bool = False, dry_run: bool = False
    ) -> Verdicts:
        """Store the evidence on the nodes, quarantine the slices of suspects, and return the verdicts.

        At most `max_percent` of the slices are quarantined, but one always may be, and only while another slice of the
        type is free. With `dry_run`, only return the verdicts. A slice whose nodes are changed concurrently is left to
        the next call. Raises UsageError for another percentage than 0 to 100, and ProtectedError as `quarantine`.
        """
        if not 0 <= max_percent <= 100:
            raise UsageError(f"max_percent must be between 0 and 100, got {max_percent}")
        nodes, now = nodes_of_slices(self._api), self._clock()
        observed = self._observe(nodes)
        slices = slice_states(self._api, self._describe(), nodes)
        verdicts = judge(slices, evidence_on(nodes, observed), now, Budget(max_percent), observed)
        if dry_run:
            return verdicts
        marks.complete(self._api, nodes, now)
        for node in nodes:
            marks.keep_evidence(self._api, node, marks.relevant(node, observed), now)
        return [verdict for verdict in verdicts if verdict.action == "defer" or self._carry_out(verdict, evict=evict)]

    def _observe(self, nodes: Objs) -> Sequence[Evidence]:
        return [*evidence_of_conditions(nodes, self._clock()), *evidence_of_workloads(self._api, self._roots)]

    def _carry_out(self, verdict: Verdict, *, evict: bool) -> bool:
        """Quarantine a slice by a verdict; return False if its nodes have changed or gone."""
        try:
            _, members = slice_of(nodes_of_slices(self._api), verdict.node)
            self._quarantine(verdict, members, evict=evict)
        except (Modified, NotFoundError):
            return False
        return True

    def _quarantine(self, verdict: Verdict, members: Objs, *, evict: bool) -> None:
        marks.quarantine(self._api, members, verdict.node, verdict.reason, self._clock())
        if evict:
            evict_workloads(self._api, verdict.nodes)


def _verdict(name: str, members: Objs, action: Action, reason: str) -> Verdict:
    """Return the action on the slice of a node that a person has named."""
    nodes = tuple(str(node["metadata"]["name"]) for node in members)
    return Verdict(node=name, slice=pool_of(members[0]), action=action, reason=reason, nodes=nodes)
