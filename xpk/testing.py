"""Test doubles for code that uses xpk: a runner that records commands, and an API server in memory."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from xpk.api.base import Change, Connection, Keep, LogLine, Obj, Objs, Selector, is_selected
from xpk.api.kinds import EVERY_KIND
from xpk.local.objects import merge_patch
from xpk.model.errors import ConflictError, MissingToolError, Modified, NameTaken, NotFoundError, ProtectedError
from xpk.proc import Result

_CREATED = "2026-01-31T12:00:00Z"
Answer = Result | str | int | Callable[[tuple[str, ...]], "Result | str | int"]


class FakeRunner:
    """A `Runner` that records commands and returns scripted results.

    `script` maps the beginning of a command line to its answer: stdout, an exit code, a whole `Result`, or a
    function of the arguments that returns one of these. The longest matching beginning is used; without
    one, the program succeeds silently. Programs in `missing` are not installed.
    """

    def __init__(self, script: Mapping[str, Answer] | None = None, *, missing: Sequence[str] = ()) -> None:
        self.script = dict(script or {})
        self.missing = set(missing)
        self.calls: list[tuple[str, ...]] = []
        self.environments: list[Mapping[str, str] | None] = []

    def run(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, folder: Path | None = None) -> Result:
        """See `Runner.run`."""
        command = tuple(argv)
        if command[0] in self.missing:
            raise MissingToolError(f"program '{command[0]}' not found", hint="install it, or add it to PATH")
        self.calls.append(command)
        self.environments.append(env)
        line = " ".join(command)
        keys = [key for key in self.script if line == key or line.startswith(f"{key} ")]
        answer: Any = self.script[max(keys, key=len)] if keys else ""
        if callable(answer):
            answer = answer(command)
        if isinstance(answer, Result):
            return answer
        if isinstance(answer, int):
            return Result(command, answer, "", f"{command[0]} failed")
        return Result(command, 0, str(answer), "")

    def attach(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> int:
        """See `Runner.attach`."""
        return self.run(argv).exit_code

    def ran(self, beginning: str) -> list[tuple[str, ...]]:
        """Return the commands that start with these words."""
        return [call for call in self.calls if " ".join(call).startswith(beginning)]


class FakeApi:
    """An `ObjectApi` that keeps objects in memory and runs no controllers.

    `react` is called after each write with the kind and the stored object, to act as a controller.
    `budgets`: by pod name, the message of the PodDisruptionBudget that forbids its eviction.
    """

    def __init__(self, objects: Sequence[Obj] = (), *, react: Callable[[str, Obj], None] | None = None) -> None:
        self.objects: dict[tuple[str, str, str], Obj] = {}
        self.calls: list[tuple[str, str, str]] = []  # verb, kind, name
        self.budgets: dict[str, str] = {}
        self._react = react
        self._applied: dict[tuple[str, str, str], Obj] = {}
        self._versions = itertools.count(1)
        for obj in objects:
            self._store(obj)

    def create(self, obj: Obj, *, dry_run: bool = False) -> Obj:
        """See `ObjectApi.create`."""
        self._note("create", obj["kind"], obj["metadata"]["name"])
        if _key_of(obj) in self.objects:
            label = f"{obj['kind']} '{obj['metadata']['name']}'"
            raise NameTaken(f"{label} already exists", resource=label)
        return copy.deepcopy(obj) if dry_run else self._store(obj)

    def apply(self, obj: Obj, *, dry_run: bool = False, force: bool = False) -> Obj:
        """See `ObjectApi.apply`. Lists are replaced, previously applied fields removed; fields have no other owners."""
        self._note("apply", obj["kind"], obj["metadata"]["name"])
        before = self.objects.get(_key_of(obj))
        merged = merge_patch(_without(before, self._applied.get(_key_of(obj)), obj), obj) if before else obj
        if not dry_run:
            self._applied[_key_of(obj)] = copy.deepcopy(obj)
        if dry_run or (before is not None and merged == before):
            return copy.deepcopy(merged)
        return copy.deepcopy(self._store(merged))

    def get(self, kind: str, name: str, namespace: str = "default") -> Obj:
        """See `ObjectApi.get`."""
        self._note("get", kind, name)
        return copy.deepcopy(self._find(kind, name, namespace))

    def list(
        self,
        kind: str,
        namespace: str | None = "default",
        selector: Selector | None = None,
        *,
        fields: Selector | None = None,
        keep: Keep | None = None,
    ) -> Objs:
        """See `ObjectApi.list`."""
        self._note("list", kind, "")
        chosen = [
            (key, obj)
            for key, obj in self.objects.items()
            if key[0] == kind
            and (namespace is None or key[1] in (namespace, ""))
            and is_selected(obj, selector, fields)
        ]
        return [(keep or copy.deepcopy)(obj) for _, obj in sorted(chosen, key=lambda item: item[0])]

    def patch(self, kind: str, name: str, patch: Obj, namespace: str = "default") -> Obj:
        """See `ObjectApi.patch`. Raises Modified if the patch names another version than the present one."""
        self._note("patch", kind, name)
        before = self._find(kind, name.partition("/")[0], namespace)
        version = (patch.get("metadata") or {}).get("resourceVersion")
        if version not in (None, before["metadata"]["resourceVersion"]):
            raise Modified(f"{kind} '{name}' was modified concurrently", resource=f"{kind} '{name}'")
        return copy.deepcopy(self._store(merge_patch(before, patch)))

    def delete(self, kind: str, name: str, namespace: str = "default", *, grace_seconds: int | None = None) -> None:
        """See `ObjectApi.delete`. Owned objects are not deleted."""
        self._note("delete", kind, name)
        obj = self._find(kind, name, namespace)
        del self.objects[_key_of(obj)]

    def evict(self, name: str, namespace: str = "default") -> None:
        """See `ObjectApi.evict`. The pod is deleted at once."""
        self._note("evict", "Pod", name)
        if name in self.budgets:
            raise ProtectedError(f"Pod '{name}' cannot be evicted now: {self.budgets[name]}")
        del self.objects[_key_of(self._find("Pod", name, namespace))]

    def watch(
        self,
        kind: str,
        namespace: str | None = "default",
        selector: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
    ) -> Iterator[tuple[Change, Obj]]:
        """See `ObjectApi.watch`. Ends after the existing objects."""
        for obj in self.list(kind, namespace, selector):
            yield "ADDED", obj

    def logs(
        self, pod: Obj, *, follow: bool = False, since: datetime | None = None, tail: int | None = None
    ) -> Iterator[LogLine]:
        """See `ObjectApi.logs`. Logs are empty."""
        return iter(())

    def exec(self, pod: Obj, argv: Sequence[str], *, interactive: bool = False) -> int:
        """See `ObjectApi.exec`. Every program succeeds."""
        self._note("exec", "Pod", pod["metadata"]["name"])
        return 0

    def connect(self, pod: Obj, port: int) -> Connection:
        """See `ObjectApi.connect`. No pod listens on any port."""
        raise ConflictError(f"nothing is listening on port {port} of pod '{pod['metadata']['name']}'")

    def former_pods(self, namespace: str, selector: Mapping[str, str]) -> Objs:
        """See `ObjectApi.former_pods`."""
        return []

    def _note(self, verb: str, kind: str, name: str) -> None:
        self.calls.append((verb, kind, name))

    def _find(self, kind: str, name: str, namespace: str) -> Obj:
        try:
            return self.objects[_key(kind, namespace, name)]
        except KeyError:
            raise NotFoundError(f"{kind} '{name}' not found") from None

    def _store(self, obj: Obj) -> Obj:
        stored, version = copy.deepcopy(obj), str(next(self._versions))
        stored["metadata"] = {"uid": f"uid-{version}", "creationTimestamp": _CREATED, **stored["metadata"]}
        stored["metadata"]["resourceVersion"] = version
        self.objects[_key_of(stored)] = stored
        if self._react:
            self._react(stored["kind"], stored)
        return stored


def _key(kind: str, namespace: str, name: str) -> tuple[str, str, str]:
    return kind, namespace if EVERY_KIND[kind].namespaced else "", name


def _key_of(obj: Obj) -> tuple[str, str, str]:
    meta = obj["metadata"]
    return _key(obj["kind"], meta.get("namespace", "default"), meta["name"])


def _without(have: Any, applied: Any, desired: Any) -> Any:
    """Return a value without fields that were applied before and are no longer."""
    if not (isinstance(have, dict) and isinstance(applied, dict) and isinstance(desired, dict)):
        return have
    return {
        key: _without(value, applied.get(key), desired.get(key))
        for key, value in have.items()
        if key in desired or key not in applied
    }
