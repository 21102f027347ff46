"""Settings of all tests."""

from __future__ import annotations

import gc
import os
from collections import Counter
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.offline.guard import nothing_leaves as nothing_leaves
from tests.prompt import pytest_configure as pytest_configure
from tests.time_limit import pytest_pyfunc_call as pytest_pyfunc_call
from tests.time_limit import pytest_timeout_set_timer as pytest_timeout_set_timer

# Test machines are shared and sometimes slow: a deadline would test the machine, not the code.
# Each run has other examples, so few in a run still become many.
settings.register_profile("ours", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ours")

# Preferences of the user who runs the tests must not apply: this folder does not exist.
os.environ["XPK_CONFIG_DIR"] = "/nonexistent/xpk"

# Folders whose tests mostly wait: for processes, time limits and servers.
WAITING = [
    Path(__file__).parent / folder
    for folder in ("cli/workload", "client", "console", "gke_emulator", "local", "trainer/hosts", "xpk_shared")
]

# What imports and collection make stays until the end: to look through it for garbage again and again takes seconds.
gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread files whose tests mostly wait over those whose tests compute, both with the longest ones first."""
    tests = Counter(item.path for item in items).most_common()
    place: dict[Path, float] = {}
    for waits in (True, False):
        files = [(path, count) for path, count in tests if waits == any(map(path.is_relative_to, WAITING))]
        total = sum(count for _, count in files)
        before = accumulate((count for _, count in files), initial=0)
        place |= {path: tests_before / total for (path, _), tests_before in zip(files, before, strict=False)}
    items.sort(key=lambda item: (place[item.path], item.path))


def pytest_collection_finish() -> None:
    """Leave all that exists out of later garbage collections, and collect less often: there is memory."""
    gc.freeze()
    gc.set_threshold(20_000, 50)
    gc.enable()
