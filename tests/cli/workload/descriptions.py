"""Descriptions of workloads that tests wait for."""

from __future__ import annotations

from typing import Any

from tests.cli.conftest import Xpk
from tests.waiting import until


def described(xpk: Xpk, name: str, condition: Any, seconds: float = 30) -> dict[str, Any]:
    """Return the workload's description once it fulfills a condition."""

    def fulfilled() -> dict[str, Any]:
        description: dict[str, Any] = xpk("workload", "describe", name, "-o", "json").data
        return description if condition(description) else {}

    return until(fulfilled, seconds=seconds)


def is_running(found: dict[str, Any]) -> bool:
    return bool(found["phase"] == "Running")
