"""A host's life around the training: its place, its records, its peers, and how it ends."""

import contextlib
import dataclasses
import os
import sys
import threading
import time
import traceback
from concurrent.futures import Future
from pathlib import Path
from typing import NoReturn

from trainer.config import Config
from trainer.distributed import Host, resolve
from trainer.errors import AddressError, ExitCode, FatalError, PeerAbsent, Problem, SaveError, StorageError
from trainer.link import listen
from trainer.metrics import Events, JsonLines, say
from trainer.peers import Peers
from trainer.stop import Stop

Address = tuple[str, int]
_MEETING_SECONDS = 300.0
_VERDICT_SECONDS = 2.0  # how long a failed host waits to learn that a peer's death was the cause


@dataclasses.dataclass(frozen=True)
class Job:
    """What one host knows before JAX is imported."""

    config: Config
    host: Host
    out: Path
    events: Events
    peers: Peers
    stop: Stop

    @property
    def is_first(self) -> bool:
        """Whether this is process 0, which writes what is written once."""
        return self.host.process_id == 0


def open_job(config: Config, host: Host) -> Job:
    """Open this host's records, take over its signals and prepare the line to its peers.

    Raises FatalError if the output folder cannot be written.
    """
    began = time.monotonic()
    out = Path(config.run.output_dir or host.output_dir or f"output/{config.name}").absolute()
    name = f"s{host.slice_id}-h{host.worker_id}"
    try:
        lines = JsonLines(out / "events" / f"{name}.jsonl")
    except OSError as error:
        message = f"output folder {str(out)!r} cannot be written: {error.strerror}"
        raise FatalError(Problem(message, "Use --set run.output_dir=FOLDER")) from error
    events = Events(lines, host.slice_id, host.worker_id, host.attempt, began)
    events.write("start", pid=os.getpid())

    def on_lost(peer: int) -> None:
        events.write("peer_lost", peer=peer)
        say(f"{host.name(host.process_id)}: lost {host.name(peer)}; ending so that the job can restart")
        end(ExitCode.PEER_LOST)

    def on_told(what: str, peer: int) -> None:
        if what == "stop":
            stop.request()
        elif what == "fatal":
            events.write("fail", reason=f"{host.name(peer)} cannot work")
            say(f"{host.name(host.process_id)}: {host.name(peer)} found an error no retry cures; see its log")
            end(ExitCode.FATAL)

    def at_once(code: ExitCode) -> None:
        peers.tell("stop")
        events.write("preempt")
        say(f"{host.name(host.process_id)}: asked to stop before the first step; there is nothing to save")
        end(code)

    def again(code: ExitCode) -> None:
        events.write("fail", reason="a second signal to stop")
        say(f"{host.name(host.process_id)}: a second signal to stop; ending without a checkpoint")
        end(ExitCode.INTERRUPTED if code == ExitCode.INTERRUPTED else ExitCode.CRASH)

    names = (host.workload, host.job_id)
    peers = Peers(host.process_id, host.processes, host.attempt, names, on_lost=on_lost, on_told=on_told)
    stop = Stop(at_once, again)
    stop.install()
    return Job(config, host, out, events, peers, stop)


def meet(job: Job) -> "Future[Address]":
    """Begin to connect to all peers while JAX is imported; gives the coordinator's address and port.

    The peers' line is on the coordinator's port + 1. The result raises PeerAbsent if a host does not come,
    and AddressError if process 0 cannot have one of the two ports.
    """
    meeting: Future[Address] = Future()

    def work() -> None:
        try:
            address = ("", 0)
            if job.host.processes > 1:
                address = resolve(job.host.coordinator, _MEETING_SECONDS, say)
                if job.is_first:
                    listen(*address).close()  # JAX would share the port with another job's coordinator
                job.peers.connect(address[0], address[1] + 1, _MEETING_SECONDS)
            meeting.set_result(address)
        except BaseException as error:
            meeting.set_exception(error)

    threading.Thread(target=work, name="meet", daemon=True).start()
    return meeting


def fail(job: Job, error: BaseException) -> NoReturn:
    """End this host for an error of its own, or for a peer's death if that is what lies behind it."""
    if isinstance(error, FatalError):
        for problem in error.problems:
            print(problem, file=sys.stderr, flush=True)
        job.events.write("fail", reason="; ".join(problem.message for problem in error.problems))
        job.peers.tell("fatal")
        end(ExitCode.FATAL)
    if isinstance(error, PeerAbsent):
        say(f"{job.host.name(job.host.process_id)}: {error}")
        job.events.write("peer_lost", peer=None, reason=str(error))
        end(ExitCode.PEER_LOST)
    if isinstance(error, SaveError):
        print(f"error: {error}", file=sys.stderr, flush=True)
        job.events.write("fail", reason=str(error))
        job.peers.leave()
        end(ExitCode.CRASH)
    if isinstance(error, AddressError):
        print(f"error: {error}. Another job may use it: end that one, or try again later", file=sys.stderr, flush=True)
        job.events.write("fail", reason=str(error))
        end(ExitCode.CRASH)
    if isinstance(error, StorageError):
        print(f"error: {error}. Free some space there", file=sys.stderr, flush=True)
        job.events.write("fail", reason=str(error))
        end(ExitCode.CRASH)
    # A peer's death also breaks the collectives here; its verdict comes on the peers thread, which ends us.
    time.sleep(_VERDICT_SECONDS if job.host.processes > 1 else 0)
    traceback.print_exception(error)
    reason = " ".join(str(error).split())[:300]
    job.events.write("fail", reason=f"{type(error).__name__}: {reason}")
    end(ExitCode.CRASH)


def end(code: ExitCode) -> NoReturn:
    """End the process from any thread, now: no destructor may wait for a peer that is gone."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
