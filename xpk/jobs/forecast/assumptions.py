"""Assumptions of a forecast: durations and shares, with the measurement or the reason of each default."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xpk_shared.goodput.failures import LOCAL_SHARE, PROCESS_SHARE

GIB = 2**30
_SAVES = "bench/results/saves-2026-11-22.json, 76 MB on one host of two cores"
_RECOVERY = "bench/results/recovery-2026-11-25.json, 2 slices x 2 hosts"
# (hosts, seconds until all processes run), between which durations are interpolated in logarithms.
_PODS = ((4, 5.5), (1024, 72.85), (12736, 1073.1))
_PODS_SOURCE = (
    "bench/results/recovery-kind-2026-11-22.json (4 hosts), restart-at-scale-2026-11-25.json (1,024) and, for a first "
    "start, start-at-scale-2026-11-26.json (12,736); the control plane had two cores"
)
_PROCESSES = ((4, 0.5), (256, 2.33))
_PROCESSES_SOURCE = (
    "bench/results/recovery-2026-11-25.json (4 hosts) and restart-at-scale-2026-11-25.json (256), extrapolated"
)
_PROCESS_SHARE_SOURCE = "interruptions of Llama 3 (section 3.3.4) that are not attributed to hardware"
_TINY = "of a state of a few MB"


def _assumed(flag: str, help: str, *, is_share: bool = False) -> Any:
    return dataclasses.field(metadata={"flag": flag, "help": help, "is_share": is_share})


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """Durations in seconds, and shares from 0 to 1, that a forecast follows from."""

    detection: float = _assumed("--detection", "Time from the end of a process until the others notice.")
    machine_detection: float = _assumed(
        "--machine-detection", "Time from the end of a machine until its pods are gone."
    )
    restart_processes: float = _assumed("--restart-processes", "Time to restart all processes in place.")
    restart_pods: float = _assumed("--restart-pods", "Time to restart all processes in new pods.")
    restart_slice: float = _assumed("--restart-slice", "Time to restart the processes of one slice in new pods.")
    compilation: float = _assumed("--compilation", "Time to load or compile the step after a restart.")
    restore: float = _assumed("--restore", "Time to restore a persistent checkpoint.")
    local_restore: float = _assumed("--local-restore", "Time to restore a local checkpoint, or to join elastic slices.")
    save: float = _assumed("--save", "Time that steps wait for a persistent save.")
    local_save: float = _assumed("--local-save", "Time that steps wait for a local save.")
    commit: float = _assumed("--commit", "Time from a persistent save to its commit, while steps continue.")
    local_commit: float = _assumed("--local-commit", "Time from a local save to its commit, while steps continue.")
    stall: float = _assumed("--stall", "Time that elastic slices pause when one leaves or joins.")
    repair: float = _assumed("--repair", "Time until a lost machine is replaced.")
    process_share: float = _assumed(
        "--process-share", "Share of failures that leave the machine intact.", is_share=True
    )
    local_share: float = _assumed(
        "--local-share", "Share of lost machines after which the local tier is complete.", is_share=True
    )
    elastic_overhead: float = _assumed("--elastic-overhead", "Share of a step that elastic slices add.", is_share=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """One assumption of a forecast."""

    name: str  # name of the assumption
    value: float  # seconds, or a share from 0 to 1
    source: str  # measurement that it comes from, or "option"


def default_assumptions(
    *, hosts_per_slice: int, num_slices: int, host_bytes: float | None
) -> tuple[Assumptions, dict[str, str]]:
    """Return the defaults of a job and the source of each. `host_bytes`: state of a host's chips; None if unknown.

    Durations of saves and restores are those measured, in proportion to the state.
    """
    hosts = hosts_per_slice * num_slices
    values: dict[str, tuple[float, str]] = {
        "detection": (0.04, _RECOVERY),
        "machine_detection": (5.94, "bench/results/recovery-kind-fenced-2026-11-24.json, with `xpk cluster fence`"),
        "restart_processes": (_interpolated(_PROCESSES, hosts), _PROCESSES_SOURCE),
        "restart_pods": (_interpolated(_PODS, hosts), _PODS_SOURCE),
        "restart_slice": (_interpolated(_PODS, hosts_per_slice), _PODS_SOURCE),
        "compilation": (0.3, f"{_RECOVERY}, a small program; no TPU has loaded one"),
        "stall": (0.15, "bench/results/soak-elastic-2026-11-25.json, faults of one slice"),
        "repair": (1800.0, "assumed"),
        "process_share": (PROCESS_SHARE, _PROCESS_SHARE_SOURCE),
        "local_share": (LOCAL_SHARE, "assumed") if num_slices > 1 else (0.0, "one slice has no copies"),
        "elastic_overhead": (0.01, "assumed; on two cores there was none (bench/README.md)"),
    }
    for name, (rate, least, source) in _RATES.items():
        seconds = least if host_bytes is None else max(least, host_bytes / rate)
        values[name] = (seconds, f"{source}{', ' + _TINY if host_bytes is None else ''}")
    return Assumptions(**{name: value for name, (value, _) in values.items()}), {
        name: source for name, (_, source) in values.items()
    }


# Bytes per second of one host, seconds without a known state, and the measurement.
_RATES: Mapping[str, tuple[float, float, str]] = {
    "restore": (50.3e6 / 0.66, 0.28, "bench/results/checkpoint-managers-disk-2026-11-23.json, 50 MB on one host"),
    "local_restore": (76.3e6 / 0.125, 0.28, f"{_SAVES}, as fast as it was written"),
    "save": (76.3e6 / 0.0157, 0.02, _SAVES),
    "local_save": (76.3e6 / 0.0454, 0.05, _SAVES),
    "commit": (76.3e6 / 0.331, 0.33, _SAVES),
    "local_commit": (76.3e6 / 0.125, 0.12, _SAVES),
}


def named(assumptions: Assumptions, sources: Mapping[str, str]) -> list[Assumption]:
    """Return the assumptions one by one, with their sources."""
    return [
        Assumption(name=name, value=round(value, 4), source=sources[name])
        for name, value in dataclasses.asdict(assumptions).items()
    ]


def _interpolated(points: tuple[tuple[int, float], ...], hosts: int) -> float:
    """Return the seconds for a number of hosts on the line through the nearest two points, in logarithms."""
    pairs = list(itertools.pairwise(points))
    (few, short), (many, long) = next((pair for pair in pairs if hosts <= pair[1][0]), pairs[-1])
    exponent = math.log(long / short) / math.log(many / few)
    return short * math.pow(max(hosts, 1) / few, exponent)
