"""Life cycle of a host around the training: its records, its peers, and its exit."""

import contextlib
import dataclasses
import functools
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NoReturn

from trainer.config import Config
from trainer.errors import (
    AddressError,
    ChipsError,
    CorruptError,
    ExitCode,
    FatalError,
    PeerAbsent,
    Problem,
    SaveError,
    StorageError,
    reason,
)
from trainer.hosts.bootstrap import Host, own_address, resolve
from trainer.hosts.lease import Holder, Lease
from trainer.hosts.measurements import Measurements
from trainer.hosts.membership import Membership
from trainer.hosts.peers import BEATS, Peers
from trainer.hosts.placement import read_placement
from trainer.hosts.signals import Stop
from trainer.hosts.stop_step import StopStep
from trainer.hosts.time_limits import TimeLimits
from trainer.hosts.watchdog import Watchdog
from trainer.storage import open_place
from trainer.telemetry.metrics import Events, JsonLines, flush, say
from xpk_shared.slices import registry
from xpk_shared.storage import Place, in_bucket
from xpk_shared.storage.errors import Unreachable
from xpk_shared.supervisor import termination_message
from xpk_shared.supervisor.names import CAUSE, RECORD

Address = tuple[str, int]
_MEETING_SECONDS = 300.0
FLUSH_SECONDS = 10.0  # for flushing events and metrics when the process ends
_OPENING_SECONDS = 30.0  # for a bucket to confirm that this host can write to it
_FULL_DISK = ("No space left on device", "Disk quota exceeded", "not enough space: ")
_CAUSE_SECONDS = 2.0  # for a failed host to detect that a peer's death was the cause


@dataclasses.dataclass(frozen=True)
class Job:
    """State of one host that is known before JAX is imported."""

    config: Config
    host: Host
    out: Place
    lease: Lease
    events: Events
    peers: Peers
    stop: Stop
    stop_step: StopStep
    watchdog: Watchdog
    slices: Membership | None = None  # of elastic slices
    measurements: Measurements = dataclasses.field(default_factory=Measurements)

    @property
    def is_first(self) -> bool:
        """True for process 0 of those that JAX joins."""
        return self.host.process_id == 0

    @property
    def leads(self) -> bool:
        """True for the process that writes shared files: process 0, of the leading slice if slices are elastic."""
        return self.is_first and (self.slices is None or self.slices.is_leading)


def open_job(config: Config, host: Host, on_end: Callable[[ExitCode, float], None] | None = None) -> Job:
    """Open this host's records, install its signal handlers and prepare the connection to its peers.

    When this host must end, `on_end` is called with the exit code and the seconds for flushing records. Without it the
    process exits, and signals are handled. Raises FatalError if the output folder cannot be written, or is in use.
    """
    finish, began = on_end or end, time.monotonic()
    out = open_place(config.run.output_dir or host.output_dir or f"output/{config.name}")
    measurements = Measurements()
    lease, events = _open_records(out, host, began, finish, measurements.take_event)

    def on_lost(peer: int) -> None:
        if watchdog.hung:
            return  # the watchdog ends this host and reports the cause
        if slices:
            slices.leave(is_done=False)  # at once: the other slices need not wait until the records are flushed
        events.write("peer_lost", peer=peer)
        termination_message.write(termination_message.LOST + host.name(peer))
        say(f"{host.name(host.process_id)}: lost {host.name(peer)}; exiting so that the job can restart")
        # Without the coordinator, process 0, JAX aborts this process at any moment; exit first, with our exit code.
        finish(ExitCode.PEER_LOST, 0.0 if peer == 0 else FLUSH_SECONDS)

    def on_message(message: str, peer: int) -> None:
        if message == "stop":  # of elastic slices
            stop.request()
        elif message == "end":
            stop.end_now(ExitCode.PREEMPTED)
        elif message == "fatal":
            events.write("fail", reason=f"{host.name(peer)} failed permanently")
            say(f"{host.name(host.process_id)}: {host.name(peer)} failed permanently; see its log")
            finish(ExitCode.FATAL, FLUSH_SECONDS)
        elif message.startswith("hung "):
            watchdog.receive(message.removeprefix("hung "), peer)

    # New hosts may have the attempt number of earlier ones that were restarted in place.
    names = (host.workload, host.job_id, host.in_place, *([str(host.slice_id)] if host.is_elastic else []))
    identity = host.process_id, host.processes, host.attempt, names
    beats = registry.BEATS if host.is_elastic else BEATS
    peers = Peers(*identity, secret=host.secret, beats=beats, on_lost=on_lost, on_message=on_message)
    limits = TimeLimits(config, measurements, host.is_elastic)
    watchdog = Watchdog(host, limits, events, out, peers.broadcast, peers.reply, finish)
    stop, stop_step = _open_stop(host, lease, events, peers, finish, lambda: leave(job))
    slices = _open_slices(host, peers, watchdog, functools.partial(_end_dropped, host, events, finish))
    job = Job(config, host, out, lease, events, peers, stop, stop_step, watchdog, slices, measurements)
    if on_end is None:
        stop.install()
    return job


