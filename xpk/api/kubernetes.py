"""`ObjectApi` on a real API server, through the official client; the only module that imports it.

Plain dicts in and out: the generated models refuse what servers really send, and change between releases.
Reads and idempotent writes are tried again while the server is busy or away; watches and followed logs go on
where they were cut off.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import urllib3
from kubernetes import config
from kubernetes.client.exceptions import ApiException

from xpk.api.base import Applied, Change, LogLine, Obj, Objs
from xpk.api.kinds import EVERY_KIND as KINDS
from xpk.api.kinds import Kind
from xpk.api.refusal import GoneError, explain, unreachable
from xpk.model.errors import ConflictError, MissingToolError, NotFoundError
from xpk.proc import LocalRunner, Runner

MANAGER = "xpk"  # the field manager of server-side apply
_BUSY = (429, 500, 502, 503, 504)
_TRIES, _FIRST_PAUSE, _LONGEST_PAUSE = 6, 0.2, 5.0  # seconds
_TIMEOUT = (5.0, 60.0)  # seconds to connect, to wait for bytes
_WATCH_SECONDS = 290  # servers end watches themselves after five minutes or more
_PAGE = 500  # objects in one answer to a list


class KubernetesApi:
    """The API server that a kubeconfig's context names."""

    def __init__(
        self,
        *,
        kubeconfig: Path | None = None,
        context: str | None = None,
        pause: Callable[[float], None] = time.sleep,
        runner: Runner | None = None,
    ) -> None:
        self._pause = pause
        self._runner = runner or LocalRunner()
        self._place = [f"--kubeconfig={kubeconfig}"] if kubeconfig else []
        self._place += [f"--context={context}"] if context else []
        try:
            self._client = config.new_client_from_config(  # type: ignore[no-untyped-call]
                config_file=str(kubeconfig) if kubeconfig else None, context=context
            )
        except config.ConfigException as error:
            raise unreachable(f"no usable kubeconfig: {error}") from error
        self._host = self._client.configuration.host

    def create(self, obj: Obj, *, dry_run: bool = False) -> Obj:
        """See `ObjectApi.create`."""
        kind, namespace = _kind(obj), obj["metadata"].get("namespace", "default")
        return self._call("POST", _path(kind, namespace), _dry(dry_run, fieldManager=MANAGER), obj, about=obj)

    def apply(self, obj: Obj, *, dry_run: bool = False) -> Applied:
        """See `ObjectApi.apply`. A field that another manager has set otherwise is a ConflictError."""
        meta = obj["metadata"]
        path = _path(_kind(obj), meta.get("namespace", "default"), meta["name"])
        before = self._find(path)
        query = _dry(dry_run, fieldManager=MANAGER, force="false")
        after = self._call("PATCH", path, query, obj, content="application/apply-patch+yaml", about=obj)
        if before is None:
            return "created"
        return "unchanged" if _content(before) == _content(after) else "configured"

    def get(self, kind: str, name: str, namespace: str = "default") -> Obj:
        """See `ObjectApi.get`."""
        return self._call("GET", _path(_known(kind), namespace, name))

    def list(self, kind: str, namespace: str | None = "default", selector: Mapping[str, str] | None = None) -> Objs:
        """See `ObjectApi.list`."""
        return self._list(_known(kind), namespace, selector)[0]

    def patch(self, kind: str, name: str, patch: Obj, namespace: str = "default") -> Obj:
        """See `ObjectApi.patch`."""
        path = _path(_known(kind), namespace, name)
        return self._call("PATCH", path, {"fieldManager": MANAGER}, patch, content="application/merge-patch+json")

    def delete(self, kind: str, name: str, namespace: str = "default", *, grace_seconds: int | None = None) -> None:
        """See `ObjectApi.delete`."""
        options: Obj = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if grace_seconds is not None and kind == "Pod":
            options["gracePeriodSeconds"] = grace_seconds
        self._call("DELETE", _path(_known(kind), namespace, name), body=options)
        if grace_seconds is not None and kind == "JobSet":
            # The pods' own grace period is in the manifest; a shorter one has to be asked of each pod.
            for pod in self.list("Pod", namespace, {"jobset.sigs.k8s.io/jobset-name": name}):
                with suppress(NotFoundError):
                    self.delete("Pod", pod["metadata"]["name"], namespace, grace_seconds=grace_seconds)

    def watch(
        self,
        kind: str,
        namespace: str | None = "default",
        selector: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
    ) -> Iterator[tuple[Change, Obj]]:
        """See `ObjectApi.watch`. A change that happens while the watch is cut off is seen afterwards."""
        deadline = None if timeout is None else time.monotonic() + timeout
        known: dict[str, Obj] = {}
        version = ""
        while deadline is None or time.monotonic() < deadline:
            if not version:  # the first time, and when the server no longer knows where we were
                there, version = self._list(_known(kind), namespace, selector)
                yield from _difference(known, there)
            version = yield from self._watch_once(_known(kind), namespace, selector, version, known, deadline)

    def logs(
        self, pod: Obj, *, follow: bool = False, since: datetime | None = None, tail: int | None = None
    ) -> Iterator[LogLine]:
        """See `ObjectApi.logs`."""
        meta = pod["metadata"]
        path = f"{_path(KINDS['Pod'], meta['namespace'], meta['name'])}/log"
        last: datetime | None = None
        while True:
            query = {"timestamps": "true", "follow": str(follow).lower(), "container": "host"}
            if begin := last or since:
                query["sinceTime"] = begin.isoformat()
            if tail is not None and last is None:
                query["tailLines"] = str(tail)
            try:
                for line in self._stream(path, query, None):
                    found = _log_line(line)
                    if last is None or found.time > last:  # sinceTime has whole seconds: some come again
                        yield found
                        last = found.time
            except urllib3.exceptions.HTTPError:
                pass
            if not follow or self._has_ended(meta["namespace"], meta["name"]):
                return
            self._pause(_FIRST_PAUSE)

    def exec(self, pod: Obj, argv: Sequence[str], *, interactive: bool = False) -> int:
        """See `ObjectApi.exec`. kubectl does it: it knows terminals and every version of the protocol."""
        meta = pod["metadata"]
        if pod.get("status", {}).get("phase") != "Running":
            raise ConflictError(f"pod '{meta['name']}' does not run", hint="`xpk workload status` says why")
        terminal = ["--stdin", "--tty"] if interactive else ["--stdin"]
        where = [f"--namespace={meta['namespace']}", "--container=host", *terminal, meta["name"]]
        return self._runner.attach(["kubectl", *self._place, "exec", *where, "--", *argv])

    def former_pods(self, namespace: str, selector: Mapping[str, str]) -> Objs:
        """See `ObjectApi.former_pods`."""
        return []

    def _has_ended(self, namespace: str, name: str) -> bool:
        found = self._find(_path(KINDS["Pod"], namespace, name))
        return found is None or found.get("status", {}).get("phase") in ("Succeeded", "Failed")

    def _find(self, path: str) -> Obj | None:
        try:
            return self._call("GET", path)
        except NotFoundError:
            return None

    def _list(self, kind: Kind, namespace: str | None, selector: Mapping[str, str] | None) -> tuple[Objs, str]:
        query = {"limit": str(_PAGE), **_selecting(selector)}
        found: Objs = []
        while True:
            page = self._call("GET", _path(kind, namespace), query)
            # Items of a list come without these two.
            found += [{"apiVersion": kind.api_version, "kind": kind.name, **item} for item in page["items"] or []]
            if not page["metadata"].get("continue"):
                return found, page["metadata"]["resourceVersion"]
            query["continue"] = page["metadata"]["continue"]

    def _watch_once(
        self,
        kind: Kind,
        namespace: str | None,
        selector: Mapping[str, str] | None,
        version: str,
        known: dict[str, Obj],
        deadline: float | None,
    ) -> Generator[tuple[Change, Obj], None, str]:
        """Yield changes until the connection ends; return the version to go on from, "" to list again."""
        left = _WATCH_SECONDS if deadline is None else min(_WATCH_SECONDS, max(0.01, deadline - time.monotonic()))
        query = {
            "watch": "1", "allowWatchBookmarks": "true", "resourceVersion": version,
            "timeoutSeconds": str(math.ceil(left)), **_selecting(selector),
        }  # fmt: skip
        try:
            for line in self._stream(_path(kind, namespace), query, left):
                event = json.loads(line)
                obj = event["object"]
                if event["type"] == "ERROR":  # 410 Gone: the server has forgotten that version
                    return ""
                version = obj["metadata"]["resourceVersion"]
                if event["type"] == "BOOKMARK":
                    continue
                uid = obj["metadata"]["uid"]
                if event["type"] == "DELETED":
                    known.pop(uid, None)
                else:
                    known[uid] = obj
                yield event["type"], obj
                if deadline is not None and time.monotonic() >= deadline:
                    return version
        except urllib3.exceptions.HTTPError:
            self._pause(_FIRST_PAUSE)
        except GoneError:
            return ""
        return version

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Obj | None = None,
        *,
        content: str = "application/json",
        about: Obj | None = None,
    ) -> Obj:
        """Make a request, again while the server is busy or away, and return its answer."""
        pause = _FIRST_PAUSE
        for left in reversed(range(_TRIES)):
            try:
                answer: Obj = json.loads(self._request(method, path, query, body, content, _TIMEOUT).read() or "{}")
                return answer
            except ApiException as error:
                # A POST that may have been carried out must not be made twice.
                if not left or error.status not in _BUSY or (method == "POST" and error.status not in (429, 503)):
                    raise explain(error.status or 0, error.body, method, path, about) from error
            except urllib3.exceptions.HTTPError as error:
                refused = isinstance(error.__cause__ or error, urllib3.exceptions.NewConnectionError)
                if not left or (method == "POST" and not refused):
                    raise unreachable(f"no answer from {self._host}: {error}") from error
            self._pause(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        raise AssertionError("the last try returns or raises")

    def _stream(self, path: str, query: Mapping[str, str], seconds: float | None) -> Iterator[str]:
        """Yield the lines of an answer as they come."""
        try:
            answer = self._request("GET", path, query, None, "application/json", (_TIMEOUT[0], seconds))
        except ApiException as error:
            raise explain(error.status or 0, error.body, "GET", path, None) from error
        response = answer.response
        rest = b""
        try:
            for chunk in response.stream(65536, decode_content=False):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from (line.decode(errors="replace") for line in lines if line)
            if rest:
                yield rest.decode(errors="replace")
        finally:
            response.close()

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Obj | None,
        content: str,
        timeout: tuple[float, float | None],
    ) -> Any:
        headers = {"Accept": "application/json", "Content-Type": content}
        serialized = self._client.param_serialize(
            method, path, query_params=list((query or {}).items()), header_params=headers, body=body,
            auth_settings=["BearerToken"],
        )  # fmt: skip
        answer = self._client.call_api(*serialized, _request_timeout=timeout)
        if not 200 <= answer.status <= 299:
            raise ApiException(status=answer.status, reason=answer.reason, body=answer.read())
        return answer


