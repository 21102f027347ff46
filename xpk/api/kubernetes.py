"""`ObjectApi` on a real API server, through the official client; this, `kubeconfig` and `portforward` import it.

Plain dicts in and out: the generated models reject what servers really send, and change between releases.
Reads and idempotent writes are retried while the server is busy or unavailable; watches and followed logs resume
where they were cut off.
"""

from __future__ import annotations

import gc
import math
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path

from urllib3.exceptions import HTTPError

from xpk.api import connection
from xpk.api.answers import WatchError, event_of, object_of, page_of
from xpk.api.base import MANAGER, Change, Connection, Keep, LogLine, Obj, Objs, Selector
from xpk.api.kinds import EVERY_KIND as KINDS
from xpk.api.kinds import Kind
from xpk.api.kubeconfig import new_client
from xpk.api.limits import DEFAULT, Limits
from xpk.api.paths import access_review, container_of, dry, kind_of, path_of, selecting
from xpk.api.podlog import AWAY, read_log
from xpk.api.server_errors import GoneError
from xpk.api.timing import Backoff, Pace, seconds_left, time_limit
from xpk.api.transport import Transport
from xpk.model.errors import AuthorizationError, ConflictError, NotFoundError, TimedOutError, UnavailableError
from xpk.model.terminal import printable
from xpk.proc import LocalRunner, Runner

_AWAY_SECONDS = 300.0  # how long a followed log survives an unreachable server
_WATCH_SECONDS = 290  # servers end watches themselves after five minutes or more
_SHORT_SECONDS = 5.0  # a watch that ends sooner is restarted after a pause that doubles
_PAGE = 500  # objects per page of a list
_MAX_PAGES = 2000
_LIST_SECONDS = 600.0
_LISTS = 5  # tries of a list that expires while it is read
_RATE = 2.0  # reads per second in the long run
_LOG_RATE, _LOG_BURST = 0.5, 6  # the same for each followed log, and burst, so that logs do not delay other reads
_MAX_LOG_LINE_BYTES = 1 << 20


