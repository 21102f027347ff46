"""Faults of an object store: fake-gcs-server, with a proxy between it and the hosts."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import ClassVar

from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from e2e.bucket import BucketServer, Forwarding, Proxy, bucket_server, missing
from e2e.harness import DrillError
from e2e.matrix.cell import Cell
from e2e.matrix.fault import LOCAL, Holds, fault
from xpk_shared.storage.bucket import Bucket

_SECONDS, _SLOW_SECONDS = 10.0, 2.0
_INTERVAL_SECONDS = 2.0  # between two copies of the run's files
_OWN_STORE = "its output is its own; the trainer reads and writes buckets"
_OWN_CODE = "the trainer writes it with the same code under Ray"
_BUCKET = "matrix"


class _Harmed(Forwarding):
    """Fails, delays or truncates responses while its fault is on."""

    mode: ClassVar[str] = ""
    cut: ClassVar[list[str]] = []

    def treat(self, body: bytes) -> None:
        """See `Forwarding`."""
        if self.mode == "errors":
            self.respond(503, [], json.dumps({"error": {"code": 503, "message": "backend error"}}).encode())
            return
        if self.mode == "slow":
            time.sleep(_SLOW_SECONDS)
        status, headers, content = self.forward(body)
        if self.mode == "truncated" and self.command == "GET" and "alt=media" in self.path and len(content) > 1:
            self.cut.append(self.path)
            if len(self.cut) % 2:
                self.respond(status, headers, content, len(content) // 2)
                return
        self.respond(status, headers, content)


@fault(
    "bucket-errors",
    f"The object store answers every request with 503 for {_SECONDS:.0f} s.",
    Holds.CONTINUES,
    platforms=(LOCAL,),
    plain=_OWN_STORE,
    ray=_OWN_CODE,
)
def _errors(cell: Cell) -> None:
    _train(cell)
    cell.strike(lambda: _set("errors"))
    cell.heal_after(_SECONDS, lambda: _set(""))


@fault(
    "bucket-slow",
    f"Every response of the object store is {_SLOW_SECONDS:.0f} s late for {2 * _SECONDS:.0f} s.",
    Holds.CONTINUES,
    platforms=(LOCAL,),
    plain=_OWN_STORE,
    ray=_OWN_CODE,
)
def _slow(cell: Cell) -> None:
    _train(cell)
    cell.strike(lambda: _set("slow"))
    cell.heal_after(2 * _SECONDS, lambda: _set(""))


@fault(
    "bucket-away",
    f"The object store does not answer for {_SECONDS:.0f} s; connections stay open.",
    Holds.CONTINUES,
    platforms=(LOCAL,),
    plain=_OWN_STORE,
    ray=_OWN_CODE,
)
def _away(cell: Cell) -> None:
    server = _train(cell)
    cell.mirror = lambda: None  # it would wait, too
    cell.strike(server.pause)
    cell.heal_after(_SECONDS, server.resume)
    cell.mirror = _Mirror(cell, server)


@fault(
    "bucket-truncated",
    "A host's process is killed, and every second object that is read then ends in the middle.",
    Holds.RESTARTS,
    platforms=(LOCAL,),
    plain=_OWN_STORE,
    ray=_OWN_CODE,
)
def _truncated(cell: Cell) -> None:
    _train(cell)
    _set("truncated")
    cell.heals.callback(_set, "")
    cell.send(signal.SIGKILL, cell.any_host())
    cell.until(lambda: cell.progress.stepped_after(cell.struck))
    if not _Harmed.cut:
        raise DrillError("nothing was read from the object store")


def _set(mode: str) -> None:
    _Harmed.mode = mode
    _Harmed.cut.clear()


def _train(cell: Cell) -> BucketServer:
    """Start a run whose hosts reach the store through the proxy, and commands directly."""
    if why := missing():
        raise DrillError(why)
    server = cell.removals.enter_context(bucket_server())
    server.create_bucket(_BUCKET)
    proxy = cell.removals.enter_context(Proxy(server, _Harmed))
    cell.removals.callback(proxy.shutdown)
    os.environ["STORAGE_EMULATOR_HOST"] = server.url
    cell.removals.callback(os.environ.pop, "STORAGE_EMULATOR_HOST")
    copy = cell.lab.folder / f"copy-{cell.name}"
    cell.start("--output-root", f"gs://{_BUCKET}", "--env", f"STORAGE_EMULATOR_HOST={proxy.url}", output=copy)
    cell.mirror = _Mirror(cell, server)
    cell.await_training()
    return server


class _Mirror:
    """Copies metrics and events of a run from the store into a folder, at most every few seconds."""

    def __init__(self, cell: Cell, server: BucketServer) -> None:
        client = storage.Client(
            project="e2e", credentials=AnonymousCredentials(), client_options={"api_endpoint": server.url}
        )
        self._place, self._folder, self._copied = Bucket(client, _BUCKET, cell.name), cell.output, 0.0

    def __call__(self) -> None:
        """Copy."""
        if time.monotonic() < self._copied + _INTERVAL_SECONDS:
            return
        for entry in self._place.walk(frozenset()):
            if entry.name == "metrics.jsonl" or (entry.name.startswith("events/") and entry.name.endswith(".jsonl")):
                self._copy(entry.name)
        self._copied = time.monotonic()

    def _copy(self, name: str) -> None:
        file: Path = self._folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes((self._place / name).read())
