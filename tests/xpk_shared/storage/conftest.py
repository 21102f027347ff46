"""Places on a disk, in a bucket in memory, and in a bucket on a local server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.conftest import server, storage  # noqa: F401
from tests.trainer import cloud_storage
from xpk_shared.storage import Place, open_place

Open = Callable[[str], Place]


@pytest.fixture(params=["disk", "memory", "server"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Open a place of this test's own by its name."""
    if request.param == "disk":
        return lambda name: open_place(tmp_path / name)
    if request.param == "memory":
        client = cloud_storage.Client()
        return lambda name: cloud_storage.place(name, client)
    request.getfixturevalue("server")
    return lambda name: open_place(f"gs://runs/{tmp_path.name}/{name}")
