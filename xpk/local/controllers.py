"""One pass of all controllers over one state of the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from xpk.api.base import Obj
from xpk.local import job, jobset, pods, queue, usage
from xpk.local import objects as o
from xpk.local.process import Host
from xpk.local.store import Transaction
from xpk.model.usage import Record

_ROUNDS = 20  # after which a pass ends even if the controllers still change objects
_Controller = Callable[[Transaction, Mapping[str, Host]], None]
_CONTROLLERS: tuple[_Controller, ...] = (
    lambda tx, hosts: queue.reconcile(tx),
    lambda tx, hosts: jobset.reconcile(tx),
    lambda tx, hosts: job.reconcile(tx),
    pods.reconcile,
)


@dataclass(frozen=True, slots=True)
class Pass:
    """Work that a pass leaves to be done outside of the store."""

    groups: list[list[Obj]]  # pods of each JobSet
    startable: set[str]  # UIDs of the pods whose hosts may start
    is_pausing: bool  # whether a JobSet waits for the time of its next attempt
    jobsets: set[str]  # UIDs of all JobSets
    pods: set[str]  # UIDs of all pods, and of former ones
    usage: dict[str, Record]  # records to write into the usage ledger, by the names of their objects

    @property
    def live(self) -> list[Obj]:
        """The pods whose hosts have not ended."""
        return [pod for group in self.groups for pod in group if not o.has_ended(pod)]

    def to_end(self, group: list[Obj]) -> list[Obj]:
        """Return the pods of a group whose hosts must end."""
        return [pod for pod in group if not o.has_ended(pod) and o.is_terminating(pod)]

    def to_start(self, group: list[Obj]) -> list[Obj]:
        """Return the pods of a group whose hosts must run; some may have been started before."""
        return [
            pod
            for pod in group
            if not o.has_ended(pod)
            and not o.is_terminating(pod)
            and pod["metadata"]["uid"] in self.startable
            and "nodeName" in pod["spec"]
        ]


def reconcile(tx: Transaction, hosts: Mapping[str, Host]) -> Pass:
    """Record the state of hosts, by the UIDs of their pods, and run all controllers until nothing changes."""
    pods.observe(tx, hosts)
    quiet = 0  # controllers in a row that have changed nothing
    for number in range(_ROUNDS * len(_CONTROLLERS)):
        before = tx.writes
        _CONTROLLERS[number % len(_CONTROLLERS)](tx, hosts)
        quiet = quiet + 1 if tx.writes == before else 0
        if quiet == len(_CONTROLLERS):
            break
    usage.record(tx)
    tx.keep_copies()
    groups, jobsets = pods.by_jobset(tx), tx.list("JobSet")
    return Pass(
        groups=list(groups.values()),
        startable=pods.startable(tx, groups),
        is_pausing=any("nextAttemptAt" in obj["status"] for obj in jobsets),
        jobsets=tx.uids("JobSet"),
        pods=tx.uids("Pod") | tx.uids("FormerPod"),
        usage=usage.ended_records(tx),
    )
