"""The store: JSON objects in SQLite, with revisions and a bounded log of changes."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from xpk.api.base import Change, Obj, Objs
from xpk.local.cache import Cache, Entry, Key, event_owner, parsed, with_revision
from xpk.local.objects import age, label, new_uid, now
from xpk.model.errors import XpkError
from xpk.storage.private import open_file

FILE = "store.db"
# To be increased when an earlier version could misread what is written: it then refuses the store. Stores of versions
# before this number have format 0, and the same content.
FORMAT = 1
CHANGES_KEPT = 2000
_TRIMMED = 100  # changes after which those that are not kept are removed
_EVENTS_KEPT = 200  # of each JobSet
_EVENT_SECONDS = 3600.0  # for which events of other and of deleted objects are kept, as in Kubernetes
_encode = json.JSONEncoder(sort_keys=True, check_circular=False).encode  # json.dumps would make one for each text
SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (
    kind TEXT, namespace TEXT, name TEXT, revision INTEGER NOT NULL, json TEXT NOT NULL, applied TEXT,
    PRIMARY KEY (kind, namespace, name));
CREATE TABLE IF NOT EXISTS changes (
    revision INTEGER PRIMARY KEY AUTOINCREMENT, type TEXT NOT NULL, kind TEXT NOT NULL, json TEXT NOT NULL);
"""


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Return the XpkError for an SQLite failure of the cluster in `folder`."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        text = str(error)
        if "locked" in text or "busy" in text:
            raise XpkError(
                f"the store of cluster '{folder.name}' is locked by another process",
                hint=f"try again; `fuser {folder / FILE}` shows who holds it",
            ) from error
        if "full" in text:
            raise XpkError(
                f"cannot write to the store of cluster '{folder.name}': {text}", hint=f"free space in '{folder}'"
            ) from error
        if isinstance(error, sqlite3.OperationalError) and "malformed" not in text:
            raise XpkError(
                f"cannot use the store in '{folder}': {text}",
                hint="set XPK_STATE_DIR to a writable folder",
            ) from error
        raise damaged(folder, text) from error


def damaged(folder: Path, why: str) -> XpkError:
    """Return the message for a cluster with damaged files."""
    return XpkError(
        f"the store of cluster '{folder.name}' is damaged ({why})",
        hint=f"xpk cluster delete {folder.name} --provider local --force",
    )


def _check_format(db: sqlite3.Connection, folder: Path) -> int:
    """Return the number of the store's format. Raises XpkError if a newer version has written it."""
    number = int(db.execute("PRAGMA user_version").fetchone()[0])
    if number > FORMAT:
        raise XpkError(
            f"the store of cluster '{folder.name}' was written by a newer version of xpk (format {number}; this "
            f"version reads formats up to {FORMAT})",
            hint=f"upgrade xpk, or `xpk cluster delete {folder.name} --provider local --force`",
        )
    return number


