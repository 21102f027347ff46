"""Settings of all tests."""

from __future__ import annotations

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

# Long tests start first, so that the processes of `make test` end at about the same time.
_LONG = ("tests/xpk_ray", "tests/trainer", "tests/packaging", "tests/local", "tests/cli")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files of long tests first; otherwise keep their order."""
    items.sort(
        key=lambda item: next((n for n, folder in enumerate(_LONG) if item.nodeid.startswith(folder)), len(_LONG))
    )
