"""Records of the usage ledger: who held which chips when, how many existed, and the causes of a run's time.

A file of the ledger holds records that never change. Times are whole Unix microseconds, amounts whole chips, so that
sums over parts of an interval are exact.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from xpk.model.errors import XpkError

# To be increased when fields change: an earlier version then leaves the file out and says why.
FORMAT = 1
MICROSECONDS = 1_000_000
PREEMPTED, SUSPENDED, EVICTED, DELETED, ENDED = "preempted", "suspended", "evicted", "deleted", "ended"  # of a stop
# By the prefix of the reason of an eviction in versions of Kueue.
_STOPS = {"Preempted": PREEMPTED, "Deactivated": SUSPENDED, "InactiveWorkload": SUSPENDED}
_LATEST = 4_102_444_800 * MICROSECONDS  # the year 2100
_MOST_CHIPS = 1_000_000_000
_LONGEST_TEXT = 4096  # characters of a name, or of the path of an output folder


class State(StrEnum):
    """State of a workload in an interval; in all but QUEUED it holds its chips."""

    QUEUED = "queued"
    START = "start"
    RUNNING = "running"
    DOWN = "down"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Use of chips by a workload at one moment. `chips`: those that it holds, or requests while it is queued.

    `reason`: of a stop, and of the states after it until all hosts run again; "" otherwise.
    """

    uid: str
    workload: str
    namespace: str
    queue: str
    team: str
    user: str
    accelerator_type: str
    chips: int
    state: State
    created: int  # Unix microseconds
    reason: str = ""
    output_dir: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold(Holding):
    """A holding over an interval."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """Chips of a cluster at one moment, by accelerator type, and the quota of each queue in chips.

    `out_of_service`: chips of nodes that are cordoned or not ready; `chips` includes them.
    """

    chips: Mapping[str, int] = field(default_factory=dict)
    slices: Mapping[str, int] = field(default_factory=dict)
    quotas: Mapping[str, int] = field(default_factory=dict)
    out_of_service: int = 0

    @property
    def total(self) -> int:
        """Return the chips of all types."""
        return sum(self.chips.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity(Supply):
    """A supply over an interval."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a run's time, by cause in microseconds; the causes sum to its length."""

    begin: int
    end: int
    causes: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Causes:
    """Time of a workload's run by cause up to `end`, from the records in its output folder, in order."""

    uid: str
    end: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipHourPrice:
    """Price of a chip-hour of an accelerator family, on demand."""

    family: str  # accelerator family
    dollars: float | None  # price in US dollars; null if the table has none
    region: str | None  # region of the price; null if the cluster has none
    source: str  # source of the price
    as_of: str  # date of the price
    confirmed: bool  # whether more than one source has this price


Record = Hold | Capacity | Causes
_KINDS: Mapping[str, type[Hold] | type[Capacity] | type[Causes]] = {
    "hold": Hold,
    "capacity": Capacity,
    "causes": Causes,
}


class DamagedError(XpkError):
    """A file of the ledger that cannot be read; the message states why."""


def month_of(microseconds: int) -> str:
    """Return the month of a time as the name of a folder, such as 2026-11."""
    return datetime.fromtimestamp(microseconds / MICROSECONDS, UTC).strftime("%Y-%m")


def file_name(time: int, identity: str) -> str:
    """Return the path of a new file below the ledger. `time`: the latest end in it; `identity` makes it unique."""
    return f"{month_of(time)}/{time_name(time)}-{identity}.json"


def time_name(time: int) -> str:
    """Return a time as names of files begin with it: they are in the order of their times, after hidden files."""
    return f"{time:016d}"


def encode(records: Iterable[Record]) -> bytes:
    """Return the content of a file with these records."""
    text = json.dumps([to_json(record) for record in records], sort_keys=True, separators=(",", ":"))
    return f'{{"format":{FORMAT},"sha256":"{_digest(text)}","records":{text}}}\n'.encode()


def decode(content: bytes) -> list[Record]:
    """Return the records of a file. Raises DamagedError if it is cut off, changed, or of a newer version."""
    try:
        parsed = json.loads(content)
        number, digest, records = parsed["format"], parsed["sha256"], parsed["records"]
        if isinstance(number, int) and number > FORMAT:
            raise DamagedError(f"written by a newer version of xpk (format {number})")
        if digest != _digest(json.dumps(records, sort_keys=True, separators=(",", ":"))):
            raise DamagedError("its checksum differs")
        return [from_json(record) for record in records]
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        cut = not content.rstrip().endswith(b"}")
        raise DamagedError("it is cut off" if cut else "it is not a file of the ledger") from error


def to_json(record: Record) -> dict[str, Any]:
    """Return a record as a JSON object."""
    if isinstance(record, Causes):
        return {
            "kind": "causes",
            "uid": record.uid,
            "end": record.end,
            "pieces": [[piece.begin, piece.end, dict(piece.causes)] for piece in record.pieces],
        }
    return {"kind": "hold" if isinstance(record, Hold) else "capacity", **asdict(record)}


def from_json(obj: Mapping[str, Any]) -> Record:
    """Return a record from its JSON object. Raises ValueError, TypeError or LookupError for invalid values."""
    fields = {key: value for key, value in obj.items() if key != "kind"}
    kind = _KINDS[obj["kind"]]
    if kind is Causes:
        pieces = tuple(_piece(*piece) for piece in fields["pieces"])
        if any(one.end > other.begin for one, other in itertools.pairwise(pieces)):
            raise ValueError("pieces overlap")
        return Causes(uid=_text(fields["uid"]), end=_count(fields["end"], _LATEST), pieces=pieces)
    begin, end = _interval(fields.pop("begin"), fields.pop("end"))
    if kind is Hold:
        state, chips = State(fields.pop("state")), _count(fields.pop("chips"))
        created = _count(fields.pop("created"), _LATEST)
        texts = {key: _text(value) for key, value in fields.items()}
        return Hold(begin=begin, end=end, state=state, chips=chips, created=created, **texts)
    service = _count(fields.pop("out_of_service"))
    amounts = {key: {_text(name): _count(count) for name, count in fields[key].items()} for key in fields}
    return Capacity(begin=begin, end=end, out_of_service=service, **amounts)


def team_of(queue: str, namespace: str, queues_of_namespace: Sequence[str], shared_queue: str) -> str:
    """Return the team of a workload: its queue; for the cluster's own queue, the team of its namespace.

    The team of a namespace is the only other queue in it, else the namespace itself.
    """
    if queue and queue != shared_queue:
        return queue
    others = [name for name in queues_of_namespace if name != shared_queue]
    return others[0] if len(others) == 1 and namespace != "default" else namespace


def stop_reason(eviction: str) -> str:
    """Return the reason of a stop from the reason of Kueue's condition Evicted."""
    return next((reason for prefix, reason in _STOPS.items() if eviction.startswith(prefix)), EVICTED)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _piece(begin: Any, end: Any, causes: Any) -> Piece:
    begin, end = _interval(begin, end)
    amounts = {_text(cause): _count(amount, end - begin) for cause, amount in causes.items()}
    if sum(amounts.values()) != end - begin:
        raise ValueError("causes do not sum to the length of their piece")
    return Piece(begin, end, amounts)


def _interval(begin: Any, end: Any) -> tuple[int, int]:
    if _count(begin, _LATEST) > _count(end, _LATEST):
        raise ValueError("an interval ends before it begins")
    return begin, end


def _count(value: Any, most: int = _MOST_CHIPS) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{value!r} is not an integer from 0 to {most}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        raise TypeError("a text is missing or too long")
    return value
