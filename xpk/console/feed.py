"""The parts of the page that each browser shows, read by one task for each cluster, whatever the number of browsers.

A task reads only while somebody listens. It pauses at least four times as long as it has read, so that reading takes
at most a fifth of the time of a server that answers slowly.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import anyio.to_thread

from xpk.api.text import short
from xpk.console.cluster_reader import ClusterReader, ClusterView
from xpk.console.run_reader import RunKey, RunReader, RunView

_BEAT_SECONDS = 15.0  # after which a browser gets a sign of life
_MAX_SHARE = 0.2  # of the time that is spent on reading

View = TypeVar("View")
Parts = Mapping[str, str]  # HTML of each part of the page, by its name


@dataclass(frozen=True, slots=True)
class Selection:
    """The view of a browser: some runs, or none for the overview; `is_narrow`: on a small screen."""

    runs: tuple[RunKey, ...] = ()
    is_narrow: bool = False


@dataclass(slots=True)
class Readings:
    """The newest reading of each cluster and run."""

    clusters: dict[str, ClusterView]
    runs: dict[RunKey, RunView]


Render = Callable[[Selection, Readings], Parts]


class Feed:
    """Reads clusters for those who listen; `render` returns the parts of a selection, or none before it was read."""

    def __init__(self, clusters: Sequence[ClusterReader], render: Render) -> None:
        self._readers = {cluster.name: RunReader(cluster) for cluster in clusters}
        self._render = render
        self._listeners = Counter[Selection]()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wake = {name: asyncio.Event() for name in self._readers}
        self._news = asyncio.Condition()
        self._version = 0
        self._readings = Readings({}, {})
        self._rendered: dict[Selection, tuple[int, Parts]] = {}
        self._rendering = asyncio.Lock()

    @property
    def num_listeners(self) -> int:
        """Number of browsers that listen."""
        return self._listeners.total()

    @property
    def is_reading(self) -> bool:
        """True while any cluster is read."""
        return not all(task.done() for task in self._tasks.values())

    async def listen(self, selection: Selection) -> AsyncIterator[Parts]:
        """Yield all parts, then those that have changed; at times nothing, as a sign of life."""
        self._add(selection)
        try:
            sent: dict[str, str] = {}
            version, last = -1, time.monotonic()
            while True:
                async with self._news:
                    await self._news.wait_for(lambda seen=version: self._version != seen)  # type: ignore[misc]
                version, parts = await self._parts(selection)
                changed = {name: html for name, html in parts.items() if sent.get(name) != html}
                if changed or time.monotonic() - last > _BEAT_SECONDS:
                    sent |= changed
                    last = time.monotonic()
                    yield changed
        finally:
            self._remove(selection)

    def _add(self, selection: Selection) -> None:
        self._listeners[selection] += 1
        self._wake_all()  # a new selection is read at once
        for name in self._readers:
            if name not in self._tasks or self._tasks[name].done():
                self._tasks[name] = asyncio.create_task(self._follow(name))

    def _wake_all(self) -> None:
        for event in self._wake.values():
            event.set()

    def _remove(self, selection: Selection) -> None:
        self._listeners[selection] -= 1
        if self._listeners[selection] > 0:
            return
        del self._listeners[selection]
        self._rendered.pop(selection, None)
        for key in selection.runs:
            if not any(key in other.runs for other in self._listeners):
                self._readings.runs.pop(key, None)
        if not self._listeners:
            self._wake_all()  # the tasks end

    async def _parts(self, selection: Selection) -> tuple[int, Parts]:
        """Return the parts of a selection and their version, rendered once for all browsers."""
        async with self._rendering:
            version, (known, parts) = self._version, self._rendered.get(selection, (-1, {}))
            if known != version:
                readings = Readings(dict(self._readings.clusters), dict(self._readings.runs))  # read by a thread
                parts = await anyio.to_thread.run_sync(self._render, selection, readings)
                if selection in self._listeners:  # it may have left meanwhile
                    self._rendered[selection] = version, parts
            return version, parts

    async def _follow(self, name: str) -> None:
        """Read a cluster, and the selected runs on it, until nobody listens."""
        wake = self._wake[name]
        while self._listeners:
            wake.clear()
            started = time.monotonic()
            keys = {key for selection in self._listeners for key in selection.runs if key.cluster == name}
            is_overview = any(not selection.runs for selection in self._listeners)
            view, runs = await anyio.to_thread.run_sync(self._read, name, keys, is_overview)
            if view:
                self._readings.clusters[name] = view
            self._readings.runs |= runs
            async with self._news:
                self._version += 1
                self._news.notify_all()
            pause = max(self._readers[name].cluster.pause_seconds, (time.monotonic() - started) * (1 / _MAX_SHARE - 1))
            try:
                await asyncio.wait_for(wake.wait(), pause)
            except TimeoutError:
                continue

    def _read(
        self, name: str, keys: set[RunKey], is_overview: bool
    ) -> tuple[ClusterView | None, dict[RunKey, RunView]]:
        reader = self._readers[name]
        reader.keep_only(keys)
        view = _guarded(reader.cluster.read, lambda why: ClusterView(name=name, problem=why)) if is_overview else None
        return view, {key: _read_run(reader, key) for key in sorted(keys, key=str)}


def _read_run(reader: RunReader, key: RunKey) -> RunView:
    return _guarded(lambda: reader.read(key), lambda why: RunView(key=key, time=time.time(), problem=why))


def _guarded(read: Callable[[], View], failed: Callable[[str], View]) -> View:
    """Return a reading, or one that names an unexpected error: odd objects must not end the reading of others."""
    try:
        return read()
    except Exception as error:
        return failed(f"internal error: {type(error).__name__}: {short(error)}")
