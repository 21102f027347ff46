"""Results of preflight checks: those that a workload has written, by host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xpk.api.text import short
from xpk.jobs.output.json_lines import TIMES, parse, read_number, read_whole
from xpk.model.status import HostStatus, WorkloadStatus, exit_words
from xpk_shared.supervisor.names import PEER_LOST, PREFLIGHT_FAILED

RECORD = "preflight.jsonl"
_NONE = 0, PEER_LOST, 143  # exit codes of hosts that have not failed by themselves
_LONGEST = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Result of one check on one host."""

    check: str  # check: dns, disk, chips, clock, bf16, int8, memory, ici or dcn
    passed: bool  # whether it passed
    value: float | None  # measurement; null if there is none
    unit: str  # unit of `value`: s, or GB/s in each direction
    detail: str  # what was measured
    problem: str  # what is wrong; empty if it passed


@dataclass(frozen=True, slots=True, kw_only=True)
class HostChecks:
    """Checks of one host."""

    slice: int  # number of its slice in the workload of the checks, from 0
    host: int  # number in its slice, from 0
    node: str | None  # name of its node; null if it was not scheduled
    passed: bool | None  # whether it passed all checks; null if it was not checked completely
    problem: str  # what is wrong; empty if it passed
    checks: tuple[CheckResult, ...]  # results, empty if it ended before they were written

    @property
    def label(self) -> str:
        """Return the short name that logs and messages use: `s0/h1`."""
        return f"s{self.slice}/h{self.host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """Checks of all hosts of some slices."""

    workload: str  # name of the workload that ran the checks
    num_slices: int  # number of checked slices
    passed: bool  # whether all hosts passed all checks
    hosts: tuple[HostChecks, ...]  # hosts, by slice and number


def read_preflight(status: WorkloadStatus, record: bytes) -> Preflight:
    """Return the checks of a workload's hosts from its final status and its record."""
    rows: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
    for row in filter(None, map(parse, record.split(b"\n"))):
        place = read_whole(row, "slice"), read_whole(row, "host")
        if place[0] is not None and place[1] is not None and isinstance(row.get("passed"), bool):
            rows.setdefault((place[0], place[1]), []).append(row)
    hosts = tuple(_host(host, _newest(rows.get((host.slice, host.host), ()))) for host in status.hosts)
    complete = len(hosts) == status.num_hosts and all(host.passed for host in hosts)
    return Preflight(workload=status.name, num_slices=status.num_slices, passed=complete, hosts=hosts)


def _newest(rows: Sequence[Mapping[str, Any]]) -> list[CheckResult]:
    """Return the results of a host's last checks: a workload that was preempted checks its hosts, or others, again."""
    times = [read_number(row, "time", TIMES) or 0.0 for row in rows]
    newest = max(times, default=0.0)
    return [_result(row) for row, time in zip(rows, times, strict=True) if time == newest]


def _result(row: Mapping[str, Any]) -> CheckResult:
    return CheckResult(
        check=short(row.get("check"), 20),
        passed=bool(row["passed"]),
        value=read_number(row, "value"),
        unit=short(row.get("unit"), 10),
        detail=short(row.get("detail"), _LONGEST),
        problem=short(row.get("problem"), _LONGEST),
    )


def _host(host: HostStatus, results: Sequence[CheckResult]) -> HostChecks:
    """Return the checks of a host. One that ended early has only an exit code, and perhaps its last words."""
    problems = [f"{result.check}: {result.problem}" for result in results if not result.passed]
    passed: bool | None = not problems if results else None
    if not results and host.exit_code not in (None, *_NONE):
        passed = False
        words = str(host.reason).removeprefix(PREFLIGHT_FAILED)
        problems = [words if words != host.reason else f"ended with {exit_words(host.exit_code or 0)}"]
    elif not results:
        problems = ["not checked"]
    return HostChecks(
        slice=host.slice,
        host=host.host,
        node=host.node,
        passed=passed,
        problem="; ".join(problems),
        checks=tuple(results),
    )
