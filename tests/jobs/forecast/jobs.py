"""Jobs whose goodput is forecast in tests."""

from __future__ import annotations

from typing import Any

from xpk.jobs.forecast.elastic import ElasticJob, Outage
from xpk.jobs.forecast.forecast import Job
from xpk_shared.goodput.failures import FailureRate
from xpk_shared.goodput.restarts import Failures, Restarts, Tier


def restarts(
    mtbf: float, recovery: float, *, has_local: bool = True, save: float = 5.0, commit: float = 60.0
) -> Restarts:
    """Return a job with a failure every `mtbf` seconds, of three kinds."""
    kinds = ((0.2, recovery / 3, True), (0.7, recovery, True), (0.1, 2 * recovery, False))
    return Restarts(
        failures=tuple(
            Failures(
                per_second=share / mtbf,
                recovery_seconds=seconds,
                local_survives=survives and has_local,
                loses_machine=share != 0.2,
            )
            for share, seconds, survives in kinds
        ),
        persistent=Tier(save=save, commit=commit),
        local=Tier(save=1.0, commit=10.0) if has_local else None,
    )


def elastic(**changes: Any) -> ElasticJob:
    """Return elastic slices with a failure every hour."""
    fields: dict[str, Any] = {
        "num_slices": 16,
        "min_slices": 9,
        "outages": (
            Outage(per_second=0.3 / 3600, seconds=40.0),
            Outage(per_second=0.7 / 3600, seconds=120.0, loses_machine=True),
        ),
        "repair": 3600.0,
        "spares": 1,
        "stall": 1.0,
        "save": 4.0,
        "overhead": 0.01,
    }
    return ElasticJob(**(fields | changes))


def job(**changes: Any) -> Job:
    """Return a job of 16 slices of v5litepod-256."""
    fields: dict[str, Any] = {
        "name": "64b",
        "tpu_type": "v5litepod-256",
        "num_slices": 16,
        "hosts_per_slice": 64,
        "chips_per_slice": 256,
        "step_seconds": 10.0,
        "rate": FailureRate.prior(50_000.0),
        "host_bytes": 12e9,
    }
    return Job(**(fields | changes))
