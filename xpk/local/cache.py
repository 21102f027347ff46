"""Objects of a store as one connection last read or wrote them, and which controllers have nothing to do for them.

A pass of the daemon reads only what others have changed, and runs only the controllers that this concerns.
"""

from __future__ import annotations

import json
import sqlite3
from bisect import insort
from collections.abc import Iterable, KeysView
from dataclasses import dataclass, field
from typing import Any

from xpk.api.base import Obj
from xpk.local.objects import JOBSET, label, owner_uid

Key = tuple[str, str]  # namespace and name
_CONTAINERS = (dict, list)
_MOST_SETTLED = 10_000  # records to keep, also of deleted objects
_SPECIFIED = {"JobSet", "Job", "Pod", "FormerPod", "Workload", "Node", "LocalQueue", "ClusterQueue"}  # have a spec


class Entry:
    """An object as it is stored. `stored` must not be changed; `take` returns an independent object."""

    __slots__ = ("_kept", "jobset", "key", "owner", "revision", "stored", "text")

    def __init__(self, text: str, revision: int) -> None:
        """Raises DatabaseError for malformed data."""
        self.text, self.revision, self.stored = text, revision, with_revision(text, revision)
        meta = self.stored["metadata"]
        try:
            self.key: Key = (meta.get("namespace", ""), meta["name"])
            self.owner = _owner(self.stored)
            self.jobset = meta["uid"] if self.stored["kind"] == "JobSet" else label(self.stored, f"{JOBSET}jobset-uid")
        except (AttributeError, KeyError, TypeError) as error:
            raise _malformed(text) from error
        self._kept: Obj | None = None

    def take(self) -> Obj:
        """Return an independent copy: the one that was kept, if any."""
        kept, self._kept = self._kept, None
        obj: Obj = copy_of(self.stored) if kept is None else kept
        return obj

    def keep(self, copy: Obj) -> None:
        """Keep a copy that equals the stored object, and that nothing else changes, for the next `take`."""
        self._kept = copy


@dataclass(slots=True)
class _Kind:
    entries: dict[Key, Entry] = field(default_factory=dict)
    by_owner: dict[str, list[Key]] = field(default_factory=dict)  # sorted
    order: list[Key] | None = None  # all keys, sorted; None until it is needed


