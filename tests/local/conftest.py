"""A cluster of two slices of two hosts for each test, removed afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local.cases import set_up
from xpk.local import process
from xpk.local.api import LocalApi
from xpk.local.cluster import create_cluster, delete_cluster


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "clusters" / "demo"


@pytest.fixture
def api(folder: Path) -> Iterator[LocalApi]:
    api = create_cluster(folder)
    set_up(api)
    yield api
    pods = list((folder / process.PODS).glob("*"))
    delete_cluster(folder, force=True)
    assert not folder.exists()
    assert [process.strays(pod) for pod in pods if process.strays(pod)] == []
