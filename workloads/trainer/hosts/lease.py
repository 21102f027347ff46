"""Lease on an output folder: one run at a time writes there; a second one fails with the holder's name.

Process 0 holds the lease. Every few seconds it renews the lease: it overwrites the version of lease.json that it wrote
last (xpk_shared/storage/disk_slot.py). A restart of the same job takes the lease over at once, and so does a run that
finds that the holder's process on this machine has ended. Any other run watches versions, not clocks: a lease that is
renewed is in use, and one that is not renewed for STALE_SECONDS is free. While a holder that was asked to stop renews
its lease, the next run waits for it. A holder that finds the lease written by another process has lost it, at the
latest before it commits a checkpoint.

Of a workload of several clusters, a run that was released later takes the lease over at once (placement.py).
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

from trainer.errors import ExitCode, FatalError, MovedError, Problem
from trainer.hosts.bootstrap import Host
from trainer.hosts.placement import Placed
from trainer.telemetry.metrics import say
from xpk_shared.storage import Place

FILE = "lease.json"
BEAT_SECONDS = 5.0  # between renewals
STALE_SECONDS = 30.0  # without a renewal until the holder counts as dead; a busy machine may delay a renewal
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
    run: str = ""  # of a workload of several clusters: the same on all of them
    epoch: int = 0  # of the decision for the holder's cluster
    cluster: str = ""  # of the holder, if the workload has several

    def __str__(self) -> str:
        of_cluster = f" of cluster {self.cluster!r}" if self.cluster else ""
        on = f" on {self.host}{of_cluster}" if self.host else ""
        if self.workload:
            return f"workload {self.workload!r} (attempt {self.attempt}{on})"
        return f"another trainer{on}" + (f" (pid {self.process[2]})" if self.process else "")

    def is_free_for(self, other: "Holder") -> bool:
        """True if another one may take the lease over without waiting.

        It is free, of the same job, of a dead process, or of an older decision where the workload runs.
        """
        is_older = other.is_successor_of(self)
        return self.released or is_older or self.is_of(other.job) or self._state() == "gone"

    def is_successor_of(self, other: "Holder") -> bool:
        """True if it continues the run of another one, on a cluster that was chosen later."""
        return bool(self.run) and self.run == other.run and self.epoch > other.epoch

    def is_of(self, job: str) -> bool:
        """True if the holder is certainly of this job."""
        return bool(job) and self.job == job

    def is_running(self) -> bool:
        """True if the holder is certainly running on this machine."""
        return self._state() == "runs"

    def _state(self) -> str:
        """Return "runs", "stopped" (by a signal) or "gone"; "" for a process on another machine."""
        own_process, _ = _process(os.getpid())
        if not self.process or self.process[:2] != own_process[:2]:
            return ""
        now, state = _process(int(self.process[2]))
        if now != self.process or state in "ZX":
            return "gone"
        return "stopped" if state in "Tt" else "runs"


class Lease:
    """One host's use of the lease: process 0 holds it, the others only check that no other run does."""

    def __init__(
        self,
        out: Place,
        host: Host,
        on_taken: Callable[[Holder, ExitCode], None],
        *,
        read_placed: Callable[[], Placed] = Placed,
        beat_seconds: float = BEAT_SECONDS,
        stale_seconds: float = STALE_SECONDS,
    ) -> None:
        """Prepare; `on_taken` is called once, with the new holder and the exit code for this host.

        `read_placed` returns the right of a run on one of several clusters; it may raise OSError.
        """
        self._out, self._slot, self._on_taken = out, (out / FILE).slot(), on_taken
        self._beat_seconds, self._stale_seconds = beat_seconds, stale_seconds
        self._is_holder = host.process_id == 0 and (host.slice_id == 0 or not host.is_elastic)
        job = host.job_id or host.coordinator
        process, _ = _process(os.getpid())
        self._me = Holder(job, host.workload, host.attempt, socket.gethostname(), process)
        self._read_placed = read_placed
        self._version, self._is_first_wait, self._is_lost = 0, True, False
        self._unanswered: set[bytes] = set()  # contents that may have been written since that version
        self._lock, self._is_released, self._wake = threading.Lock(), threading.Event(), threading.Event()

    def take(self) -> None:
        """Take the lease, or check that no other run has it.

        Raises FatalError naming a live holder, MovedError if that continues this run on another cluster, and OSError.
        """
        self._me = dataclasses.replace(self._me, **self._read_placed()._asdict())
        while True:
            version = self._free_version()
            if not self._is_holder:
                return
            with contextlib.suppress(FileExistsError):
                self._version = self._slot.put(_content(self._me), version)
                threading.Thread(target=self._renew, name="lease", daemon=True).start()
                return

    def check(self) -> str:
        """Return why this run may not commit a checkpoint: another one has taken the lease over; "" if it may.

        A host that does not hold the lease, such as that of a leading slice, compares the job. Raises OSError.
        """
        with self._lock:
            version, content = self._slot.look()
            holder = _holder(content)
            if self._version and not self._is_released.is_set():
                # An older version comes from a cache of the file system.
                is_other = version > self._version and content not in self._unanswered
            else:
                is_other = bool(holder.job) and not holder.is_free_for(self._me)
            is_lost = self._is_lost or is_other
        if is_lost:
            self._lose(holder)
        return f"{holder} has taken over the output folder" if is_lost else ""

    def mark_stopping(self) -> None:
        """Record that this run was asked to stop; returns at once."""
        self._me = dataclasses.replace(self._me, ending=True)
        self._wake.set()

    def release(self) -> None:
        """Release the lease for the next run; give up after _RELEASE_SECONDS."""
        if self._version and not self._is_released.is_set():
            self._is_released.set()
            self._wake.set()
            thread = threading.Thread(target=self._write_release, name="release", daemon=True)
            thread.start()
            thread.join(_RELEASE_SECONDS)

    def _free_version(self) -> int:
        """Return the version that may be overwritten, once its holder is known to be gone."""
        version, content = last_version, _ = self._slot.look()
        deadline = time.monotonic() + self._stale_seconds
        while version and not (holder := _holder(content)).is_free_for(self._me):
            renewed = version != last_version and bool(content)
            if (renewed or holder.is_running()) and not holder.ending:
                raise self._refusal(holder)
            if renewed:
                last_version, deadline = version, time.monotonic() + self._stale_seconds
            if self._is_first_wait:
                stopping = f"{holder}, which is stopping; waiting for it to end"
                running = f"{holder}; waiting up to {self._stale_seconds:.0f} s for a renewal"
                say(f"{self._out} is leased by {stopping if holder.ending else running}")
                self._is_first_wait = False
            if time.monotonic() > deadline:
                break
            # Only process 0 polls quickly, because there are many other hosts.
            time.sleep(min(_LOOK_SECONDS, self._beat_seconds) if self._is_holder else self._beat_seconds)
            version, content = self._slot.look()
        return version

    def _refusal(self, holder: Holder) -> FatalError:
        message = f"output folder {str(self._out)!r} is in use by {holder}"
        if holder.is_successor_of(self._me):
            where = f"cluster {holder.cluster!r}" if holder.cluster else "another cluster"  # of an earlier version
            hint = "To move it here, use `xpk workload place NAME --to CLUSTER`"
            return MovedError(Problem(f"the run continues on {where}: {message}", hint))
        return FatalError(Problem(message, "Use another run.output_dir, or stop that run first"))

    def _renew(self) -> None:
        """Renew the lease until it is released or lost; runs on a thread of process 0."""
        while not self._is_released.is_set():
            self._wake.wait(self._beat_seconds)
            self._wake.clear()
            with self._lock:
                if self._is_released.is_set():
                    return
                try:
                    self._put(self._me)
                    continue
                except FileExistsError:
                    self._is_released.set()
                except OSError:  # the disk is full or the bucket unreachable, so no other run can take the lease
                    continue
            holder = Holder()
            with contextlib.suppress(OSError):
                holder = _holder(self._slot.look()[1])
            self._lose(holder)

    def _put(self, holder: Holder) -> None:
        """Write the lease over the version that this host wrote last. Raises FileExistsError if another one has."""
        content = _content(holder)
        self._unanswered.add(content)
        try:
            self._version = self._slot.put(content, self._version)
        except FileExistsError:
            version, newest = self._slot.look()
            if newest not in self._unanswered:
                raise
            self._version = self._slot.put(content, version)  # over a renewal of its own, whose answer was lost
        self._unanswered.clear()

    def _lose(self, holder: Holder) -> None:
        """Report that another process has the lease, once."""
        with self._lock:
            was_lost, self._is_lost = self._is_lost, True
            self._is_released.set()
        if not was_lost:
            self._on_taken(holder, self._code_after(holder))

    def _code_after(self, holder: Holder) -> ExitCode:
        """Return the exit code of this host after another process has taken the lease."""
        if holder.is_of(self._me.job):  # a later attempt
            return ExitCode.PEER_LOST
        return ExitCode.MOVED if holder.is_successor_of(self._me) else ExitCode.CRASH

    def _write_release(self) -> None:
        with contextlib.suppress(OSError), self._lock:
            self._put(dataclasses.replace(self._me, released=True))


def _content(holder: Holder) -> bytes:
    """Return the lease's file format; no two writes are the same."""
    return json.dumps(dataclasses.asdict(holder) | {"time": time.time(), "write": secrets.token_hex(8)}).encode()


def _holder(content: bytes) -> Holder:
    """Return the holder in a lease; empty if it cannot be read."""
    kinds = {"job": str, "workload": str, "attempt": int, "host": str, "released": bool, "ending": bool}
    kinds |= {"run": str, "epoch": int, "cluster": str}
    try:
        fields: dict[str, Any] = json.loads(content)
        known = {name: _printable(fields[name]) for name, kind in kinds.items() if isinstance(fields.get(name), kind)}
        process = tuple(map(str, fields["process"]))
        return Holder(**known, process=process if len(process) == 4 and process[2].isdecimal() else ())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Holder()


def _printable(value: Any) -> Any:
    """Return a value without terminal control sequences: anyone with write access to a bucket may have written it."""
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