def _open_stop(
    host: Host,
    lease: Lease,
    events: Events,
    peers: Peers,
    finish: Callable[[ExitCode, float], None],
    leave_job: Callable[[], None],
) -> tuple[Stop, StopStep]:
    """Return this host's stop requests, and its part in the agreement on the step after which all stop."""
    ending = threading.Lock()

    def end_now(code: ExitCode) -> None:
        if not ending.acquire(blocking=False):
            return
        if host.is_elastic:
            peers.broadcast("stop")
        else:  # only process 0 tells all: all hosts may have been asked at once
            (peers.reply if host.process_id else peers.broadcast)("end")
        events.write("preempt")
        say(f"{host.name(host.process_id)}: received a stop request before the first step; nothing to save")
        # On its own thread, because this one may have to receive the other hosts' messages that they leave.
        stop.leaving = threading.Thread(target=leave_and_finish, args=(code,), name="leave")
        stop.leaving.start()

    def leave_and_finish(code: ExitCode) -> None:
        leave_job()
        finish(code, FLUSH_SECONDS)

    def on_first() -> None:
        lease.mark_stopping()
        if host.is_elastic:  # the hosts of its slice stop with this one, at a step that the slices agree on
            peers.broadcast("stop")
        elif stop.is_armed:
            stop_step.request()

    stop_step = StopStep(peers, lambda: stop.end_now(stop.code))
    stop = Stop(end_now, functools.partial(_abort, host, events, finish), on_first)
    return stop, stop_step


def _open_slices(host: Host, peers: Peers, watchdog: Watchdog, on_dropped: Callable[[str], None]) -> Membership | None:
    if not host.is_elastic:
        return None
    slices = Membership(host, peers, on_dropped)
    watchdog.is_held = lambda: slices.may_wait
    return slices


def _abort(host: Host, events: Events, finish: Callable[[ExitCode, float], None], code: ExitCode) -> None:
    events.write("fail", reason="received a second signal")
    say(f"{host.name(host.process_id)}: received a second signal; exiting without a checkpoint")
    finish(ExitCode.INTERRUPTED if code == ExitCode.INTERRUPTED else ExitCode.CRASH, FLUSH_SECONDS)


def _end_dropped(host: Host, events: Events, finish: Callable[[ExitCode, float], None], cause: str) -> None:
    events.write("peer_lost", reason=cause)
    say(f"slice {host.slice_id}: {cause}; exiting so that it can join again")
    finish(ExitCode.PEER_LOST, FLUSH_SECONDS)


def _open_records(
    out: Place,
    host: Host,
    began: float,
    finish: Callable[[ExitCode, float], None],
    on_event: Callable[[str, float | None, Mapping[str, Any]], None],
) -> tuple[Lease, Events]:
    """Take the lease, then write this host's first event to test the folder. Raises FatalError on failure."""

    def on_taken(holder: Holder, code: ExitCode) -> None:
        if code != ExitCode.MOVED:  # else the records are those of the same run, which has not failed
            events.write("fail", reason=f"{holder} has taken over the output folder")
        say(f"{host.name(host.process_id)}: {holder} has taken over {out}; exiting")
        finish(code, FLUSH_SECONDS)

    lease = Lease(out, host, on_taken, read_placed=functools.partial(read_placement, out, os.environ))
    try:
        _take(lease, host)
        _record_restart(out, host, os.environ.get(CAUSE, ""))
        lines = JsonLines(out / "events" / f"s{host.slice_id}-h{host.worker_id}.jsonl")
        events = Events(lines, host.slice_id, host.worker_id, host.attempt, began, on_event)
        events.write("start", pid=os.getpid())
        lines.flush(_OPENING_SECONDS)
    except Unreachable as error:  # a warning was printed; training may continue and write it later
        say(f"{host.name(host.process_id)}: continuing without writing records: {reason(error)}")
    except OSError as error:
        message = f"output folder {str(out)!r} cannot be written: {reason(error)}"
        raise FatalError(Problem(message, "Use --set run.output_dir=FOLDER")) from error
    return lease, events


def _record_restart(out: Place, host: Host, cause: str) -> None:
    """Write the supervisor's record of a restart in place to a bucket, to which the supervisor itself cannot write."""
    if host.process_id == 0 and cause and in_bucket(str(out)):
        with contextlib.suppress(ValueError):  # the variable is not the supervisor's
            JsonLines(out / RECORD).write(json.loads(cause))


