"""The store: JSON objects in SQLite, with revisions and a bounded log of changes."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xpk.api.base import Change, Obj
from xpk.local.objects import age, label, new_uid, now
from xpk.model.errors import XpkError
from xpk.storage.private import open_file

FILE = "store.db"
# To be increased when an earlier version could misread what is written: it then refuses the store. Stores of versions
# before this number have format 0, and the same content.
FORMAT = 1
CHANGES_KEPT = 2000
_EVENTS_KEPT = 200  # of each JobSet
_EVENT_SECONDS = 3600.0  # for which events of other and of deleted objects are kept, as in Kubernetes
_SPECIFIED = {"JobSet", "Job", "Pod", "FormerPod", "Workload", "Node", "LocalQueue", "ClusterQueue"}  # have a spec
SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (
    kind TEXT, namespace TEXT, name TEXT, revision INTEGER NOT NULL, json TEXT NOT NULL, applied TEXT,
    PRIMARY KEY (kind, namespace, name));
CREATE TABLE IF NOT EXISTS changes (
    revision INTEGER PRIMARY KEY AUTOINCREMENT, type TEXT NOT NULL, kind TEXT NOT NULL, json TEXT NOT NULL);
"""
Key = tuple[str, str]


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

    Returned objects are the cached ones: change one, then `put` it.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._kinds: dict[str, dict[Key, Obj]] = {}
        self._texts: dict[tuple[str, Key], str] = {}
        self.writes = 0

    def _load(self, kind: str) -> dict[Key, Obj]:
        if kind not in self._kinds:
            objects = self._kinds[kind] = {}
            query = "SELECT namespace, name, revision, json FROM objects WHERE kind = ?"
            for namespace, name, revision, text in self._db.execute(query, (kind,)):
                objects[namespace, name] = _with_revision(text, revision)
                self._texts[kind, (namespace, name)] = text
        return self._kinds[kind]

    def get(self, kind: str, namespace: str, name: str) -> Obj | None:
        """Return one object, or None."""
        return self._load(kind).get((namespace, name))

    def list(self, kind: str, namespace: str | None = None) -> list[Obj]:
        """Return the objects of a kind, sorted by name."""
        objects = sorted(self._load(kind).items())
        return [obj for (where, _), obj in objects if namespace in (None, where)]

    def put(self, obj: Obj) -> bool:
        """Write an object if it differs from what is stored; return whether it did."""
        kind, key = _key(obj)
        objects, old = self._load(kind), self._texts.get((kind, key))
        meta = obj["metadata"]
        if old is None:
            meta |= {"uid": new_uid(), "creationTimestamp": now(), "generation": 1}
        elif _text(obj) == old:
            return False
        elif json.loads(old).get("spec") != obj.get("spec"):
            meta["generation"] = meta.get("generation", 0) + 1
        text = self._texts[kind, key] = _text(obj)
        revision = self._log("MODIFIED" if old else "ADDED", kind, text)
        self._db.execute(
            "INSERT INTO objects (kind, namespace, name, revision, json) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET revision = excluded.revision, json = excluded.json",
            (kind, *key, revision, text),
        )
        meta["resourceVersion"] = str(revision)
        objects[key] = obj
        return True

    def remember(self, obj: Obj) -> None:
        """Write an object with the identity it had elsewhere."""
        meta = dict(obj["metadata"])
        self.put(obj)
        obj["metadata"] |= {key: meta[key] for key in ("uid", "creationTimestamp", "generation")}
        self.put(obj)

    def remove(self, obj: Obj) -> None:
        """Remove an object."""
        kind, key = _key(obj)
        if self._load(kind).pop(key, None) is not None:
            self._log("DELETED", kind, self._texts.pop((kind, key)))
            self._db.execute("DELETE FROM objects WHERE kind = ? AND namespace = ? AND name = ?", (kind, *key))

    def applied(self, obj: Obj) -> Obj:
        """Return the last applied version of an object, whose fields `apply` may remove."""
        kind, key = _key(obj)
        query = "SELECT applied FROM objects WHERE kind = ? AND namespace = ? AND name = ?"
        row = self._db.execute(query, (kind, *key)).fetchone()
        fields: Obj = _object(row[0]) if row and row[0] else {}
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
        every = self._load("Event").items()
        events = [e for (where, _), e in every if where == namespace and label(e, "xpk.local/about") == owner]
        for event in events:
            involved = event["involvedObject"].get("uid"), event["reason"], event["message"]
            if involved == (meta.get("uid"), reason, message):
                event |= {"count": event["count"] + 1, "lastTimestamp": now()}
                self.put(event)
                return
        for event in sorted(events, key=lambda e: str(e["metadata"]["uid"]))[: max(0, len(events) + 1 - _EVENTS_KEPT)]:
            self.remove(event)
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
        jobsets = self._load("JobSet")
        for (namespace, _), event in [*self._load("Event").items()]:
            is_kept = (namespace, label(event, "xpk.local/about")) in jobsets
            if not is_kept and age(event["lastTimestamp"]) > _EVENT_SECONDS:
                self.remove(event)

    def _log(self, change: Change, kind: str, text: str) -> int:
        self.writes += 1
        query = "INSERT INTO changes (type, kind, json) VALUES (?, ?, ?)"
        revision = self._db.execute(query, (change, kind, text)).lastrowid or 0
        self._db.execute("DELETE FROM changes WHERE revision <= ?", (revision - CHANGES_KEPT,))
        return revision


class Store:
    """One connection to the store of the cluster in `folder`; it waits `busy_seconds` for another's transaction."""

    def __init__(self, folder: Path, *, create: bool = False, busy_seconds: float = 10.0) -> None:
        self.folder = folder
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
                yield Transaction(self._db)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def version(self) -> int:
        """Return a number that changes with every write of another connection."""
        with explained(self.folder):
            return int(self._db.execute("PRAGMA data_version").fetchone()[0])

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
            return [(revision, change, _with_revision(text, revision)) for revision, change, text in rows]


def _key(obj: Obj) -> tuple[str, Key]:
    return obj["kind"], (obj["metadata"].get("namespace", ""), obj["metadata"]["name"])


def _text(obj: Obj) -> str:
    meta = {key: value for key, value in obj["metadata"].items() if key != "resourceVersion"}
    return json.dumps({**obj, "metadata": meta}, sort_keys=True)


def _with_revision(text: str, revision: int) -> Obj:
    obj = _object(text)
    obj["metadata"]["resourceVersion"] = str(revision)
    return obj


def _object(text: str) -> Obj:
    """Return an object as it was written. Raises DatabaseError for malformed data."""
    try:
        obj: Obj = json.loads(text)
        if not isinstance(obj["metadata"]["name"], str):
            raise TypeError
        if obj.get("kind") in _SPECIFIED and not isinstance(obj["spec"], dict):
            raise TypeError
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise sqlite3.DatabaseError(f"'{str(text)[:40]}' is not an object") from error
    return obj