class Transaction:
    """One state of the store: all reads see it; writes are atomic.

    Returned objects are the transaction's own: change one, then `put` it. `keep_copies` gives them to the next one.
    """

    def __init__(self, db: sqlite3.Connection, cache: Cache) -> None:
        self._db, self._cache = db, cache
        self._copies: dict[str, dict[Key, Obj]] = {}  # of objects in use, by kind
        self._lists: dict[str, Objs] = {}  # all objects of a kind, until one is added, replaced or removed
        self._written: set[tuple[str, Key]] = set()  # objects that the controllers may share with others
        self._has_expired_events = self._has_settled = False
        self.writes = 0
        cache.synchronize(db)

    def _copy(self, kind: str, entry: Entry) -> Obj:
        copies = self._copies.setdefault(kind, {})
        obj = copies.get(entry.key)
        if obj is None:
            obj = copies[entry.key] = entry.take()
        return obj

    def get(self, kind: str, namespace: str, name: str) -> Obj | None:
        """Return one object, or None."""
        self._cache.load(self._db, kind)
        entry = self._cache.get(kind, (namespace, name))
        return self._copy(kind, entry) if entry else None

    def list(self, kind: str, namespace: str | None = None) -> Objs:
        """Return the objects of a kind, sorted by name."""
        listed = self._lists.get(kind)
        if listed is None:
            self._cache.load(self._db, kind)
            listed = self._lists[kind] = [self._copy(kind, entry) for entry in self._cache.entries(kind)]
        if namespace is None:
            return listed.copy()
        return [obj for obj in listed if obj["metadata"].get("namespace", "") == namespace]

    def owned(self, kind: str, owner: Obj) -> Objs:
        """Return the objects of a kind that an object controls, sorted by name."""
        self._cache.load(self._db, kind)
        return [self._copy(kind, entry) for entry in self._cache.owned(kind, owner["metadata"]["uid"])]

    def settle(self, controller: object, topics: Iterable[str], act: Callable[[], bool]) -> None:
        """Run a controller, unless it had nothing to do and no object of these topics has changed since.

        A topic is a kind, or the UID of a JobSet, which includes its Jobs and pods. `act` makes the changes; it returns
        whether anything else may give the controller something to do, such as time.
        """
        if self._cache.is_settled(controller, topics):
            return
        before = self.writes
        if not act() and self.writes == before:
            self._cache.settle(controller)
            self._has_settled = True

    def keep_copies(self) -> None:
        """Let the next transaction use the unchanged copies, which is faster than to copy the objects again.

        Objects of this transaction are not to be changed afterwards, and not to be used once the next one begins.
        If an object was changed without being written, all controllers run again: they have seen the change, but the
        next transaction reads what is stored.
        """
        for kind, copies in self._copies.items():
            for key, obj in copies.items():
                entry = self._cache.get(kind, key)
                if entry is None:
                    continue
                if obj != entry.stored:
                    if self._has_settled:
                        self._cache.unsettle()
                elif (kind, key) not in self._written:
                    entry.keep(obj)

    def uids(self, kind: str) -> set[str]:
        """Return the UIDs of the objects of a kind."""
        self._cache.load(self._db, kind)
        return {entry.stored["metadata"]["uid"] for entry in self._cache.entries(kind)}

    def put(self, obj: Obj) -> bool:
        """Write an object if it differs from what is stored; return whether it did."""
        kind, key = _key(obj)
        self._cache.load(self._db, kind)
        entry, meta = self._cache.get(kind, key), obj["metadata"]
        if entry is None:
            meta |= {"uid": new_uid(), "creationTimestamp": now(), "generation": 1}
        elif _is_equal(obj, entry.stored):
            return False
        elif entry.stored.get("spec") != obj.get("spec"):
            meta["generation"] = meta.get("generation", 0) + 1
        self._write(obj, "ADDED" if entry is None else "MODIFIED")
        return True

    def remember(self, obj: Obj) -> None:
        """Write a new object with the identity it had elsewhere."""
        self._cache.load(self._db, obj["kind"])
        self._write(obj, "ADDED")

    def _write(self, obj: Obj, change: Change) -> None:
        (kind, key), text = _key(obj), _text(obj)
        revision = self._log(change, kind, text)
        self._db.execute(
            "INSERT INTO objects (kind, namespace, name, revision, json) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET revision = excluded.revision, json = excluded.json",
            (kind, *key, revision, text),
        )
        obj["metadata"]["resourceVersion"] = str(revision)
        self._cache.set(kind, Entry(text, revision))
        self._copies.setdefault(kind, {})[key] = obj
        self._lists.pop(kind, None)
        self._written.add((kind, key))

    def remove(self, obj: Obj) -> None:
        """Remove an object."""
        kind, key = _key(obj)
        self._cache.load(self._db, kind)
        if entry := self._cache.get(kind, key):
            revision = self._log("DELETED", kind, entry.text)
            self._db.execute("DELETE FROM objects WHERE kind = ? AND namespace = ? AND name = ?", (kind, *key))
            self._cache.remove(kind, entry, revision)
            self._copies.get(kind, {}).pop(key, None)
            self._lists.pop(kind, None)

    def applied(self, obj: Obj) -> Obj:
        """Return the last applied version of an object, whose fields `apply` may remove."""
        kind, key = _key(obj)
        query = "SELECT applied FROM objects WHERE kind = ? AND namespace = ? AND name = ?"
        row = self._db.execute(query, (kind, *key)).fetchone()
        fields: Obj = parsed(row[0]) if row and row[0] else {}
        return fields

    def set_applied(self, obj: Obj, applied: Obj) -> None:
        """Store the applied version of an object."""
        kind, key = _key(obj)
        query = "UPDATE objects SET applied = ? WHERE kind = ? AND namespace = ? AND name = ?"
        self._db.execute(query, (json.dumps(applied), kind, *key))

    def event(self, about: Obj, reason: str, message: str, *, warning: bool = False) -> None:
        """Record an event of an object; a repeated one only increases its count. The oldest are dropped."""
        meta = about["metadata"]
        owner = label(about, "jobset.sigs.k8s.io/jobset-name") or meta["name"]
        namespace = meta.get("namespace", "default")
        self._expire_events()
        events = self._cache.owned("Event", event_owner(namespace, owner))
        for entry in events:
            known = entry.stored
            is_same = known["message"] == message and known["reason"] == reason
            if is_same and known["involvedObject"].get("uid") == meta.get("uid"):
                event = self._copy("Event", entry)
                event |= {"count": event["count"] + 1, "lastTimestamp": now()}
                self.put(event)
                return
        if (surplus := len(events) + 1 - _EVENTS_KEPT) > 0:
            for entry in sorted(events, key=lambda e: str(e.stored["metadata"]["uid"]))[:surplus]:
                self.remove(entry.stored)
        name = f"{meta['name']}.{new_uid()[:18].replace('-', '')}"
        keys = ("kind", "apiVersion"), ("namespace", "name", "uid")
        involved_object = {k: about[k] for k in keys[0]} | {k: meta[k] for k in keys[1] if k in meta}
        self.put(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": name, "namespace": namespace, "labels": {"xpk.local/about": owner}},
                "involvedObject": involved_object,
                "reason": reason,
                "message": message,
                "type": "Warning" if warning else "Normal",
                "firstTimestamp": now(),
                "lastTimestamp": now(),
                "count": 1,
            }
        )

    def _expire_events(self) -> None:
        """Remove old events of other and of deleted objects, once in a transaction."""
        if self._has_expired_events:
            return
        self._has_expired_events = True
        for kind in ("JobSet", "Event"):
            self._cache.load(self._db, kind)
        kept = {event_owner(*entry.key) for entry in self._cache.entries("JobSet")}
        for owner in self._cache.owners("Event") - kept:
            for entry in self._cache.owned("Event", owner):
                if age(entry.stored["lastTimestamp"]) > _EVENT_SECONDS:
                    self.remove(entry.stored)

    def _log(self, change: Change, kind: str, text: str) -> int:
        self.writes += 1
        query = "INSERT INTO changes (type, kind, json) VALUES (?, ?, ?)"
        revision = self._db.execute(query, (change, kind, text)).lastrowid or 0
        if revision % _TRIMMED == 0:
            self._db.execute("DELETE FROM changes WHERE revision <= ?", (revision - CHANGES_KEPT,))
        return revision


