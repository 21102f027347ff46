"""Waiting for a workload detects every change, also between a read and the following watch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from tests.jobs.objects import Obj, jobset
from xpk.api.base import Change
from xpk.jobs import lifecycle
from xpk.model.status import Phase
from xpk.testing import FakeApi

COMPLETED = {"type": "Completed", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}


class Quick(FakeApi):
    """The workload ends before the watch begins, without later events."""

    def watch(
        self,
        kind: str,
        namespace: str | None = "default",
        selector: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
    ) -> Iterator[tuple[Change, Obj]]:
        """Yield the ended workload, then wait for the timeout."""
        self.patch("JobSet", "w", {"status": {"conditions": [COMPLETED]}})
        yield "ADDED", self.get("JobSet", "w")
        time.sleep(timeout or 60.0)


def test_an_end_before_the_watch_is_detected_immediately() -> None:
    api: Any = Quick([jobset() | {"kind": "JobSet"}])
    began = time.monotonic()
    assert lifecycle.wait(api, "w", "default", timeout=30).phase is Phase.SUCCEEDED
    assert time.monotonic() - began < 5
