"""A create with an instant cloud and an API server in memory, in one process: the wall time of xpk itself.

With a real API server on the same cores, most of the time is that server's.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

from bench.gke_scale.cases import POLL_SECONDS, TPU_TYPE, Case
from tests.capacity.gke.site import QUOTAS, Site
from tools.gke_emulator.emulator import GkeEmulator


def measure(case: Case, folder: Path) -> dict[str, Any]:
    """Return the seconds of planning and applying, the emulator and the API server in memory included."""
    with GkeEmulator(quotas=QUOTAS, **case.emulation()) as gke:
        site = Site(folder, gke)
        site.environ["XPK_GKE_POLL_SECONDS"] = str(POLL_SECONDS)
        site.plan(case.num_slices, TPU_TYPE, name="d")  # fills caches
        calls = len(gke.calls)
        start, cpu = time.perf_counter(), time.process_time()
        plan = site.plan(case.num_slices, TPU_TYPE)
        planned = time.perf_counter()
        plan.carry_out(lambda title: None)
        end = time.perf_counter()
        assert len(site.pools()) == case.num_slices + 1
        return {
            "plan_seconds": round(planned - start, 2),
            "apply_seconds": round(end - planned, 2),
            "cpu_seconds_with_emulator": round(time.process_time() - cpu, 2),
            "cloud_calls": dict(Counter(call.method for call in gke.calls[calls:])),
        }
