"""A bucket on a server of this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e import bucket


@pytest.fixture(scope="module")
def storage() -> Iterator[bucket.BucketServer]:
    """A storage server, where its program is installed."""
    if bucket.missing():
        pytest.skip(bucket.missing())
    with bucket.bucket_server() as server:
        server.create_bucket("runs")
        yield server


@pytest.fixture
def server(storage: bucket.BucketServer, monkeypatch: pytest.MonkeyPatch) -> bucket.BucketServer:
    """The storage server, as the one that clients use."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
    return storage
