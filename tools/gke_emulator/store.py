"""The emulator's state: in memory, and in a folder if it has one."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.cloud import container_v1

ClusterPb: Any = container_v1.Cluster.pb()
PoolPb: Any = container_v1.NodePool.pb()
OperationPb: Any = container_v1.Operation.pb()


@dataclass(slots=True)
class Pool:
    """A node pool as the API shows it, with fields that only the server knows."""

    message: Any
    nodes: list[str] = field(default_factory=list)  # names of the running instances
    size: int = 0  # requested instances, in all zones


@dataclass(slots=True)
class Work:
    """An operation, its duration (emulated seconds; None: forever), and the data that it needs to end."""

    message: Any
    seconds: float | None
    begun: float
    args: dict[str, Any] = field(default_factory=dict)


class Store:
    """Clusters by path (without their pools), pools by path, operations by path, and Compute Engine's resources."""

    def __init__(self, folder: Path | None) -> None:
        self.lock = threading.RLock()
        self.clusters: dict[str, Any] = {}
        self.pools: dict[str, Pool] = {}
        self.operations: dict[str, Work] = {}
        self.compute: dict[str, dict[str, Any]] = {}
        self.latest = 0.0
        self._database: sqlite3.Connection | None = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            # Other threads write, always holding `lock`.
            self._database = sqlite3.connect(folder / "gke.sqlite", check_same_thread=False, isolation_level=None)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=OFF")  # a killed program loses nothing; a failed machine may
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS things "
                "(kind TEXT, path TEXT, message BLOB, extra TEXT, PRIMARY KEY (kind, path))"
            )
            self._read(self._database)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Hold the lock; changes made meanwhile are written to the file atomically."""
        with self.lock:
            inside = self._database is None or self._database.in_transaction
            if self._database is not None and not inside:
                self._database.execute("BEGIN")
            try:
                yield
            finally:
                if self._database is not None and not inside:
                    self._database.execute("COMMIT")

    def pools_of(self, cluster: str) -> dict[str, Pool]:
        """Return the node pools of a cluster by path, in order of creation."""
        with self.lock:
            return {path: pool for path, pool in self.pools.items() if path.startswith(f"{cluster}/nodePools/")}

    def put_cluster(self, path: str, message: Any) -> None:
        """Store a cluster."""
        self.clusters[path] = message
        self._write("cluster", path, message.SerializeToString(), {})

    def put_pool(self, path: str, pool: Pool) -> None:
        """Store a node pool."""
        self.pools[path] = pool
        self._write("pool", path, pool.message.SerializeToString(), {"nodes": pool.nodes, "size": pool.size})

    def put_work(self, path: str, work: Work) -> None:
        """Store an operation."""
        self.operations[path] = work
        extra = {"seconds": work.seconds, "begun": work.begun, "args": work.args}
        self._write("operation", path, work.message.SerializeToString(), extra)

    def put_compute(self, path: str, value: dict[str, Any]) -> None:
        """Store a resource of Compute Engine."""
        self.compute[path] = value
        self._write("compute", path, b"", value)

    def drop(self, kind: str, path: str) -> None:
        """Remove a resource of a kind: cluster, pool, operation, compute."""
        things: dict[str, Any] = {"cluster": self.clusters, "pool": self.pools, "operation": self.operations,
                                  "compute": self.compute}[kind]  # fmt: skip
        things.pop(path, None)
        if self._database is not None:
            self._database.execute("DELETE FROM things WHERE kind = ? AND path = ?", (kind, path))

    def tick(self, now: float) -> None:
        """Store the emulated time, from which the next process continues."""
        self.latest = now
        self._write("clock", "", b"", {"now": now})

    def close(self) -> None:
        """Close the file."""
        with self.lock:
            if self._database is not None:
                self._database.close()
                self._database = None

    def _write(self, kind: str, path: str, message: bytes, extra: dict[str, Any]) -> None:
        if self._database is not None:
            # An update keeps the row's position, and so the order of creation.
            self._database.execute(
                "INSERT INTO things VALUES (?, ?, ?, ?) "
                "ON CONFLICT DO UPDATE SET message = excluded.message, extra = excluded.extra",
                (kind, path, message, json.dumps(extra)),
            )

    def _read(self, database: sqlite3.Connection) -> None:
        for kind, path, message, text in database.execute("SELECT * FROM things ORDER BY rowid"):
            extra = json.loads(text)
            if kind == "cluster":
                self.clusters[path] = ClusterPb.FromString(message)
            elif kind == "pool":
                self.pools[path] = Pool(PoolPb.FromString(message), extra["nodes"], extra["size"])
            elif kind == "operation":
                self.operations[path] = Work(OperationPb.FromString(message), **extra)
            elif kind == "compute":
                self.compute[path] = extra
            else:
                self.latest = extra["now"]
