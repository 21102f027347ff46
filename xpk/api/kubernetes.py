"""`ObjectApi` on a real API server, through the official client; this, `kubeconfig` and `portforward` import it.

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
from functools import partial
from pathlib import Path
from typing import Any

import urllib3
from kubernetes.client.exceptions import ApiException

from xpk.api import connection
from xpk.api.base import MANAGER, Applied, Change, Connection, LogLine, Obj, Objs
from xpk.api.kinds import EVERY_KIND as KINDS
from xpk.api.kinds import Kind
from xpk.api.kubeconfig import new_client
from xpk.api.paths import access_review, container_of, dry, kind_of, path_of, selecting
from xpk.api.podlog import AWAY, read_log
from xpk.api.portforward import open_port
from xpk.api.refusal import GoneError, budget_of, explain, other_version
from xpk.model.errors import (
    AuthorizationError,
    ConflictError,
    MissingToolError,
    NotFoundError,
    UnavailableError,
    XpkError,
)
from xpk.proc import LocalRunner, Runner

_BUSY = (408, 429, 500, 502, 503, 504)
_TRIES, _FIRST_PAUSE, _LONGEST_PAUSE = 6, 0.2, 5.0  # seconds
_AWAY_SECONDS = 300.0  # for which a followed log outlasts a server that is away
_TIMEOUT = (5.0, 60.0)  # seconds to connect, to wait for bytes
_QUIET_SECONDS = 120.0  # after which a log is asked for again: the connection may have been dropped unnoticed
_WATCH_SECONDS = 290  # servers end watches themselves after five minutes or more
_PAGE = 500  # objects in one answer to a list
_LISTS = 5  # times that a list is begun which the server forgets while it is read


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
        self._client = new_client(kubeconfig, context)
        self._host = self._client.configuration.host

    def create(self, obj: Obj, *, dry_run: bool = False) -> Obj:
        """See `ObjectApi.create`."""
        kind, namespace = kind_of(obj["kind"]), obj["metadata"].get("namespace", "default")
        # Strict: an older server would drop the fields that it does not know, and say nothing.
        query = dry(dry_run, fieldManager=MANAGER, fieldValidation="Strict")
        return self._call("POST", path_of(kind, namespace), query, obj, about=obj)

    def apply(self, obj: Obj, *, dry_run: bool = False, force: bool = False) -> Applied:
        """See `ObjectApi.apply`. Not forced, a field that another manager has set otherwise is a ConflictError."""
        meta = obj["metadata"]
        path = path_of(kind_of(obj["kind"]), meta.get("namespace", "default"), meta["name"])
        before = self._find(path)
        query = dry(dry_run, fieldManager=MANAGER, force=str(force).lower())
        after = self._call("PATCH", path, query, obj, content="application/apply-patch+yaml", about=obj)
        if before is None:
            return "created"
        return "unchanged" if _content(before) == _content(after) else "configured"

    def get(self, kind: str, name: str, namespace: str = "default") -> Obj:
        """See `ObjectApi.get`."""
        return self._call("GET", path_of(kind_of(kind), namespace, name))

    def list(
        self,
        kind: str,
        namespace: str | None = "default",
        selector: Mapping[str, str] | None = None,
        *,
        fields: Mapping[str, str] | None = None,
    ) -> Objs:
        """See `ObjectApi.list`."""
        return self._list(kind_of(kind), namespace, selecting(selector) | selecting(fields, "fieldSelector"))[0]

    def patch(self, kind: str, name: str, patch: Obj, namespace: str = "default") -> Obj:
        """See `ObjectApi.patch`."""
        path = path_of(kind_of(kind), namespace, name)
        return self._call("PATCH", path, {"fieldManager": MANAGER}, patch, content="application/merge-patch+json")

    def delete(self, kind: str, name: str, namespace: str = "default", *, grace_seconds: int | None = None) -> None:
        """See `ObjectApi.delete`."""
        options: Obj = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if grace_seconds is not None and kind == "Pod":
            options["gracePeriodSeconds"] = grace_seconds
        self._call("DELETE", path_of(kind_of(kind), namespace, name), body=options)
        if grace_seconds is not None and kind == "JobSet":
            # The pods' own grace period is in the manifest; a shorter one has to be asked of each pod.
            for pod in self.list("Pod", namespace, {"jobset.sigs.k8s.io/jobset-name": name}):
                with suppress(NotFoundError):
                    self.delete("Pod", pod["metadata"]["name"], namespace, grace_seconds=grace_seconds)

    def evict(self, name: str, namespace: str = "default") -> None:
        """See `ObjectApi.evict`."""
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
        self._call("POST", f"{path_of(KINDS['Pod'], namespace, name)}/eviction", body=eviction)

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
                there, version = self._list(kind_of(kind), namespace, selecting(selector))
                yield from _difference(known, there)
            version = yield from self._watch_once(kind_of(kind), namespace, selector, version, known, deadline)

    def logs(
        self, pod: Obj, *, follow: bool = False, since: datetime | None = None, tail: int | None = None
    ) -> Iterator[LogLine]:
        """See `ObjectApi.logs`."""
        meta = pod["metadata"]
        path = f"{path_of(KINDS['Pod'], meta['namespace'], meta['name'])}/log"

        def stream(query: dict[str, str], last_line: bool) -> Iterator[str]:
            return self._stream(path, {**query, "container": container_of(pod)}, _QUIET_SECONDS, last_line=last_line)

        has_ended = partial(self._has_ended, meta["namespace"], meta["name"])
        return read_log(stream, has_ended, self._pause, follow=follow, since=since, tail=tail)

    def exec(self, pod: Obj, argv: Sequence[str], *, interactive: bool = False) -> int:
        """See `ObjectApi.exec`. kubectl does it: it knows terminals and every version of the protocol."""
        meta = pod["metadata"]
        if pod.get("status", {}).get("phase") != "Running":
            raise ConflictError(f"pod '{meta['name']}' does not run", hint="`xpk workload status` says why")
        terminal = ["--stdin", "--tty"] if interactive else ["--stdin"]
        where = [f"--namespace={meta['namespace']}", f"--container={container_of(pod)}", *terminal, meta["name"]]
        code = self._runner.attach(["kubectl", *self._place, "exec", *where, "--", *argv])
        if code == 1:  # also how kubectl itself fails
            self._check_may("create", "pods", "exec", meta["namespace"])
        return code

    def connect(self, pod: Obj, port: int) -> Connection:
        """See `ObjectApi.connect`."""
        return open_port(self._client, pod, port)

    def former_pods(self, namespace: str, selector: Mapping[str, str]) -> Objs:
        """See `ObjectApi.former_pods`."""
        return []

    def _check_may(self, verb: str, resource: str, part: str, namespace: str) -> None:
        """Raise AuthorizationError if we may not do something that another program did for us."""
        review = access_review(verb=verb, resource=resource, subresource=part, namespace=namespace)
        status = self._call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {}, review)["status"]
        if not status.get("allowed"):
            raise AuthorizationError(
                f"not authorised: you may not {verb} {resource}/{part} in namespace '{namespace}'",
                hint="docs/permissions.md has the roles to ask for",
            )

    def _has_ended(self, namespace: str, name: str) -> bool:
        deadline = time.monotonic() + _AWAY_SECONDS
        while True:
            try:
                found = self._find(path_of(KINDS["Pod"], namespace, name))
                break
            except AWAY:
                if time.monotonic() > deadline:
                    raise
                self._pause(_FIRST_PAUSE)
        return found is None or found.get("status", {}).get("phase") in ("Succeeded", "Failed")

    def _find(self, path: str) -> Obj | None:
        try:
            return self._call("GET", path)
        except NotFoundError:
            return None

    def _list(self, kind: Kind, namespace: str | None, selecting: Mapping[str, str]) -> tuple[Objs, str]:
        for _ in range(_LISTS):
            try:
                return self._pages(kind, namespace, {"limit": str(_PAGE), **selecting})
            except GoneError:  # the place where the next page begins, after some minutes
                self._pause(_FIRST_PAUSE)
        raise UnavailableError(f"the cluster forgot the list of {kind.plural} while it was read", hint="try again")

    def _pages(self, kind: Kind, namespace: str | None, query: dict[str, str]) -> tuple[Objs, str]:
        found: Objs = []
        while True:
            page = self._call("GET", path_of(kind, namespace), query)
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
            "timeoutSeconds": str(math.ceil(left)), **selecting(selector),
        }  # fmt: skip
        try:
            for line in self._stream(path_of(kind, namespace), query, left):
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
        except (urllib3.exceptions.HTTPError, UnavailableError):
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
                return connection.parsed(self._host, self._request(method, path, query, body, content, _TIMEOUT).read())
            except ApiException as error:
                if error.status == 404 and method == "DELETE" and left < _TRIES - 1:
                    return {}  # the answer to an earlier try was lost
                # A POST that may have been carried out must not be made twice. No status: TLS did not even begin.
                again = (429, 503) if method == "POST" else _BUSY
                if (
                    not left
                    or budget_of(error.body)
                    or not (error.status in again or (not error.status and not connection.is_final(error)))
                ):
                    raise self._explained(error, method, path, about) from error
            except urllib3.exceptions.HTTPError as error:
                sent = method == "POST" and not connection.never_sent(error)
                if not left or sent or connection.is_final(error):
                    raise connection.unreachable(self._host, error, sent=sent) from error
            self._pause(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        raise AssertionError("the last try returns or raises")

    def _explained(self, error: ApiException, method: str, path: str, about: Obj | None) -> XpkError:
        """Return what a refusal means; whether a kind is missing or only its version, the server is asked."""
        if not error.status:  # this client's word for TLS that fails
            return connection.unreachable(self._host, error)
        if connection.looks_like_a_page(error.body):
            page = connection.somebody_else(self._host, error.body)
            return UnavailableError(page.message, hint=page.hint) if error.status in _BUSY else page
        found = explain(error.status, error.body, method, path, about)
        parts = path.split("/")
        if error.status == 404 and isinstance(found, MissingToolError):
            with suppress(ApiException, urllib3.exceptions.HTTPError, XpkError):
                answer = self._request("GET", f"/apis/{parts[2]}", None, None, "application/json", _TIMEOUT).read()
                group = connection.parsed(self._host, answer)
                served = [str(item["version"]) for item in group.get("versions") or []]
                if served and parts[3] not in served:
                    return other_version(parts[2], parts[3], served)
        return found

    def _stream(self, path: str, query: Mapping[str, str], seconds: float, *, last_line: bool = False) -> Iterator[str]:
        """Yield the lines of an answer as they come; a last one without an end was cut off, unless it may have none.

        Raises urllib3's HTTPError when nothing came for `seconds`.
        """
        try:
            answer = self._request("GET", path, query, None, "application/json", (_TIMEOUT[0], seconds))
        except ApiException as error:
            raise self._explained(error, "GET", path, None) from error
        response = answer.response
        rest = b""
        try:
            for chunk in response.stream(65536, decode_content=False):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from (line.decode(errors="replace") for line in lines if line)
            if rest and last_line:
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
            raise ApiException(status=answer.status, reason=answer.reason, body=answer.read())  # type: ignore[no-untyped-call]
        return answer


def _content(obj: Obj) -> Obj:
    """Return an object without what every write changes: a dry run gives no new version to compare."""
    volatile = ("managedFields", "resourceVersion", "generation")
    return {**obj, "metadata": {key: value for key, value in obj["metadata"].items() if key not in volatile}}


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
