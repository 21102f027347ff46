"""Settings of all tests."""

from __future__ import annotations

import gc
import os

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order files by their names, so that folders whose tests wait run beside folders whose tests compute."""
    items.sort(key=lambda item: (item.path.name, item.path), reverse=True)


def pytest_collection_finish() -> None:
    """Leave all that exists out of later garbage collections."""
    gc.freeze()
    gc.enable()
