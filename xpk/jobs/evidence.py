"""Evidence against nodes from workloads: how their hosts failed, and what their trainers measured."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from xpk.api.base import Obj, ObjectApi
from xpk.api.text import rfc3339
from xpk.jobs.output.folder import with_time_limit
from xpk.jobs.output.json_lines import parse, read_number, read_whole
from xpk.jobs.output.roots import OutputRoots
from xpk.jobs.status import reader
from xpk.jobs.status.fields import PREFIX, event_times, host_key, when
from xpk.model import names
from xpk.model.errors import NotFoundError, XpkError
from xpk.model.evidence import Evidence, EvidenceKind
from xpk.model.status import Phase, WorkloadStatus, exit_words
from xpk.storage import Folder

_HUNG, _CORRUPT, _UNFIT = 76, 77, 79
_SIGNALS = frozenset(128 + number for number in (4, 6, 7, 8, 11))  # SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV
_DEVICE = re.compile(
    r"device or resource busy|\b(tpu|gpu|chip|accelerator|device)s?\b.{0,60}\b(in use|not found|unhealthy|"
    r"(failed|unable) to initialize|initialization failed)|uncorrectable (ecc|hbm)|xid \d+",
    re.IGNORECASE,
)
_NO_ANSWER = "did not answer"  # of a frozen command, which has no exit code of its own
_HOST = re.compile(r"slice (\d{1,6}) host (\d{1,6})")
_TAIL = 256 * 1024  # bytes of a host's events that are read
_SOON = timedelta(seconds=2)  # times of pods are in whole seconds
_TIMES = (0.0, 4102444800.0)  # Unix seconds: to the year 2100
_MOST_SLICES = 64  # elastic slices whose comparisons are read


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placement:
    """A host of a workload on a node, from a time on."""

    slice: int
    host: int
    node: str
    since: datetime


def evidence_of_workloads(api: ObjectApi, roots: OutputRoots) -> list[Evidence]:
    """Return the evidence of all workloads that exist. Those whose output cannot be read give less of it."""
    evidence: list[Evidence] = []
    for status in reader.find_all(api, None, brief=True):
        if not (status.restarts or status.output_dir or status.phase is Phase.FAILED):
            continue  # nothing has happened, and no trainer has recorded anything
        try:
            evidence += evidence_of_workload(api, status.name, status.namespace, roots)
        except NotFoundError:  # it was deleted meanwhile
            continue
    return evidence


def evidence_of_workload(api: ObjectApi, name: str, namespace: str, roots: OutputRoots) -> list[Evidence]:
    """Return the evidence of one workload, oldest first. Raises NotFoundError if it does not exist."""
    status, _ = reader.inspect(api, name, namespace, roots)
    placements = [*_placements(api, status)]
    evidence = [*_of_failures(status, placements), *_of_chips(status, roots, placements)]
    return sorted(evidence, key=lambda one: when(one.time))


def _of_failures(status: WorkloadStatus, placements: Sequence[_Placement]) -> Iterator[Evidence]:
    """Yield the evidence of restarts, and of the failure that ended the workload."""
    for restart in status.restart_history:
        if restart.slice is not None and restart.host is not None:
            yield from _of_failure(
                status, placements, (restart.slice, restart.host), restart.time, restart.exit_code, restart.cause
            )
    own = [host for host in status.hosts if host.exit_code not in (None, 0, 75, 143) and host.finished]
    if status.phase is Phase.FAILED and own:
        first = min(own, key=lambda host: when(host.finished))
        cause = f"host {first.label} ended with {exit_words(first.exit_code or 0)}: {first.reason or ''}"
        yield from _of_failure(
            status, placements, (first.slice, first.host), str(first.finished), first.exit_code, cause
        )


def _of_failure(
    status: WorkloadStatus,
    placements: Sequence[_Placement],
    place: tuple[int, int],
    time: str,
    code: int | None,
    cause: str,
) -> Iterator[Evidence]:
    """Yield the evidence of one host's failure, if it is one that a host may be responsible for."""
    kind = failure_kind(code, cause)
    node = _node_at(placements, place, when(time))
    if kind and node:
        # Between two copies it is unknown which one is right.
        is_ambiguous = kind is EvidenceKind.COPIES and status.num_slices == 2
        yield Evidence(
            node=node,
            kind=kind,
            time=time,
            source=_source(status),
            number=time,
            message=f"{names.qualified(status.name, status.namespace)}: {cause}",
            place="s{}/h{}".format(*place),
            hosts=status.num_hosts,
            share=0.5 if is_ambiguous else 1.0,
        )


