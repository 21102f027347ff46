"""Settings for all tests."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from tests.offline.guard import nothing_leaves as nothing_leaves
from tests.prompt import pytest_configure as pytest_configure
from tests.time_limit import pytest_timeout_set_timer as pytest_timeout_set_timer

# The machines that run this are shared and slow by turns: a deadline would test them, not us.
settings.register_profile("ours", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ours")

# What whoever runs the tests prefers is not theirs: there is no such folder.
os.environ["XPK_CONFIG_DIR"] = "/nonexistent/xpk"

# What takes long begins first, so that the processes of `make test` end together.
_LONG = ("tests/xpk_ray", "tests/trainer", "tests/packaging", "tests/local", "tests/cli")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files of long tests first; their order is otherwise kept."""
    items.sort(
        key=lambda item: next((n for n, folder in enumerate(_LONG) if item.nodeid.startswith(folder)), len(_LONG))
    )
