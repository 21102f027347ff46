"""Seconds of a preflight on emulated chips: of the checks alone, and of the whole program with its import of JAX."""

from __future__ import annotations

import re
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.trainer.preflight.hosts import run_hosts

_REPEAT = 5
_SLICES = _HOSTS = 2


def measure() -> dict[str, Any]:
    """Return the fastest of several preflights of 2 slices of 2 hosts, and the CPU time of a host."""
    runs = [_preflight() for _ in range(_REPEAT)]
    return {"hosts": _SLICES * _HOSTS, **{key: min(run[key] for run in runs) for key in runs[0]}}


def _preflight() -> dict[str, float]:
    before, began = _cpu_seconds(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        codes, outputs = run_hosts(Path(folder), slices=_SLICES, hosts=_HOSTS)
    whole = time.monotonic() - began
    assert set(codes.values()) == {0}, outputs
    checks = re.search(r"hosts passed, ([\d.]+) s after JAX was imported", outputs["s0/h0"])
    assert checks, outputs
    return {
        "checks_seconds": float(checks[1]),
        "whole_seconds": round(whole, 2),
        "cpu_seconds_per_host": round((_cpu_seconds() - before) / (_SLICES * _HOSTS), 2),
    }


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
