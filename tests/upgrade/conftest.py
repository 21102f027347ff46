"""The fixtures of each earlier version."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import state as state
from tests.cli.conftest import xpk as xpk
from tests.upgrade.release import FIXTURES


@pytest.fixture(params=sorted(FIXTURES.iterdir()), ids=lambda folder: str(folder.name))
def version(request: pytest.FixtureRequest) -> Path:
    """Return the folder of a version's fixtures."""
    folder: Path = request.param
    return folder
