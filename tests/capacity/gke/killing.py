"""Commands in their own processes, which a test kills at a chosen point; their project outlives them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import socketserver
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from tests.capacity.gke.site import RegisteredApi, Site
from tools.gke_emulator.emulator import GkeEmulator
from tools.gke_emulator.record import Call
from xpk.api.base import Obj
from xpk.capacity.plan.plan import Plan
from xpk.model.errors import XpkError
from xpk.testing import _key_of

Kill = int | Literal["change"] | None  # after this number of steps; after a change; not at all
TASKS: dict[str, Callable[[Site], Plan]] = {
    "create": lambda site: site.plan(2),
    "grow": lambda site: site.provider().plan_resize("c", 3, force=False),
    "shrink": lambda site: site.provider().plan_resize("c", 1, force=True),
    "shrink-free": lambda site: site.provider().plan_resize("c", 2, force=False),
    "delete": lambda site: site.provider().plan_delete("c", force=True),
}
_SECONDS = 60.0
_READS = ("Get", "List", "GET ")
# A process that has imported everything and forks for each command: starting Python each time would take a second.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([__name__])


class ServedApi(RegisteredApi):
    """The objects of a cluster; `on_change` is called after each change, before the response."""

    def __init__(self, gke: GkeEmulator, on_change: Callable[[], None]) -> None:
        super().__init__(gke)
        self._on_change = on_change

    def create(self, obj: Obj, *, dry_run: bool = False) -> Obj:
        """See `ObjectApi.create`. Nodes register automatically."""
        made = super().create(obj, dry_run=dry_run)
        if not dry_run and obj["kind"] != "Node":
            self._on_change()
        return made

    def apply(self, obj: Obj, *, dry_run: bool = False, force: bool = False) -> Obj:
        """See `ObjectApi.apply`."""
        before = self.objects.get(_key_of(obj))
        applied = super().apply(obj, dry_run=dry_run, force=force)
        if self.objects.get(_key_of(obj)) is not before:
            self._on_change()
        return applied

    def patch(self, kind: str, name: str, patch: Obj, namespace: str = "default") -> Obj:
        """See `ObjectApi.patch`."""
        patched = super().patch(kind, name, patch, namespace)
        self._on_change()
        return patched

    def delete(self, kind: str, name: str, namespace: str = "default", *, grace_seconds: int | None = None) -> None:
        """See `ObjectApi.delete`."""
        super().delete(kind, name, namespace, grace_seconds=grace_seconds)
        self._on_change()

    def evict(self, name: str, namespace: str = "default") -> None:
        """See `ObjectApi.evict`."""
        super().evict(name, namespace)
        self._on_change()


class RemoteApi:
    """A `ServedApi` of another process; each call is a connection."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return partial(self._call, method)

    def _call(self, method: str, *args: Any, **named: Any) -> Any:
        with socket.create_connection(self._address) as connection, connection.makefile("rwb") as file:
            pickle.dump((method, args, named), file)
            file.flush()
            value, error = pickle.load(file)
        if error:
            raise error
        return value


class _Serving(socketserver.StreamRequestHandler):
    api: ServedApi

    def handle(self) -> None:
        with suppress(EOFError, OSError):  # the client was killed
            method, args, named = pickle.load(self.rfile)
            value, failure = None, None
            try:
                value = getattr(self.api, method)(*args, **named)
            except XpkError as error:
                failure = error
            pickle.dump((value, failure), self.wfile)


class Life:
    """A project with an API server for its cluster, on which commands are run and killed."""

    def __init__(self, folder: Path, gke: GkeEmulator) -> None:
        self._lock = threading.Lock()
        self._victim: BaseProcess | None = None
        api = ServedApi(gke, self._changed)
        self.site = Site(folder, gke, api)
        gke.record.on_done = self._called
        handler = type("Serving", (_Serving,), {"api": api})
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,)).start()

    def close(self) -> None:
        """Stop the API server."""
        self._server.shutdown()
        self._server.server_close()

    def run(self, task: str, kill: Kill = None) -> bool:
        """Run a command; return whether it was killed before its end."""
        gke, api = self.site.gke, self._server.server_address
        there = str(self.site.folder), gke.grpc_target, gke.http_url, api
        steps = kill if isinstance(kill, int) else 0
        process = _PROCESSES.Process(target=act, args=(*there, task, steps))
        with self._lock:  # no response before the process to kill is known
            process.start()
            self._victim = process if kill == "change" else None
        process.join(_SECONDS)
        code = process.exitcode
        process.kill()
        assert code in (0, -signal.SIGKILL), f"'{task}' ended with {code}"
        return code != 0

    def _called(self, call: Call) -> None:
        if call.code == "OK" and not call.method.startswith(_READS):
            self._changed()

    def _changed(self) -> None:
        with self._lock:
            if self._victim:
                self._victim.kill()
                self._victim = None


def act(folder: str, grpc_target: str, http_url: str, api: tuple[str, int], task: str, die_after: int) -> None:
    """Run a task in its own process, killed after this number of steps; 0: not killed."""
    there: Any = SimpleNamespace(grpc_target=grpc_target, http_url=http_url)
    remote: Any = RemoteApi(api)
    done: list[str] = []

    def note(title: str) -> None:
        done.append(title)
        if len(done) == die_after:
            os.kill(os.getpid(), signal.SIGKILL)

    TASKS[task](Site(Path(folder), there, remote)).carry_out(note)
