"""Reading of the ledger of a cluster, which brings it up to date first."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from xpk.api.base import ObjectApi
from xpk.api.text import counted
from xpk.api.usage import RecordsUsage, quota_names
from xpk.jobs.output.program_log import ProgramLog
from xpk.jobs.output.roots import OutputRoots
from xpk.jobs.report.programs import read_run
from xpk.jobs.usage import ledger as ledgers
from xpk.jobs.usage.causes import ABSENT, causes_of
from xpk.jobs.usage.ledger import Ledger
from xpk.jobs.usage.observation import Observation, observe_capacity, observe_workloads
from xpk.model.errors import AuthorizationError, MissingToolError, XpkError
from xpk.model.usage import MICROSECONDS, Causes, Hold, Record, State
from xpk.storage import Folder, in_bucket, open_folder

FOLDER = ".xpk-usage"  # below an output root: workloads cannot have this name
LOOK_BACK = 8 * 86400 * MICROSECONDS  # to find the last reading of a cluster
_SHOWN = 3  # workloads that a problem names


def now() -> int:
    """Return the time in Unix microseconds."""
    return time.time_ns() // 1000


@dataclass(frozen=True, slots=True)
class Source:
    """A cluster and where its ledger is. `state_folder`: for a cluster without a bucket or folder of its own.

    `clock` returns the time in Unix microseconds.
    """

    api: ObjectApi
    cluster: str
    roots: OutputRoots
    state_folder: Path
    clock: Callable[[], int] = now

    @property
    def folder(self) -> Folder:
        """Return the folder of the ledger."""
        if isinstance(self.api, RecordsUsage):
            return open_folder(self.api.usage_folder)
        root, name = self.roots.target().output_root, self.cluster.replace(":", "-").replace("/", "-")
        here = self.state_folder / name
        if root and (in_bucket(root) or (Path(root).is_dir() and not here.is_dir())):
            return open_folder(f"{root}/{FOLDER}/{name}")
        return open_folder(str(here))


@dataclass(frozen=True, slots=True)
class _Claim:
    """The output folder that a workload's objects name."""

    name: str
    namespace: str
    output_dir: str


def read(source: Source, *, since: int, until: int) -> Ledger:
    """Bring the ledger up to date and return what overlaps an interval, in Unix microseconds.

    What could not be read or recorded is in the ledger's `problems`. Raises XpkError if the ledger cannot be read.
    """
    folder, at = source.folder, source.clock()
    if isinstance(source.api, RecordsUsage):
        records = source.api.open_usage()
        live = {record.uid for record in records if isinstance(record, Hold) and record.end >= at - MICROSECONDS}
        ledger = ledgers.read(folder, since=since, until=at, more=records)
        causes, unread = _causes(source, ledger, dict.fromkeys(live, at), since=since, until=at)
        fresh: list[Record] = [item for item in causes if item.uid not in live]
    else:
        first = min(since, at - LOOK_BACK)
        ledger = ledgers.read(folder, since=first, until=at)
        observation = _observe(source.api, ledger, at)
        ledger = _joined(ledger, observation.records, observation.lost)
        ends = dict.fromkeys(observation.live, at) | {
            hold.uid: _successor(ledger, hold, at) for hold in observation.lost
        }
        causes, unread = _causes(source, ledger, ends, since=since, until=at)
        filled = without_gaps(ledger, causes, first)
        final = [item for item in causes if item.uid not in observation.live]
        fresh = [*observation.records, *filled, *final]
        ledger = _joined(ledger, filled)
    ledger.causes |= {item.uid: item for item in causes}
    ledger.quota_names = _quota_names(source.api)
    if unread:
        ledger.problems.append(_named("the output of {} cannot be read: its causes are unknown", unread))
    _write(folder, fresh, ledger, at)
    return ledger


def _quota_names(api: ObjectApi) -> dict[tuple[str, str], str]:
    with suppress(AuthorizationError, MissingToolError):
        return quota_names(api.list("LocalQueue", None))
    return {}


