"""Evidence that a host is at fault, and the score of a node. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from math import comb

THRESHOLD = 1.0  # score from which a node is a suspect
NEEDED_PASSES = 2  # preflight checks in a row, before a quarantined slice returns to service
HALF_LIFE = timedelta(days=7)
_CHANCE = 0.1  # probability up to which repeated failures on the same nodes count as no coincidence
_KEPT = 32  # pieces of evidence of a node
_LONGEST = 200  # characters of a message
_MOST_HOSTS = 10**6  # of a workload
_LEAST = 0.05  # of a decayed weight: older evidence is dropped


class EvidenceKind(StrEnum):
    """Kind of evidence."""

    HANG = "hang"
    SIGNAL = "signal"
    COPIES = "copies"
    DEVICE = "device"
    PREFLIGHT = "preflight"
    CHIPS = "slow-chips"
    PROBLEM = "problem"
    WARNING = "warning"


# Two failures within four days make a suspect. So does one failed check of the host, or problem that the node reports.
WEIGHTS: Mapping[EvidenceKind, float] = {
    EvidenceKind.HANG: 0.6,
    EvidenceKind.SIGNAL: 0.6,
    EvidenceKind.COPIES: 0.6,
    EvidenceKind.DEVICE: 0.6,
    EvidenceKind.PREFLIGHT: 1.0,
    EvidenceKind.CHIPS: 0.6,
    EvidenceKind.PROBLEM: 1.0,
    EvidenceKind.WARNING: 0.3,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One observation that speaks against a node. `source` and `number` identify it, however often it is read.

    `hosts` and `place` are set if a workload blames one of its hosts: a program at fault blames hosts, too.
    """

    node: str  # name of the node
    kind: EvidenceKind  # hang, signal, copies, device, preflight, slow-chips, problem or warning
    time: str  # time of the observation
    source: str  # workload with its time of creation, or `node` for a condition of the node
    number: str  # distinguishes the observations of a source
    message: str  # observation in words
    place: str = ""  # host that the workload blames, such as `s0/h1`
    hosts: int = 0  # number of hosts of the workload
    share: float = 1.0  # fraction of the kind's weight: 0.5 if it is one of two hosts that is at fault

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The identity of the observation."""
        return self.node, self.kind, self.source, self.number


def merged(*parts: Iterable[Evidence]) -> list[Evidence]:
    """Return evidence of several sources without repetitions, oldest first."""
    by_key = {one.key: one for part in parts for one in part}
    return sorted(by_key.values(), key=lambda one: (_moment(one.time), one.key))


def decayed(one: Evidence, now: datetime) -> float:
    """Return the weight of evidence: that of its kind, halved every seven days."""
    age = max(timedelta(), now - _moment(one.time))
    return float(WEIGHTS[one.kind] * one.share * 0.5 ** (age / HALF_LIFE))


def scores(evidence: Sequence[Evidence], now: datetime, others: Sequence[Evidence] = ()) -> dict[str, float]:
    """Return the score of each node with evidence: the sum of the decayed weights of what counts against it.

    `others`: more evidence of the same sources, which no longer counts but may speak against their programs.
    """
    by_source: dict[str, list[Evidence]] = {}
    for one in merged(others, evidence):
        by_source.setdefault(one.source, []).append(one)
    result: dict[str, float] = {}
    for one in evidence:
        counts = not one.place or _blames_node(one, by_source[one.source])
        result[one.node] = result.get(one.node, 0.0) + (decayed(one, now) if counts else 0.0)
    return result


def _blames_node(one: Evidence, same_source: Sequence[Evidence]) -> bool:
    """Return whether a workload's evidence speaks against the node rather than against the workload's program.

    It speaks against the program if the same host of the workload failed on another node, too, or if the failures are
    spread over nodes as if at random.
    """
    blames = [other for other in same_source if other.place]
    if any(other.place == one.place and other.node != one.node for other in blames):
        return False
    failures, nodes = len(blames), len({other.node for other in blames})
    return nodes == 1 or (nodes < failures and probability_of_repeats(failures, nodes, one.hosts) <= _CHANCE)


def probability_of_repeats(failures: int, nodes: int, hosts: int) -> float:
    """Return a bound on the probability that failures of random hosts, out of `hosts`, hit at most so many nodes.

    Failure i hits a node that was hit before with a probability of at most (i - 1) / hosts. With r = failures - nodes,
    r or more failures do so with a probability of at most the sum, over all sets of r failures, of the products of
    these: the elementary symmetric polynomial of 1 .. failures - 1, which is the unsigned Stirling number of the first
    kind [failures, nodes], divided by hosts^r (union bound; Graham, Knuth and Patashnik, Concrete Mathematics, 6.1).
    """
    repeats = failures - nodes
    sums = [1] + [0] * repeats  # elementary symmetric polynomials of degree 0 .. repeats
    for number in range(1, failures):
        for degree in range(repeats, 0, -1):
            sums[degree] += number * sums[degree - 1]
    some = max(hosts, nodes)
    return float(min(1.0, sums[repeats] / some**repeats, comb(some, nodes) * (nodes / some) ** failures))


def to_text(evidence: Iterable[Evidence], now: datetime) -> str:
    """Return evidence of a node as the text of an annotation, without what hardly counts any more."""
    rows = [asdict(one) | {"message": one.message[:_LONGEST]} for one in evidence if decayed(one, now) >= _LEAST]
    for row in rows:
        del row["node"]
    return json.dumps(rows[-_KEPT:], separators=(",", ":"))


def from_text(node: str, text: object) -> list[Evidence]:
    """Return the evidence in an annotation of a node; what xpk did not write is ignored."""
    try:
        rows = json.loads(text) if isinstance(text, str) else []
    except (ValueError, RecursionError):
        return []
    return [one for row in (rows if isinstance(rows, list) else [])[:_KEPT] if (one := _from_row(node, row))]


def _from_row(node: str, row: object) -> Evidence | None:
    if not isinstance(row, dict) or not isinstance(row.get("hosts"), int) or not isinstance(row.get("share"), float):
        return None
    fields = {name: row.get(name) for name in ("time", "source", "number", "message", "place")}
    texts = {name: value for name, value in fields.items() if isinstance(value, str)}
    if len(texts) < len(fields) or row.get("kind") not in list(EvidenceKind):
        return None
    hosts, share = max(0, min(row["hosts"], _MOST_HOSTS)), min(1.0, max(0.0, row["share"]))
    return Evidence(node=node, kind=EvidenceKind(row["kind"]), hosts=hosts, share=share, **texts)


def _moment(text: str) -> datetime:
    """Return a time; a long-gone one for anything else."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return datetime(1970, 1, 1, tzinfo=UTC)
    return time if time.tzinfo else time.replace(tzinfo=UTC)
