"""Checkpoints of one process, on a disk with injected errors."""

import json
import os
import queue
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.checkpoint.manager import Checkpoints
from trainer.checkpoint.stores.folder import FolderStore
from trainer.hosts.peers import Peers
from trainer.storage import open_place
from trainer.telemetry.metrics import Events, JsonLines

Errors = dict[int | str, int]


class FailingStore(FolderStore):
    """A folder on a disk with these errors for the arrays of a step, the list of "steps", or a "commit"."""

    def __init__(self, folder: Path, errors: Errors) -> None:
        super().__init__(folder)
        self._errors = errors

    def _give(self, what: int | str) -> None:
        if code := self._errors.get(what):
            raise OSError(code, os.strerror(code), str(self._folder))

    def steps(self) -> list[int]:
        self._give("steps")
        return super().steps()

    def damage(self, step: int) -> str:
        self._give(step)
        return super().damage(step)

    def commit(self, step: int, attempt_id: str, notes: dict[str, Any]) -> None:
        self._give("commit")
        super().commit(step, attempt_id, notes)


class Store:
    """The checkpoints of one process in a folder, and its events."""

    def __init__(self, folder: Path, keep: int = 3, check_lease: Callable[[], str] = lambda: "") -> None:
        lost: queue.Queue[int] = queue.Queue()
        self.peers = Peers(0, 1, on_lost=lost.put, on_message=lambda what, by: None)
        self.log = folder / "events.jsonl"
        events = Events(JsonLines(open_place(self.log)), 0, 0, 0, time.monotonic())
        self.folder = folder / "checkpoints"
        self.errors: Errors = {}
        self.folder.mkdir(exist_ok=True)
        store = FailingStore(self.folder, self.errors)
        options: dict[str, Any] = {"store": store, "check_lease": check_lease}
        self.checkpoints = Checkpoints(open_place(self.folder), keep, {"note": 1}, self.peers, events, **options)
        self.checkpoints.choose()

    def steps(self) -> list[int]:
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdigit())

    def save(self, step: int, state: Any) -> str:
        self.checkpoints.save(step, state)
        return self.checkpoints.wait()

    def events(self, name: str) -> list[dict[str, Any]]:
        return [e for e in map(json.loads, self.log.read_text().splitlines()) if e["event"] == name]