class Cache:
    """Objects by kind as of a revision. A transaction writes to it directly; `clear` it after a rollback."""

    def __init__(self) -> None:
        self._revision = 0  # of the newest change that the objects include
        self._kinds: dict[str, _Kind] = {}
        self._changed: dict[str, int] = {}  # newest known change of each kind, and of each JobSet by its UID
        self._settled: dict[object, int] = {}  # controllers with nothing to do, and the newest change that they saw

    def clear(self) -> None:
        """Forget everything."""
        self._kinds.clear()
        self.unsettle()

    def synchronize(self, db: sqlite3.Connection) -> None:
        """Add the changes of other connections since the last transaction."""
        row = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'changes'").fetchone()
        newest, before = int(row[0]) if row else 0, self._revision
        self._revision = newest
        if newest == before or not self._kinds:
            return
        (oldest,) = db.execute("SELECT min(revision) FROM changes").fetchone()
        if oldest is None or oldest > before + 1:
            self.clear()  # the log no longer reaches back that far
            return
        query = "SELECT revision, kind, json FROM changes WHERE revision > ? AND type = 'DELETED'"
        for revision, kind, text in db.execute(query, (before,)).fetchall():
            self._remove(kind, Entry(text, revision))
        query = "SELECT revision, kind, json FROM objects WHERE revision > ? ORDER BY revision"
        for revision, kind, text in db.execute(query, (before,)).fetchall():
            self._set(kind, Entry(text, revision))

    def is_settled(self, controller: object, topics: Iterable[str]) -> bool:
        """Return whether a controller had nothing to do, and no object of these topics has changed since.

        A topic is a kind, or the UID of a JobSet, which includes its Jobs and pods.
        """
        seen = self._settled.get(controller)
        return seen is not None and all(self._changed.get(topic, 0) <= seen for topic in topics)

    def settle(self, controller: object) -> None:
        """Record that a controller has nothing to do."""
        if len(self._settled) > _MOST_SETTLED:
            self.unsettle()
        self._settled[controller] = self._revision

    def unsettle(self) -> None:
        """Forget which controllers have nothing to do."""
        self._settled.clear()
        self._changed.clear()

    def load(self, db: sqlite3.Connection, kind: str) -> None:
        """Read the objects of a kind unless they are known."""
        if kind not in self._kinds:
            rows = db.execute("SELECT revision, json FROM objects WHERE kind = ?", (kind,)).fetchall()
            entries = [Entry(text, revision) for revision, text in rows]
            self._kinds[kind] = _Kind()
            for entry in entries:
                self._set(kind, entry)

    def get(self, kind: str, key: Key) -> Entry | None:
        """Return an object of a kind that is loaded, None if it does not exist."""
        return self._kinds[kind].entries.get(key)

    def entries(self, kind: str) -> list[Entry]:
        """Return all objects of a kind, sorted by name."""
        known = self._kinds[kind]
        if known.order is None:
            known.order = sorted(known.entries)
        return [known.entries[key] for key in known.order]

    def owned(self, kind: str, owner: str) -> list[Entry]:
        """Return the objects of an owner, sorted by name: of a controller's UID, or of `event_owner`."""
        known = self._kinds[kind]
        return [known.entries[key] for key in known.by_owner.get(owner, ())]

    def owners(self, kind: str) -> KeysView[str]:
        """Return the owners of the objects of a kind."""
        return self._kinds[kind].by_owner.keys()

    def set(self, kind: str, entry: Entry) -> None:
        """Add or replace an object, with the newest change of this connection."""
        self._revision = entry.revision
        self._set(kind, entry)

    def remove(self, kind: str, entry: Entry, revision: int) -> None:
        """Remove an object, with the newest change of this connection."""
        self._revision = revision
        self._remove(kind, entry, revision)

    def _set(self, kind: str, entry: Entry) -> None:
        self._note(kind, entry, entry.revision)
        if known := self._kinds.get(kind):
            before = known.entries.get(entry.key)
            if before is None:
                known.order = None
            elif before.owner != entry.owner:
                self._disown(known, before)
            known.entries[entry.key] = entry
            if before is None or before.owner != entry.owner:
                insort(known.by_owner.setdefault(entry.owner, []), entry.key)

    def _remove(self, kind: str, entry: Entry, revision: int = 0) -> None:
        self._note(kind, entry, revision or entry.revision)
        known = self._kinds.get(kind)
        if known and (before := known.entries.pop(entry.key, None)):
            known.order = None
            self._disown(known, before)

    def _note(self, kind: str, entry: Entry, revision: int) -> None:
        for topic in (kind, entry.jobset):
            self._changed[topic] = max(revision, self._changed.get(topic, 0))

    @staticmethod
    def _disown(known: _Kind, entry: Entry) -> None:
        known.by_owner[entry.owner].remove(entry.key)
        if not known.by_owner[entry.owner]:
            del known.by_owner[entry.owner]


def copy_of(value: Any) -> Any:
    """Return an independent copy of a JSON value. They share their strings, so that they are compared fast."""
    if type(value) is dict:
        copied = value.copy()
        for key, item in value.items():
            if type(item) in _CONTAINERS:  # most are not, and a call for each would take most of the time
                copied[key] = copy_of(item)
        return copied
    return [copy_of(item) if type(item) in _CONTAINERS else item for item in value]


def _owner(obj: Obj) -> str:
    if obj["kind"] == "Event":
        return event_owner(obj["metadata"].get("namespace", ""), label(obj, "xpk.local/about"))
    return owner_uid(obj)


def event_owner(namespace: str, name: str) -> str:
    """Return the owner of events about an object, in `Cache.owned`."""
    return f"{namespace}/{name}"


def with_revision(text: str, revision: int) -> Obj:
    """Return an object as it was written, with its revision. Raises DatabaseError for malformed data."""
    obj = parsed(text)
    obj["metadata"]["resourceVersion"] = str(revision)
    return obj


def parsed(text: str) -> Obj:
    """Return an object as it was written. Raises DatabaseError for malformed data."""
    try:
        obj: Obj = json.loads(text)
        if not isinstance(obj["metadata"]["name"], str):
            raise TypeError
        if obj.get("kind") in _SPECIFIED and not isinstance(obj["spec"], dict):
            raise TypeError
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise _malformed(text) from error
    return obj


def _malformed(text: str) -> sqlite3.DatabaseError:
    return sqlite3.DatabaseError(f"'{str(text)[:40]}' is not an object")
