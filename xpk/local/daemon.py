"""The daemon of one cluster: a loop that reconciles hosts and store.

One pass is one transaction, so killing the daemon loses and duplicates nothing; actions outside of the store
(starting, signaling) are idempotent. It exits when there is nothing to do.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import logging.handlers
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from xpk.api.base import Obj
from xpk.local import controllers, peer_secrets, process, usage
from xpk.local import objects as o
from xpk.local.daemon_control import INFO, LOCK, LOG, fingerprint
from xpk.local.environment import addresses_of, launch_spec
from xpk.local.process import Host
from xpk.local.shim import Log
from xpk.local.store import FILE, Store
from xpk.model.errors import XpkError
from xpk.storage import open_folder
from xpk.storage.private import open_file

_IDLE_SECONDS = 60.0
_log = logging.getLogger("xpk.local")


@dataclass(frozen=True, slots=True)
class _Live:
    """A pod whose host has not ended, as of a pass: the pod itself belongs to the pass."""

    uid: str
    grace_seconds: float | None  # None unless the host must end
    is_running: bool

    @classmethod
    def of(cls, pod: Obj) -> _Live:
        meta = pod["metadata"]
        grace_seconds = meta["deletionGracePeriodSeconds"] if o.is_terminating(pod) else None
        return cls(meta["uid"], grace_seconds, pod["status"]["phase"] == "Running")


class Daemon:
    """The reconcile loop of the cluster in `folder`."""

    def __init__(self, folder: Path, workloads: str) -> None:
        self._folder, self._workloads = folder, workloads
        self._store = Store(folder)
        self._bell = os.open(folder / process.BELL, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._bell, warn_on_full_buffer=False)
        self._live: list[_Live] = []
        self._pausing = False
        self._hosts: dict[str, Host] = {}
        self._shims: dict[str, subprocess.Popen[bytes]] = {}
        self._ledger = open_folder(str(folder / usage.FOLDER))
        self._recorded: list[str] = []  # names of records that the last pass wrote into the ledger
        self.stopping = False

    def _pod_folder(self, uid: str) -> Path:
        return self._folder / process.PODS / uid

    def _observe(self, pod: _Live) -> Host:
        """Observe a host. One without a supervisor is recorded as ended, unless it may still be started."""
        folder, shim = self._pod_folder(pod.uid), self._shims.get(pod.uid)
        host = process.observe(folder)
        given_up = shim.poll() is not None if shim else pod.grace_seconds is not None
        if host.state == "absent" and (shim or pod.is_running):
            folder.mkdir(mode=0o700, exist_ok=True)
            (folder / "spec.json").touch()
            process.record_end(folder, "ContainerStatusUnknown", "the folder of the host was removed")
        elif host.state == "lost":
            process.record_end(folder, "ContainerStatusUnknown", "the supervisor of the host was killed")
        elif host.state == "prepared" and given_up:
            process.record_end(folder, "StartError", "the host was not started")
        else:
            return host
        return process.observe(folder)

    def step(self) -> None:
        """Make one pass."""
        with self._store.transaction() as tx:
            usage.forget(tx, self._recorded)
            live_pods = [_Live.of(pod) for pod in tx.list("Pod") if not o.has_ended(pod)]
            hosts = {pod.uid: self._observe(pod) for pod in live_pods}
            result = controllers.reconcile(tx, hosts)
        self._hosts = {uid: host for uid, host in hosts.items() if host.state != "ended"}
        self._live, self._pausing = [_Live.of(pod) for pod in result.live], result.is_pausing
        for group in result.groups:
            addresses = addresses_of(group)
            for pod in result.to_end(group):
                meta = pod["metadata"]
                process.terminate(self._pod_folder(meta["uid"]), meta["deletionGracePeriodSeconds"])
            for pod in result.to_start(group):
                if self._is_not_started(pod["metadata"]["uid"]):
                    self._launch(pod, addresses)
        process.sweep(self._folder, result.pods)
        peer_secrets.sweep(self._folder, result.jobsets)
        self._recorded = usage.write(self._ledger, result.usage)

    def _is_not_started(self, uid: str) -> bool:
        return uid not in self._shims and self._hosts.get(uid, Host()).state in ("absent", "prepared")

    def _launch(self, pod: Obj, addresses: dict[str, str]) -> None:
        uid = pod["metadata"]["uid"]
        folder = self._pod_folder(uid)
        try:
            secret = peer_secrets.make(self._folder, o.label(pod, f"{o.JOBSET}jobset-uid"))
            spec = launch_spec(pod, addresses, folder, self._workloads, secret)
            self._shims[uid] = process.launch(folder, spec, self._folder / process.BELL)
        except (OSError, XpkError) as error:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            Log(str(folder / "log")).say(f"the host was not started: {error}")
            (folder / "spec.json").touch()
            process.record_end(folder, "StartError", str(error))

    def _reap(self) -> None:
        """Wait for supervisors that have ended, after the results of their hosts have been recorded."""
        live = {pod.uid for pod in self._live}
        self._shims = {uid: shim for uid, shim in self._shims.items() if uid in live or shim.poll() is None}

    def _changed(self) -> bool:
        """Observe the live hosts, and those whose grace period is over."""
        for pod in self._live:
            if pod.grace_seconds is not None:
                process.terminate(self._pod_folder(pod.uid), pod.grace_seconds)
            if self._observe(pod) != self._hosts.get(pod.uid, Host()):
                return True
        return False

    def run(self) -> None:
        """Reconcile until there has been nothing to do for a while, or until a signal."""
        version, last_step, last_active = -1, 0.0, time.monotonic()
        while not self.stopping:
            now = time.monotonic()
            try:
                if version != (version := self._store.version()) or now - last_step > 1 or self._changed():
                    last_step = now
                    self.step()
            except (XpkError, OSError):  # for example a long lock: the daemon must survive it
                _log.exception("a pass failed, it is tried again")
            if not (self._folder / FILE).exists():  # the store was deleted, and the hosts' folders with it
                for pod in self._live:
                    process.kill_strays(self._pod_folder(pod.uid))
                return
            if self._live or self._pausing:
                last_active = now
            elif now - last_active > _IDLE_SECONDS:
                return
            if select.select([self._bell], [], [], 0.03 if self._live else 0.5)[0]:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._bell, 65536)
            self._reap()

    def close(self, lock: int) -> None:
        """Release the lock inside a transaction: a process that writes afterwards sees that no daemon runs.

        A command that stops the daemon waits for the lock, and may remove the store then.
        """
        if not self.stopping:
            with self._store.transaction():
                os.close(lock)
        self._store.close()
        if self.stopping:
            os.close(lock)


def main(folder: Path, workloads: str) -> int:
    """Run the daemon of a cluster unless one is running; the first process returns once it runs."""
    lock = open_file(folder / LOCK, os.O_RDWR)
    for _ in range(20):  # `is_locked` in another process holds it briefly
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        time.sleep(0.01)
    else:
        return 0
    os.truncate(lock, 0)
    with os.fdopen(open_file(folder / INFO, os.O_WRONLY | os.O_TRUNC), "w", encoding="utf-8") as file:
        file.write(fingerprint(workloads))
    child = os.fork()
    os.pwrite(lock, str(child or os.getpid()).encode(), 0)  # both do, because the first one may be killed here
    if child:
        return 0
    os.setsid()
    handler = logging.handlers.RotatingFileHandler(folder / LOG, maxBytes=4 << 20, backupCount=1)
    logging.basicConfig(handlers=[handler], level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    daemon = Daemon(folder, workloads)
    signal.signal(signal.SIGTERM, lambda *_: setattr(daemon, "stopping", True))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        daemon.run()
        daemon.close(lock)
    except Exception:
        _log.exception("the daemon ends")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""))
