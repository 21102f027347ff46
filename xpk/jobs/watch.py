"""Watching objects for changes."""

from __future__ import annotations

import time

from xpk.api.base import ObjectApi
from xpk.jobs.outage import SIGNS

_LOOK_AGAIN = 5.0  # maximum seconds between two reads: some changes do not show in the watched objects


class Changes:
    """Changes of the objects of a kind, with at least `pause_seconds` between two reads."""

    def __init__(self, api: ObjectApi, kind: str, namespace: str | None, *, pause_seconds: float = 1.0) -> None:
        self._api, self._kind, self._namespace = api, kind, namespace
        self._versions: dict[str, str] | None = None
        self._looked, self._pause_seconds = 0.0, pause_seconds

    def wait(self) -> None:
        """Return when an object has changed, or after a few seconds; an unreachable API server counts as no change."""
        time.sleep(max(0.0, self._looked + self._pause_seconds - time.monotonic()))
        versions, first = self._versions or {}, self._versions is None
        self._versions = versions
        start = time.monotonic()
        try:
            for change, obj in self._api.watch(self._kind, self._namespace, timeout=_LOOK_AGAIN):
                uid, version = str(obj["metadata"].get("uid")), str(obj["metadata"].get("resourceVersion"))
                news = change == "DELETED" or versions.get(uid) != version
                if change == "DELETED":
                    versions.pop(uid, None)
                else:
                    versions[uid] = version
                if news and not (first and change == "ADDED" and time.monotonic() - start < self._pause_seconds):
                    break  # the first events of a first watch are existing objects
        except SIGNS:
            time.sleep(self._pause_seconds)
        self._looked = time.monotonic()
