"""A console of a local cluster, served as `xpk serve` does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.conftest import state as state
from tests.console.browser import Browser
from tests.waiting import until
from xpk import Cluster, Workload, create_cluster
from xpk.console.access import Access
from xpk.console.cluster_reader import ClusterReader
from xpk.console.clusters import open_clusters
from xpk.console.feed import Feed
from xpk.console.server import application, make_server, open_socket
from xpk.console.views import Views

CLUSTER, COOKIE = "dev", "xpk-console"


@dataclass(kw_only=True)
class Console(Browser):
    """A running server with its feed, and a browser of it."""

    feed: Feed


@contextmanager
def serving(readers: list[ClusterReader]) -> Iterator[Console]:
    """Serve a console of clusters."""
    tokens: list[str] = []
    feed = Feed(readers, Views(tuple(reader.name for reader in readers)))
    listening = open_socket("127.0.0.1", 0)
    server = make_server(application(feed, Access(tokens.append), cookie=COOKIE))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        until(lambda: server.started)
        yield Console(port=listening.getsockname()[1], tokens=tokens, feed=feed)
    finally:
        server.should_exit = True
        thread.join(10)


@pytest.fixture
def serve() -> Iterator[Callable[[list[ClusterReader]], Console]]:
    """Return a function that serves a console of clusters."""
    with ExitStack() as stack:
        yield lambda readers: stack.enter_context(serving(readers))


@pytest.fixture
def console(state: Path, serve: Callable[[list[ClusterReader]], Console]) -> Console:
    """Return the console of a local cluster of two slices with one host each."""
    create_cluster(CLUSTER, "v5litepod-1", num_slices=2)
    return serve(open_clusters([CLUSTER], "default", None))


def submit(name: str = "lm") -> Path:
    """Create a workload that only waits, and return its output folder."""
    cluster = Cluster(CLUSTER)
    cluster.submit(Workload(name=name, command="sleep 600"))
    until(lambda: cluster.workload(name).status().phase == "Running", seconds=60)
    return Path(cluster.workload(name).status().output_dir)
