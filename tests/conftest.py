"""Settings of all tests."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.offline.guard import nothing_leaves as nothing_leaves
from tests.prompt import pytest_configure as pytest_configure
from tests.time_limit import pytest_pyfunc_call as pytest_pyfunc_call
from tests.time_limit import pytest_timeout_set_timer as pytest_timeout_set_timer

# Test machines are shared and sometimes slow: a deadline would test the machine, not the code.
settings.register_profile("ours", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ours")

# Preferences of the user who runs the tests must not apply: this folder does not exist.
os.environ["XPK_CONFIG_DIR"] = "/nonexistent/xpk"

# What imports and collection make stays until the end: to look through it for garbage again and again takes seconds.
gc.disable()

_ROOT = Path(__file__).resolve().parents[1]

# Tests that mostly wait for processes and timeouts, in this order: they run beside those that compute.
_WAITING = ("tests/agents", "tests/cli", "tests/local", "tests/xpk_shared", "tests/client", "tests/capacity")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let files of waiting tests alternate with other files."""
    waiting, other = dict[Path, int](), dict[Path, int]()
    for item in items:
        name = item.path.relative_to(_ROOT).as_posix()
        folder = next((n for n, folder in enumerate(_WAITING) if name.startswith(folder)), None)
        if folder is None:
            other[item.path] = len(other)
        else:
            waiting[item.path] = folder
    ranks: dict[Path, tuple[float, str]] = {}
    for files in (waiting, other):
        ordered = sorted(files, key=files.__getitem__)
        ranks |= {file: (at / len(files), str(file)) for at, file in enumerate(ordered)}
    items.sort(key=lambda item: ranks[item.path])


def pytest_collection_finish() -> None:
    """Leave all that exists out of later garbage collections."""
    gc.freeze()
    gc.enable()
