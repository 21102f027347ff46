"""Estimated starts of queued workloads, and their assumptions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StartEstimate:
    """Estimated start of a queued workload if nothing else is submitted. Times are RFC 3339."""

    earliest: str | None  # start if all runs end early; null if it does not start
    expected: str | None  # start if all runs take as long as expected; null if it does not start
    latest: str | None  # start if all runs end late; null if it does not start
    rests_on: tuple[str, ...]  # assumptions, such as `starts when team-a/big ends (in 2h, from its metrics)`
    preempts: tuple[str, ...]  # workloads that are preempted for it
    reason: str = ""  # reason why it does not start, or why there is no estimate; empty otherwise
    is_beyond_quota: bool = False  # whether it never starts: its queue can never have what it requests


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingForecast(StartEstimate):
    """Estimated start of one of a cluster's queued workloads."""

    name: str  # name of the workload
    namespace: str  # Kubernetes namespace; empty for workloads of --add-workload
    queue: str  # name of its queue
    priority: int  # value of its priority
    needs: dict[str, int]  # requested amount of each resource, by flavor/resource


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionForecast:
    """A running workload that would be preempted."""

    workload: str  # workload that is preempted, as namespace/name
    by: str  # workload for which it is preempted
    time: str  # expected time of the preemption
    resumes: str | None  # expected time at which it runs again; null if it does not


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedQueue:
    """Result of a replayed trace in one queue. Times are in seconds."""

    queue: str  # name of the queue
    workloads: int  # number of workloads
    started: int  # number of workloads that started
    wait_mean: float | None  # mean wait until the first start
    wait_50: float | None  # median wait
    wait_90: float | None  # wait that 90 % of the workloads do not exceed
    wait_max: float | None  # longest wait
    preemptions: int  # number of preemptions of its workloads


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueForecast:
    """A simulation of a cluster's queues."""

    time: str  # time at which it begins
    pending: tuple[PendingForecast, ...]  # queued workloads, in the order of their starts
    preemptions: tuple[PreemptionForecast, ...]  # running workloads that would be preempted
    durations: dict[str, str]  # assumed duration of each workload, in words
    changes: tuple[str, ...]  # assumed changes, such as `quota of red: 4 -> 8 slices of v5litepod-16`
    refused: tuple[str, ...]  # queues that are not simulated, with the reason
    loops: tuple[str, ...]  # workloads that preempt each other in a loop under the queues' rules
    replayed: tuple[ReplayedQueue, ...] = ()  # result of --replay in each queue; empty without it
    replayed_seconds: float | None = None  # time from the first submission of --replay to the last end