def record_output(source: Source, names: Collection[str], namespace: str) -> None:
    """Record the causes of workloads whose output is about to be deleted. Raises XpkError if that fails."""
    at = source.clock()
    more = source.api.open_usage() if isinstance(source.api, RecordsUsage) else ()
    ledger = ledgers.read(source.folder, since=0, until=at, more=more)  # it may have ended long ago
    own_holds = [hold for hold in ledger.holds if hold.workload in names and hold.namespace == namespace]
    causes, _ = _causes(source, replace(ledger, holds=own_holds), {}, since=0, until=at)
    ledgers.write(source.folder, causes, now=at)


def without_gaps(ledger: Ledger, causes: Iterable[Causes], since: int) -> list[Record]:
    """Return holds for the times after `since` in which a run has records and no hold: its chips were held then."""
    holds_of, added = ledger.holds_of(), list[Record]()
    for item in causes:
        holds = holds_of.get(item.uid, [])
        held = [hold for hold in holds if hold.state is not State.QUEUED]
        for piece in item.pieces:
            if ABSENT.isdisjoint(piece.causes):
                for begin, end in ledgers.gaps(max(piece.begin, since), piece.end, held):
                    added.append(replace(holds[-1], state=State.RUNNING, reason="", begin=begin, end=end))
    return added


def _observe(api: ObjectApi, ledger: Ledger, at: int) -> Observation:
    observation = observe_workloads(api, ledger, now=at)
    try:
        observation.records += observe_capacity(api, ledger.capacities, now=at)
    except AuthorizationError as error:
        ledger.problems.append(f"the capacity is not recorded: {error.message}")
    return observation


def _joined(ledger: Ledger, records: Iterable[Record], lost: Sequence[Hold] = ()) -> Ledger:
    problems = list(ledger.problems)
    if lost:
        names = sorted(f"{hold.namespace}/{hold.workload}" for hold in lost)
        problems.append(_named("{} ended at an unknown time: another tool deleted it after the last reading", names))
    return ledgers.assemble([*ledger.holds, *ledger.capacities, *ledger.causes.values(), *records], problems)


def _successor(ledger: Ledger, lost: Hold, at: int) -> int:
    """Return when the next workload with the same output was created, else `at`: later records are not of `lost`."""
    others = (hold for hold in ledger.holds if hold.output_dir == lost.output_dir and hold.uid != lost.uid)
    return min((hold.created for hold in others if hold.created > lost.created), default=at)


def _causes(
    source: Source, ledger: Ledger, ends: Mapping[str, int], *, since: int, until: int
) -> tuple[list[Causes], list[str]]:
    """Return the causes of the workloads in an interval that are not recorded, and the names of unreadable workloads.

    `ends`: the time up to which records belong to a workload that has not ended, or at an unknown time.
    """
    causes, unread = list[Causes](), list[str]()
    for uid, holds in ledger.holds_of().items():
        ran = [hold for hold in holds if hold.state is not State.QUEUED]
        if not ran or ran[-1].end <= since or ran[0].begin >= until:
            continue
        last, known = ran[-1], ledger.causes.get(uid)
        end = ends.get(uid, last.end)
        if not last.output_dir or (known is not None and known.end >= end):
            continue
        try:
            url = source.roots.to_read(_Claim(last.workload, last.namespace, last.output_dir))
            record = read_run(open_folder(url), ProgramLog)  # without TensorBoard's files, which may be large
            causes.append(causes_of(uid, record, begin=last.created, end=end))
        except XpkError:
            unread.append(f"{last.namespace}/{last.workload}")
    return causes, unread


def _write(folder: Folder, records: Sequence[Record], ledger: Ledger, at: int) -> None:
    try:
        ledgers.write(folder, records, now=at)
    except XpkError as error:
        ledger.problems.append(f"this reading is not recorded: {error.message}")


def _named(text: str, workloads: Sequence[str]) -> str:
    more = f" and {counted(len(workloads) - _SHOWN, 'other')}" if len(workloads) > _SHOWN else ""
    return text.format(", ".join(workloads[:_SHOWN]) + more)
