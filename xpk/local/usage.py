"""Usage of a local cluster: who holds which chips, recorded in the transactions that change it.

The book of open intervals and the records of ended ones are objects of the store, so that a crash loses and duplicates
nothing. A record becomes a file of the ledger after the transaction, and is removed from the store after that; a file
that a crash has cut off is written again.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial

from xpk.api.base import Obj
from xpk.api.usage import chips_of_pod, holding_of, supply_of
from xpk.local import clock
from xpk.local import objects as o
from xpk.local.store import Transaction
from xpk.local.usage_book import Book
from xpk.model.errors import UsageError, XpkError
from xpk.model.usage import (
    DELETED,
    ENDED,
    EVICTED,
    Holding,
    Record,
    State,
    Supply,
    encode,
    file_name,
    from_json,
    stop_reason,
    to_json,
)
from xpk.storage import Folder

FOLDER = "usage"  # in the folder of a cluster
_OPEN, _SUPPLY, _RECORD = "UsageHold", "UsageSupply", "UsageRecord"  # kinds of objects in the store
_TOPICS = ("JobSet", "Workload", "Pod", "Node", "LocalQueue", "ClusterQueue")
_UNREADABLE = (UsageError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_log = logging.getLogger("xpk.local")


def record(tx: Transaction) -> None:
    """Record the holdings of all workloads and the supply of chips, if they have changed."""
    tx.settle("usage", _TOPICS, partial(_record, tx))


def ended_records(tx: Transaction) -> dict[str, Record]:
    """Return the records that are not known to be in the ledger, by the names of their objects."""
    records: dict[str, Record] = {}
    for obj in tx.list(_RECORD):
        with suppress(*_UNREADABLE):
            records[obj["metadata"]["name"]] = from_json(obj["record"])
    return records


def write(ledger: Folder, records: Mapping[str, Record]) -> list[str]:
    """Write a file for each record; return the names of the written ones. Failures are logged and tried again."""
    written = []
    for name, item in records.items():
        try:
            ledger.write(file_name(item.end, name), encode([item]))
        except XpkError as error:
            _log.warning("usage is not recorded yet: %s", error.message)
            break
        written.append(name)
    return written


def forget(tx: Transaction, written: Iterable[str]) -> None:
    """Remove the objects of records that are in the ledger."""
    for name in written:
        if obj := tx.get(_RECORD, "", name):
            tx.remove(obj)


def open_records(tx: Transaction) -> list[Record]:
    """Return the records that are not in the ledger, with the intervals that have not ended, up to now.

    Raises DatabaseError for malformed objects.
    """
    try:
        return [*ended_records(tx).values(), *_read_book(tx).open_records(_now())]
    except _UNREADABLE as error:
        raise sqlite3.DatabaseError("the usage is malformed") from error


def _record(tx: Transaction) -> bool:
    """Record changes; return False, because only objects change anything."""
    try:
        book = _read_book(tx)
        holdings = _holdings(tx, {uid: holding for uid, (_, holding) in book.holds.items()})
        former = dict(book.holds)
        ended = book.advance(_now(), holdings, supply_of(tx.list("Node"), tx.list("ClusterQueue")))
    except _UNREADABLE:  # the cluster works without a ledger
        _log.exception("usage is not recorded")
        return False
    for item in ended:
        tx.put({"kind": _RECORD, "metadata": {"name": o.new_uid()}, "record": to_json(item)})
    for uid in former.keys() - book.holds.keys():
        if obj := tx.get(_OPEN, "", uid):
            tx.remove(obj)
    for uid, hold in book.holds.items():
        if hold != former.get(uid):
            begin, holding = hold
            _put(tx, _OPEN, uid, {"begin": begin, "holding": asdict(holding)})
    begin, supply = book.supply or (book.last, Supply())
    _put(tx, _SUPPLY, "supply", {"begin": begin, "supply": asdict(supply), "last": book.last})
    return False


def _put(tx: Transaction, kind: str, name: str, content: Obj) -> None:
    obj = tx.get(kind, "", name) or {"kind": kind, "metadata": {"name": name}}
    tx.put(obj | content)


def _read_book(tx: Transaction) -> Book:
    book = Book()
    for obj in tx.list(_OPEN):
        fields = obj["holding"]
        book.holds[obj["metadata"]["name"]] = obj["begin"], Holding(**fields | {"state": State(fields["state"])})
    if stored := tx.get(_SUPPLY, "", "supply"):
        book.supply, book.last = (stored["begin"], Supply(**stored["supply"])), stored["last"]
    return book


def _now() -> int:
    return clock.time_ns() // 1000


def _holdings(tx: Transaction, before: Mapping[str, Holding]) -> dict[str, Holding]:
    """Return the present holding of each workload, by its UID; `before`: the holdings in the book."""
    live: dict[str, list[Obj]] = {}
    for pod in tx.list("Pod"):
        if not o.has_ended(pod):
            live.setdefault(o.label(pod, f"{o.JOBSET}jobset-uid"), []).append(pod)
    workloads = {o.owner_uid(workload): workload for workload in tx.list("Workload")}
    local_queues, holdings = tx.list("LocalQueue"), dict[str, Holding]()
    for jobset in tx.list("JobSet"):
        uid = jobset["metadata"]["uid"]
        state = _state(jobset, workloads.get(uid), live.pop(uid, []), before.get(uid))
        if state is not None:
            kind, chips, reason = state
            holdings[uid] = holding_of(jobset, local_queues, state=kind, chips=chips, reason=reason)
    for uid, pods in live.items():  # of deleted JobSets
        if uid in before:
            fields = asdict(before[uid]) | {"state": State.STOP, "chips": _chips_of(pods), "reason": DELETED}
            holdings[uid] = Holding(**fields)
    return holdings


def _state(
    jobset: Obj, workload: Obj | None, pods: list[Obj], before: Holding | None
) -> tuple[State, int | None, str] | None:
    """Return the state of a JobSet, its chips if it does not hold all, and the reason; None if it holds none."""
    has_ended = bool(jobset.get("status", {}).get("terminalState"))
    is_reserved = workload is not None and o.is_true(workload, "QuotaReserved") and not o.is_true(workload, "Finished")
    reason = before.reason if before else ""
    if has_ended or (workload is not None and not is_reserved):
        if pods:
            stopped = ENDED if has_ended else reason or EVICTED
            return State.STOP, _chips_of(pods), stopped
        waits = workload is not None and not has_ended and workload["spec"].get("active", True)
        return (State.QUEUED, None, reason) if waits else None
    if workload is None and (not pods or o.label(jobset, o.QUEUE_LABEL)):
        return None  # it is not running, or its Workload does not exist yet
    if workload is not None and o.is_true(workload, "Evicted"):
        return State.STOP, None, stop_reason(o.condition(workload, "Evicted")["reason"])
    if _is_up(jobset):
        return State.RUNNING, None, ""
    was_up = before is not None and before.state in (State.RUNNING, State.DOWN)
    return (State.DOWN, None, "") if was_up else (State.START, None, reason)


def _is_up(jobset: Obj) -> bool:
    """Return whether all slices of a JobSet run, or have finished."""
    counts = jobset.get("status", {}).get("replicatedJobsStatus", ())
    size: int = sum(job["replicas"] for job in jobset["spec"]["replicatedJobs"])
    up: int = sum(count["ready"] + count["succeeded"] for count in counts)
    return up >= size


def _chips_of(pods: Iterable[Obj]) -> int:
    return sum(chips_of_pod(pod["spec"]) for pod in pods)