def failure_kind(code: int | None, cause: str) -> EvidenceKind | None:
    """Return the kind of evidence that a failure is; None if it says nothing about the host.

    SIGKILL and SIGTERM do not: the memory limit and evictions use them.
    """
    if code == _UNFIT:
        return EvidenceKind.PREFLIGHT
    if _DEVICE.search(cause):
        return EvidenceKind.DEVICE
    if code == _HUNG or (code is None and _NO_ANSWER in cause):
        return EvidenceKind.HANG
    if code == _CORRUPT:
        return EvidenceKind.COPIES
    return EvidenceKind.SIGNAL if code in _SIGNALS else None


def _of_chips(status: WorkloadStatus, roots: OutputRoots, placements: Sequence[_Placement]) -> Iterator[Evidence]:
    """Yield the evidence of chips that the trainer named as slow, once for each attempt."""
    if not status.output_dir:
        return
    slices = range(min(status.num_slices, _MOST_SLICES) if status.min_slices is not None else 1)
    try:
        url = roots.to_read(status)
        rows = with_time_limit(url, lambda folder: [*_comparisons(folder, slices)]) if url else []
    except XpkError:  # reported when the progress is read
        return
    seen = set()
    for row in rows:
        attempt, seconds = read_whole(row, "attempt"), read_number(row, "time", _TIMES)
        time = datetime.fromtimestamp(seconds, UTC) if seconds else None
        if attempt is None or time is None or time < when(status.created):
            continue
        for place, own, median in slow_chips(row):
            node = _node_at(placements, place, time)
            if node and (attempt, node) not in seen:
                seen.add((attempt, node))
                label = "s{}/h{}".format(*place)
                yield Evidence(
                    node=node,
                    kind=EvidenceKind.CHIPS,
                    time=rfc3339(time),
                    source=_source(status),
                    number=f"attempt {attempt}",
                    message=f"{names.qualified(status.name, status.namespace)}: {label} has slow chips: {own:.4f} s "
                    f"for the same products, {median:.4f} s on the median host",
                )


def _comparisons(folder: Folder, slices: Iterable[int]) -> Iterator[Obj]:
    """Yield the comparisons of hosts in the newest events of the first host of slices."""
    for number in slices:
        content = folder.read_end(f"events/s{number}-h0.jsonl", _TAIL) or b""
        yield from (row for row in map(parse, content.split(b"\n")) if row and row.get("event") == "pace")


def slow_chips(row: Obj) -> Iterator[tuple[tuple[int, int], float, float]]:
    """Yield the hosts that a comparison names for slow chips, with their own and the median seconds."""
    slow = row.get("slow")
    for one in slow if isinstance(slow, list) else []:
        # Earlier versions noted every slower host, as not conclusive.
        if not isinstance(one, dict) or one.get("reason") != "chip" or one.get("conclusive") is False:
            continue
        match = _HOST.fullmatch(str(one.get("host")))
        if match:
            yield (int(match[1]), int(match[2])), read_number(one, "own") or 0.0, read_number(one, "median") or 0.0


def _placements(api: ObjectApi, status: WorkloadStatus) -> Iterator[_Placement]:
    """Yield where the workload's hosts are and were: from its pods, deleted pods and the scheduler's events."""
    for host in status.hosts:
        if host.node and host.started:  # else it has not failed there
            since = when(host.started)
            yield _Placement(slice=host.slice, host=host.host, node=host.node, since=since)
    for pod in api.former_pods(status.namespace, {f"{PREFIX}/jobset-name": status.name}):
        if node := pod["spec"].get("nodeName"):
            (slice_id, host_id), since = host_key(pod), when((pod.get("status") or {}).get("startTime"))
            yield _Placement(slice=slice_id, host=host_id, node=str(node), since=since)
    pattern = re.compile(rf"{re.escape(status.name)}-{names.SLICE_JOB}-(\d{{1,6}})-(\d{{1,6}})-\w{{5}}")
    for event in api.list("Event", status.namespace, fields={"reason": "Scheduled"}):
        match = pattern.fullmatch(str((event.get("involvedObject") or {}).get("name")))
        node = str(event.get("message", "")).rpartition(" to ")[2]
        if match and node:
            since = when(event_times(event)[1])
            yield _Placement(slice=int(match[1]), host=int(match[2]), node=node, since=since)


def _node_at(placements: Sequence[_Placement], place: tuple[int, int], time: datetime) -> str:
    """Return the node of a host at a time; "" if unknown."""
    before = [one for one in placements if (one.slice, one.host) == place and one.since <= time + _SOON]
    return max(before, key=lambda one: one.since).node if before else ""


def _source(status: WorkloadStatus) -> str:
    return f"{names.qualified(status.name, status.namespace)}@{status.created}"
