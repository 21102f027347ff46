"""Lease on an output folder: one run at a time writes there; another one is refused with the holder's name.

Process 0 holds the lease. Every few seconds it renews it: it writes lease.json over the version that it wrote last
(storage/slot.py). A restart of the same job takes the lease over at once, and so does a run that finds the holder's
process gone from this machine. Any other run watches versions, not clocks: a lease that is renewed is in use, and one
that is not renewed for STALE_SECONDS is free. A holder that was asked to stop is waited for while it renews. A holder
that finds the lease written by another process has lost it.
"""

import contextlib
import dataclasses
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.errors import FatalError, Problem
from trainer.hosts.bootstrap import Host
from trainer.telemetry.metrics import say
from xpk_shared.storage import Place

FILE = "lease.json"
BEAT_SECONDS = 5.0  # between renewals
STALE_SECONDS = 30.0  # without a renewal until the holder counts as gone; a busy machine may delay one
_LOOK_SECONDS = 0.5
_RELEASE_SECONDS = 5.0  # for releasing the lease at the end of a process


@dataclasses.dataclass(frozen=True, slots=True)
class Holder:
    """Holder of a lease; `process` identifies its process on its machine."""

    job: str = ""  # the same for all hosts and attempts of a job, and only for them; empty if unknown
    workload: str = ""
    attempt: int = 0
    host: str = ""
    process: tuple[str, ...] = ()
    ending: bool = False  # asked to stop, but may have to save first
    released: bool = False

    def __str__(self) -> str:
        on = f" on {self.host}" if self.host else ""
        if self.workload:
            return f"workload {self.workload!r} (attempt {self.attempt}{on})"
        return f"another trainer{on}" + (f" (pid {self.process[2]})" if self.process else "")

    def yields(self, job: str) -> bool:
        """True if the lease may be taken over without waiting: it is free, of the same job, or of a dead process."""
        return self.released or bool(job and self.job == job) or self._state() == "gone"

    def lives(self) -> bool:
        """True if the holder certainly runs, without waiting."""
        return self._state() == "runs"

    def _state(self) -> str:
        """Return "runs", "stopped" (by a signal) or "gone"; "" for a process on another machine."""
        mine, _ = _process(os.getpid())
        if not self.process or self.process[:2] != mine[:2]:
            return ""
        now, state = _process(int(self.process[2]))
        if now != self.process or state in "ZX":
            return "gone"
        return "stopped" if state in "Tt" else "runs"


class Lease:
    """One host's part of the lease: process 0 holds it, the others only check that nobody else does."""

    def __init__(
        self,
        out: Place,
        host: Host,
        on_taken: Callable[[Holder, bool], None],
        *,
        beat_seconds: float = BEAT_SECONDS,
        stale_seconds: float = STALE_SECONDS,
    ) -> None:
        """Prepare; `on_taken` is called with the new holder, and whether that is a later attempt of this job."""
        self._out, self._slot, self._on_taken = out, (out / FILE).slot(), on_taken
        self._beat_seconds, self._stale_seconds = beat_seconds, stale_seconds
        self._holds = host.process_id == 0
        job = host.job_id or host.coordinator
        self._me = Holder(job, host.workload, host.attempt, socket.gethostname(), _process(os.getpid())[0])
        self._version, self._waits_first = 0, True
        self._lock, self._over, self._due = threading.Lock(), threading.Event(), threading.Event()

    def take(self) -> None:
        """Take the lease, or check that nobody else has it. Raises FatalError naming a live holder, and OSError."""
        while True:
            version = self._free_version()
            if not self._holds:
                return
            with contextlib.suppress(FileExistsError):
                self._version = self._slot.put(_content(self._me), version)
                threading.Thread(target=self._renew, name="lease", daemon=True).start()
                return

    def ends(self) -> None:
        """Record that this run was asked to stop; returns at once."""
        self._me = dataclasses.replace(self._me, ending=True)
        self._due.set()

    def release(self) -> None:
        """Release the lease for the next run, if that takes no time."""
        if self._version and not self._over.is_set():
            self._over.set()
            self._due.set()
            thread = threading.Thread(target=self._give_back, name="release", daemon=True)
            thread.start()
            thread.join(_RELEASE_SECONDS)

    def _free_version(self) -> int:
        """Return the version that may be overwritten, once its holder is known to be gone."""
        version, content = seen, _ = self._slot.look()
        deadline = time.monotonic() + self._stale_seconds
        while version and not (holder := _holder(content)).yields(self._me.job):
            renewed = version != seen and bool(content)
            if (renewed or holder.lives()) and not holder.ending:
                message = f"output folder {str(self._out)!r} is in use by {holder}"
                raise FatalError(Problem(message, "Use another run.output_dir, or end that run first"))
            if renewed:
                seen, deadline = version, time.monotonic() + self._stale_seconds
            if self._waits_first:
                ends = f"{holder}, which was asked to stop; waiting for it to end"
                lives = f"{holder}; waiting up to {self._stale_seconds:.0f} s for a renewal"
                say(f"{self._out} is leased by {ends if holder.ending else lives}")
                self._waits_first = False
            if time.monotonic() > deadline:
                break
            # The other hosts are many, and only process 0 must be fast.
            time.sleep(min(_LOOK_SECONDS, self._beat_seconds) if self._holds else self._beat_seconds)
            version, content = self._slot.look()
        return version

    def _renew(self) -> None:
        """Thread of process 0: renew the lease until it is released, or lost."""
        while not self._over.is_set():
            self._due.wait(self._beat_seconds)
            self._due.clear()
            with self._lock:
                if self._over.is_set():
                    return
                try:
                    self._version = self._slot.put(_content(self._me), self._version)
                    continue
                except FileExistsError:
                    self._over.set()
                except OSError:  # the disk is full or the bucket unreachable: nobody else can take it now
                    continue
            holder = Holder()
            with contextlib.suppress(OSError):
                holder = _holder(self._slot.look()[1])
            self._on_taken(holder, bool(self._me.job) and holder.job == self._me.job)

    def _give_back(self) -> None:
        with contextlib.suppress(OSError), self._lock:
            self._slot.put(_content(dataclasses.replace(self._me, released=True)), self._version)


def _content(holder: Holder) -> bytes:
    """Return the lease's file format; no two writes are the same."""
    return json.dumps(dataclasses.asdict(holder) | {"time": time.time(), "write": secrets.token_hex(8)}).encode()


def _holder(content: bytes) -> Holder:
    """Return the holder in a lease; empty if it cannot be read."""
    kinds = {"job": str, "workload": str, "attempt": int, "host": str, "released": bool, "ending": bool}
    try:
        fields: dict[str, Any] = json.loads(content)
        known = {name: _printable(fields[name]) for name, kind in kinds.items() if isinstance(fields.get(name), kind)}
        process = tuple(map(str, fields["process"]))
        return Holder(**known, process=process if len(process) == 4 and process[2].isdecimal() else ())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Holder()


def _printable(value: Any) -> Any:
    """Return a value without terminal control sequences, as anybody who can write to a bucket may have written it."""
    return "".join(filter(str.isprintable, value))[:100] if isinstance(value, str) else value


def _process(pid: int) -> tuple[tuple[str, ...], str]:
    """Return a process's identity and state: (boot id, pid namespace, pid, start time), and a letter.

    Empty for a process that does not exist, and on systems without this information.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        state, *numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (boot, os.readlink("/proc/self/ns/pid"), str(pid), numbers[18]), state
    except (OSError, IndexError):
        return (), ""