def _content(obj: Obj) -> Obj:
    """Return an object without what every write changes: a dry run gives no new version to compare."""
    volatile = ("managedFields", "resourceVersion", "generation")
    return {**obj, "metadata": {key: value for key, value in obj["metadata"].items() if key not in volatile}}


def _kind(obj: Obj) -> Kind:
    return _known(obj["kind"])


def _known(kind: str) -> Kind:
    if kind not in KINDS:
        raise MissingToolError(f"xpk does not handle objects of kind {kind}", hint="use kubectl for them")
    return KINDS[kind]


def _path(kind: Kind, namespace: str | None, name: str | None = None) -> str:
    root = "/api" if kind.api_version == "v1" else "/apis"
    place = f"/namespaces/{namespace}" if kind.namespaced and namespace is not None else ""
    return f"{root}/{kind.api_version}{place}/{kind.plural}" + (f"/{name}" if name else "")


def _dry(dry_run: bool, **query: str) -> dict[str, str]:
    return query | ({"dryRun": "All"} if dry_run else {})


def _selecting(selector: Mapping[str, str] | None) -> dict[str, str]:
    return {"labelSelector": ",".join(f"{key}={value}" for key, value in selector.items())} if selector else {}


def _difference(known: dict[str, Obj], there: Objs) -> Iterator[tuple[Change, Obj]]:
    """Yield what has changed since `known`, and bring it up to date."""
    now = {obj["metadata"]["uid"]: obj for obj in there}
    for uid in known.keys() - now.keys():
        yield "DELETED", known.pop(uid)
    for uid, obj in now.items():
        before = known.get(uid)
        if before is None:
            yield "ADDED", obj
        elif before["metadata"]["resourceVersion"] != obj["metadata"]["resourceVersion"]:
            yield "MODIFIED", obj
        known[uid] = obj


def _log_line(line: str) -> LogLine:
    stamp, _, text = line.partition(" ")
    # Kubernetes gives nanoseconds, of which datetime keeps six digits.
    whole, _, fraction = stamp.rstrip("Z").partition(".")
    return LogLine(datetime.fromisoformat(f"{whole}.{fraction[:6]:0<6}+00:00"), text)
