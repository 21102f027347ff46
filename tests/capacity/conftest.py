"""A test machine with Docker and kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.capacity.machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Return a machine without clusters."""
    return Machine(tmp_path)