class KubernetesApi:
    """The API server of a kubeconfig's context."""

    def __init__(
        self,
        *,
        kubeconfig: Path | None = None,
        context: str | None = None,
        pause: Callable[[float], None] = time.sleep,
        runner: Runner | None = None,
        limits: Limits = DEFAULT,
    ) -> None:
        self._pause, self._limits = pause, limits
        self._runner = runner or LocalRunner()
        self._place = [f"--kubeconfig={kubeconfig}"] if kubeconfig else []
        self._place += [f"--context={context}"] if context else []
        self._client = new_client(kubeconfig, context, limits)
        self._transport = Transport(self._client, pause, limits)
        self._pace = Pace(_RATE, limits.read_burst, pause)
        self._watch_pauses: dict[str, Backoff] = defaultdict(Backoff)  # by path, of watches that end too soon

    def server_version(self) -> str:
        """See `Versioned.server_version`."""
        return printable(str(self._transport.call("GET", "/version").get("gitVersion", "unknown")), limit=60)

    def create(self, obj: Obj, *, dry_run: bool = False) -> Obj:
        """See `ObjectApi.create`."""
        kind, namespace = kind_of(obj["kind"]), obj["metadata"].get("namespace", "default")
        # Strict: an older server would silently drop fields that it does not know.
        query = dry(dry_run, fieldManager=MANAGER, fieldValidation="Strict")
        made = self._transport.call("POST", path_of(kind, namespace), query, obj, about=obj)
        return object_of(self._transport.host, kind, made)

    def apply(self, obj: Obj, *, dry_run: bool = False, force: bool = False) -> Obj:
        """See `ObjectApi.apply`. Without `force`, a field that another manager set otherwise is a ConflictError."""
        kind, meta = kind_of(obj["kind"]), obj["metadata"]
        path = path_of(kind, meta.get("namespace", "default"), meta["name"])
        query = dry(dry_run, fieldManager=MANAGER, force=str(force).lower())
        applied = self._transport.call("PATCH", path, query, obj, content="application/apply-patch+yaml", about=obj)
        return object_of(self._transport.host, kind, applied)

    def get(self, kind: str, name: str, namespace: str = "default") -> Obj:
        """See `ObjectApi.get`."""
        self._pace.take()
        obj = self._transport.call("GET", path_of(kind_of(kind), namespace, name))
        return object_of(self._transport.host, kind_of(kind), obj)

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
        return self._list(kind_of(kind), namespace, selecting(selector) | selecting(fields, "fieldSelector"), keep)[0]

    def patch(self, kind: str, name: str, patch: Obj, namespace: str = "default") -> Obj:
        """See `ObjectApi.patch`."""
        path, content = path_of(kind_of(kind), namespace, name), "application/merge-patch+json"
        changed = self._transport.call("PATCH", path, {"fieldManager": MANAGER}, patch, content=content)
        return object_of(self._transport.host, kind_of(kind), changed)

    def delete(self, kind: str, name: str, namespace: str = "default", *, grace_seconds: int | None = None) -> None:
        """See `ObjectApi.delete`."""
        options: Obj = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if grace_seconds is not None and kind == "Pod":
            options["gracePeriodSeconds"] = grace_seconds
        self._transport.call("DELETE", path_of(kind_of(kind), namespace, name), body=options)
        if grace_seconds is not None and kind == "JobSet":
            # The grace period is in the manifest; a shorter one has to be set in each pod's deletion.
            for pod in self.list("Pod", namespace, {"jobset.sigs.k8s.io/jobset-name": name}):
                with suppress(NotFoundError):
                    self.delete("Pod", pod["metadata"]["name"], namespace, grace_seconds=grace_seconds)

    def evict(self, name: str, namespace: str = "default") -> None:
        """See `ObjectApi.evict`."""
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
        self._transport.call("POST", f"{path_of(KINDS['Pod'], namespace, name)}/eviction", body=eviction)

    def watch(
        self,
        kind: str,
        namespace: str | None = "default",
        selector: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
    ) -> Iterator[tuple[Change, Obj]]:
        """See `ObjectApi.watch`. Changes made while the watch was interrupted are reported afterwards."""
        deadline = time.monotonic() + min(math.inf if timeout is None else timeout, seconds_left())
        known: dict[str, Obj] = {}
        version = ""
        backoff = self._watch_pauses[path_of(kind_of(kind), namespace)]
        while time.monotonic() < deadline:
            if not version:  # the first time, and when the resource version has expired
                objs, version = self._list(kind_of(kind), namespace, selecting(selector))
                yield from _difference(known, objs)
            start = time.monotonic()
            version = yield from self._watch_once(kind_of(kind), namespace, selector, version, known, deadline)
            if time.monotonic() - start >= _SHORT_SECONDS:
                backoff.reset()
            elif (remaining := deadline - time.monotonic()) > 0:
                self._pause(min(remaining, backoff.next()))

    def logs(
        self, pod: Obj, *, follow: bool = False, since: datetime | None = None, tail: int | None = None
    ) -> Iterator[LogLine]:
        """See `ObjectApi.logs`."""
        meta = pod["metadata"]
        path = f"{path_of(KINDS['Pod'], meta['namespace'], meta['name'])}/log"
        pace = Pace(_LOG_RATE, _LOG_BURST, self._pause) if follow else self._pace

        def stream(query: dict[str, str], last_line: bool) -> Iterator[str]:
            pace.take()
            return self._transport.stream(
                path, {**query, "container": container_of(pod)}, quiet=self._limits.quiet_seconds, last_line=last_line,
                must_flow=not follow, max_bytes=_MAX_LOG_LINE_BYTES,
            )  # fmt: skip

        has_ended = partial(self._has_ended, meta["namespace"], meta["name"])
        return read_log(stream, has_ended, self._pause, follow=follow, since=since, tail=tail)

    def exec(self, pod: Obj, argv: Sequence[str], *, interactive: bool = False) -> int:
        """See `ObjectApi.exec`. Runs kubectl, which supports terminals and every version of the protocol."""
        meta = pod["metadata"]
        if pod.get("status", {}).get("phase") != "Running":
            raise ConflictError(f"pod '{meta['name']}' is not running", hint="`xpk workload status` shows why")
        terminal = ["--stdin", "--tty"] if interactive else ["--stdin"]
        arguments = [f"--namespace={meta['namespace']}", f"--container={container_of(pod)}", *terminal, meta["name"]]
        code = self._runner.attach(["kubectl", *self._place, "exec", *arguments, "--", *argv])
        if code == 1:  # kubectl's own failures use this code too
            self._check_may("create", "pods", "exec", meta["namespace"])
        return code

    def connect(self, pod: Obj, port: int) -> Connection:
        """See `ObjectApi.connect`."""
        from xpk.api.portforward import open_port  # imports the models of all kinds, which takes half a second

        return open_port(self._client, pod, port)

    def former_pods(self, namespace: str, selector: Mapping[str, str]) -> Objs:
        """See `ObjectApi.former_pods`."""
        return []

    def _check_may(self, verb: str, resource: str, part: str, namespace: str) -> None:
        """Raise AuthorizationError if this user lacks a permission that another program would use on its behalf."""
        review = access_review(verb=verb, resource=resource, subresource=part, namespace=namespace)
        answer = self._transport.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {}, review)
        status = answer.get("status")
        if not isinstance(status, dict) or not status.get("allowed"):
            raise AuthorizationError(
                f"permission denied: you cannot {verb} {resource}/{part} in namespace '{namespace}'",
                hint="`xpk docs permissions` lists the required roles",
            )

    def _has_ended(self, namespace: str, name: str) -> bool:
        """Return whether a pod has ended. Does not use the request budget: `read_log` pauses between calls."""
        path, deadline, backoff = path_of(KINDS["Pod"], namespace, name), time.monotonic() + _AWAY_SECONDS, Backoff()
        while True:
            try:
                pod = object_of(self._transport.host, KINDS["Pod"], self._transport.call("GET", path))
                return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
            except NotFoundError:
                return True
            except AWAY:
                if time.monotonic() > deadline:
                    raise
                self._pause(backoff.next())

    def _list(
        self, kind: Kind, namespace: str | None, selecting: Mapping[str, str], keep: Keep | None = None
    ) -> tuple[Objs, str]:
        backoff = Backoff()
        with time_limit(_LIST_SECONDS):
            for _ in range(_LISTS):
                self._pace.take()
                try:
                    return self._pages(kind, namespace, {"limit": str(_PAGE), **selecting}, keep)
                except GoneError:  # continue tokens expire after some minutes
                    self._pause(backoff.next())
        raise UnavailableError(f"the list of {kind.plural} expired while it was being read", hint="try again")

    def _pages(self, kind: Kind, namespace: str | None, query: dict[str, str], keep: Keep | None) -> tuple[Objs, str]:
        objs: Objs = []
        host = self._transport.host
        for _ in range(_MAX_PAGES):
            with _no_collection():
                answer = self._transport.call("GET", path_of(kind, namespace), query)
                items, version, more = page_of(host, kind, answer, keep)
            objs += items
            if not more:
                return objs, version
            if more == query.get("continue"):
                raise connection.malformed_response(host, f"a list of {kind.plural} whose next page is the same again")
            if not items:
                self._pace.take()
            query["continue"] = more
        raise connection.malformed_response(host, f"a list of {kind.plural} of more than {_MAX_PAGES} pages")

    def _watch_once(
        self,
        kind: Kind,
        namespace: str | None,
        selector: Mapping[str, str] | None,
        version: str,
        known: dict[str, Obj],
        deadline: float,
    ) -> Generator[tuple[Change, Obj], None, str]:
        """Yield changes until the connection ends; return the version to resume from, "" to list again."""
        seconds = min(_WATCH_SECONDS, max(0.01, deadline - time.monotonic()))
        query = {
            "watch": "1", "allowWatchBookmarks": "true", "resourceVersion": version,
            "timeoutSeconds": str(math.ceil(seconds)), **selecting(selector),
        }  # fmt: skip
        self._pace.take()
        ends = time.monotonic() + seconds
        try:
            for line in self._transport.stream(path_of(kind, namespace), query, quiet=seconds, ends=ends):
                change, obj = event_of(self._transport.host, kind, line)
                version = str(obj["metadata"].get("resourceVersion") or version)
                if change == "DELETED":
                    known.pop(obj["metadata"]["uid"], None)
                elif change:
                    known[obj["metadata"]["uid"]] = obj
                if change:
                    yield change, obj
                if time.monotonic() >= ends:
                    return version
        except (HTTPError, UnavailableError, TimedOutError):
            return version
        except (GoneError, WatchError):  # 410: the resource version has expired
            return ""
        return version


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pause the collection of cycles: JSON has none, and each collection would visit all objects of earlier pages."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _difference(known: dict[str, Obj], objs: Objs) -> Iterator[tuple[Change, Obj]]:
    """Yield the changes since `known`, and update `known`."""
    now = {obj["metadata"]["uid"]: obj for obj in objs}
    for uid in known.keys() - now.keys():
        yield "DELETED", known.pop(uid)
    for uid, obj in now.items():
        before = known.get(uid)
        if before is None:
            yield "ADDED", obj
        elif before["metadata"]["resourceVersion"] != obj["metadata"]["resourceVersion"]:
            yield "MODIFIED", obj
        known[uid] = obj
