"""A bucket on a local server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e import bucket


@pytest.fixture(scope="module")
def storage() -> Iterator[bucket.BucketServer]:
    """Yield a storage server, if its program is installed."""
    if bucket.missing():
        pytest.skip(bucket.missing())
    with bucket.bucket_server() as server:
        server.create_bucket("runs")
        yield server


@pytest.fixture
def server(storage: bucket.BucketServer, monkeypatch: pytest.MonkeyPatch) -> bucket.BucketServer:
    """Yield the storage server and configure clients to use it."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
    return storage