class Store:
    """One connection to the store of the cluster in `folder`; it waits `busy_seconds` for another's transaction."""

    def __init__(self, folder: Path, *, create: bool = False, busy_seconds: float = 10.0) -> None:
        self.folder, self._cache = folder, Cache()
        with explained(folder):
            if create:
                os.close(open_file(folder / FILE, os.O_RDWR))  # SQLite would create it world-readable
            mode = "rwc" if create else "rw"
            uri = f"{(folder / FILE).absolute().as_uri()}?mode={mode}"
            self._db = sqlite3.connect(
                uri, timeout=busy_seconds, isolation_level=None, check_same_thread=False, uri=True
            )
            try:
                number = _check_format(self._db, folder)
                if create:
                    self._db.execute("PRAGMA journal_mode = WAL")
                    self._db.executescript(SCHEMA)
                if create and number < FORMAT:
                    self._db.execute(f"PRAGMA user_version = {FORMAT}")
                self._db.execute("PRAGMA synchronous = NORMAL")
                self._db.execute("SELECT count(*) FROM objects")
            except (sqlite3.DatabaseError, XpkError):
                self._db.close()
                raise

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def transaction(self, *, write: bool = True) -> Iterator[Transaction]:
        """Run the block on one state of the store; an exception rolls it back."""
        with explained(self.folder):
            self._db.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                yield Transaction(self._db, self._cache)
                self._db.execute("COMMIT")
            except BaseException:
                self._cache.clear()
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def read(self, kind: str, namespace: str | None = None, name: str | None = None) -> Objs:
        """Return the objects of a kind as one state of the store has them, sorted by name; for one that reads once.

        A transaction would read all objects of the kind, and keep and copy them.
        """
        query, values = "SELECT revision, json FROM objects WHERE kind = ?", [kind]
        if namespace is not None:
            query, values = query + " AND namespace = ?", [*values, namespace]
        if name is not None:
            query, values = query + " AND name = ?", [*values, name]
        with explained(self.folder):
            rows = self._db.execute(query + " ORDER BY namespace, name", values).fetchall()
            return [Entry(text, revision).stored for revision, text in rows]

    def version(self) -> int:
        """Return a number that changes with every write of another connection."""
        with explained(self.folder):
            return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def has_any(self, kinds: Iterable[str]) -> bool:
        """Return whether an object of one of the kinds exists, without reading them."""
        query = "SELECT 1 FROM objects WHERE kind = ? LIMIT 1"
        with explained(self.folder):
            return any(self._db.execute(query, (kind,)).fetchone() for kind in kinds)

    def revision(self) -> int:
        """Return the number of the newest change."""
        with explained(self.folder):
            row = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'changes'").fetchone()
            return int(row[0]) if row else 0

    def changes(self, kind: str, after: int) -> list[tuple[int, Change, Obj]] | None:
        """Return the changes of a kind after a revision; None if the log no longer reaches back that far."""
        with explained(self.folder):
            oldest = self._db.execute("SELECT min(revision) FROM changes").fetchone()[0]
            if oldest is not None and oldest > after + 1:
                return None
            query = "SELECT revision, type, json FROM changes WHERE revision > ? AND kind = ?"
            rows = self._db.execute(query + " ORDER BY revision", (after, kind)).fetchall()
            return [(revision, change, with_revision(text, revision)) for revision, change, text in rows]


def _is_equal(one: Obj, other: Obj) -> bool:
    """Return whether two objects are equal but for their revisions."""
    if one == other:  # as mostly; fast, since they share their strings
        return True
    if one.keys() != other.keys() or any(one[key] != other[key] for key in one if key != "metadata"):
        return False
    meta, other_meta = one["metadata"], other["metadata"]
    return {**meta, "resourceVersion": None} == {**other_meta, "resourceVersion": None}


def _key(obj: Obj) -> tuple[str, Key]:
    return obj["kind"], (obj["metadata"].get("namespace", ""), obj["metadata"]["name"])


def _text(obj: Obj) -> str:
    meta = {key: value for key, value in obj["metadata"].items() if key != "resourceVersion"}
    return _encode({**obj, "metadata": meta})