def _take(lease: Lease, host: Host) -> None:
    """Take the lease on the output folder; continue without it if the bucket is unreachable, as for all other runs."""
    try:
        lease.take()
    except Unreachable as error:
        say(f"{host.name(host.process_id)}: continuing without a lease on the output folder: {reason(error)}")


def meet(job: Job) -> "Future[Address]":
    """Start to connect to all peers while JAX is imported; return a future of the coordinator's address and port.

    Peers connect to the coordinator's port + 1. The result raises PeerAbsent if a host does not connect, and
    AddressError if process 0 cannot bind one of the two ports.
    """
    coordinator_future: Future[Address] = Future()

    def run() -> None:
        try:
            coordinator = ("", 0)
            if job.host.processes > 1:
                resolve_coordinator = functools.partial(resolve, job.host.coordinator, _MEETING_SECONDS, say)
                # Reserve the port: JAX would share it with another job's coordinator.
                address, port = own_address(resolve_coordinator) if job.is_first else resolve_coordinator()
                coordinator = (
                    job.peers.connect(address, port + 1, _MEETING_SECONDS, lambda: resolve_coordinator()[0]),
                    port,
                )
            coordinator_future.set_result(coordinator)
        except BaseException as error:
            coordinator_future.set_exception(error)

    threading.Thread(target=run, name="meet", daemon=True).start()
    return coordinator_future


def fail(job: Job, error: BaseException) -> NoReturn:
    """End this host because of `error`, or because of a peer's death if that caused it."""
    end(report_error(job, error))


def report_error(job: Job, error: BaseException) -> ExitCode:
    """Report an error that ends this host in the log, the records and to the other hosts; return the exit code.

    If this host is ending already, because it was asked to, the error comes from hosts that have ended before it.
    """
    if job.stop.leaving is not None:
        job.stop.leaving.join()  # it usually ends the process
        return job.stop.code
    code = _report_error(job, error)
    job.lease.release()
    return code


def _report_error(job: Job, error: BaseException) -> ExitCode:
    if isinstance(error, PermissionError):
        error = FatalError(Problem(f"{error.filename}: {reason(error)}", "Grant this host access"))
    if isinstance(error, FatalError):
        for problem in error.problems:
            print(problem, file=sys.stderr, flush=True)
        job.events.write("fail", reason="; ".join(problem.message for problem in error.problems))
        job.peers.broadcast("fatal")
        return ExitCode.FATAL
    if isinstance(error, PeerAbsent):
        say(f"{job.host.name(job.host.process_id)}: {error}")
        job.events.write("peer_lost", peer=None, reason=str(error))
        return ExitCode.PEER_LOST
    if isinstance(error, CorruptError):
        print(f"error: {error}. The job restarts from the newest checkpoint", file=sys.stderr, flush=True)
        suspect = job.host.process_id in error.suspects
        if suspect:
            job.events.write("fail", reason=str(error))
        leave(job)
        return ExitCode.CORRUPT if suspect else ExitCode.PEER_LOST
    if (line := _one_line(error)) is not None:
        print(f"error: {line}", file=sys.stderr, flush=True)
        job.events.write("fail", reason=str(error))
        if isinstance(error, SaveError):
            leave(job)
        return ExitCode.CRASH
    # A peer's death also breaks the collectives here; the peers thread detects it and ends this process.
    time.sleep(_CAUSE_SECONDS if job.host.processes > 1 else 0)
    traceback.print_exception(error)
    text = " ".join(str(error).split())[:300]
    job.events.write("fail", reason=f"{type(error).__name__}: {text}")
    return ExitCode.CRASH


def _one_line(error: BaseException) -> str | None:
    """Return the message of an error that may not recur in a later attempt; None for a bug of the trainer."""
    if isinstance(error, SaveError | StorageError):
        return f"{error}. Free some disk space" if any(text in str(error) for text in _FULL_DISK) else str(error)
    if isinstance(error, AddressError):
        return f"{error}. Another job may be using it: stop that job, or try again later"
    if isinstance(error, ChipsError):
        return f"{error}. Find the host with missing chips"
    if isinstance(error, Unreachable):
        return f"{error.filename}: {error.strerror}"
    return None


def leave(job: Job) -> None:
    """Stop watching, flush all records, then disconnect from the others.

    In this order: when process 0, the last to leave, has ended, JAX aborts the processes still running.
    """
    job.watchdog.stop()
    flush(FLUSH_SECONDS)
    job.peers.leave()
    job.lease.release()


def end(code: ExitCode, seconds: float = FLUSH_SECONDS) -> NoReturn:
    """End the process from any thread; no destructor may wait for a dead peer.

    Records get `seconds` to be flushed.
    """
    if code == ExitCode.PREEMPTED:
        termination_message.write(termination_message.ASKED)
    flush(seconds)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
