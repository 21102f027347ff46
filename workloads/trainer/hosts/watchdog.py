"""Watchdog of the training thread: if a wait exceeds its timeout, it reports the wait and ends the host.

In a step all hosts wait for each other, so one hung host hangs them all. The first host whose wait times out notifies
process 0, which notifies the others, and they reply. The hosts at fault are those that wait for their own work (their
data, not a step), and those that do not reply, such as a stopped process; process 0 announces them. A host at fault
exits with 76, those that wait for it with 75. Each host writes the stacks of all its threads, and waits for its storage
only after the hosts at fault are known, because the storage may be what hangs.

If no Python thread can run, because C++ code holds the interpreter's lock, Python's own C thread writes the stacks and
ends the process with 1, after twice the timeout, or up to ten times in a wait within a longer one.
"""

import contextlib
import dataclasses
import faulthandler
import json
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from trainer.errors import ExitCode
from trainer.hosts.bootstrap import Host
from trainer.hosts.time_limits import TimeLimits
from trainer.telemetry.metrics import Events, say
from xpk_shared.storage import Place
from xpk_shared.supervisor import termination_message

_REPLY_SECONDS = 2.0  # for all hosts to answer process 0
_ANNOUNCEMENT_SECONDS = 4.0  # for process 0 to announce the hosts at fault; else it is at fault itself
_LAST_SECONDS = 1.0  # that process 0 stays, as JAX aborts the others once it has gone
_FILE_SECONDS = 5.0  # for writing the stacks, and for writing each event
_FLUSH_SECONDS = 10.0
_LONGER = 5.0  # times, that the timer of Python's own C thread may be too long until the next tick


@dataclasses.dataclass(slots=True)
class Wait:
    """A wait of the training thread; `is_own` returns True for this host's own work, such as reading its data."""

    subject: str
    step: int
    is_own: Callable[[], bool]
    min_seconds: float  # minimum timeout
    seconds: float = 0.0  # so far, except those in which this process itself was suspended


_NO_WAIT = Wait("an operation without a timeout", 0, lambda: False, 0.0)


class Watchdog:
    """Watchdog of one host. `broadcast` sends to all others, `reply` to process 0 only; `finish` ends this host."""

    def __init__(
        self,
        host: Host,
        limits: TimeLimits,
        events: Events,
        out: Place,
        broadcast: Callable[[str], None],
        reply: Callable[[str], None],
        finish: Callable[[ExitCode, float], None],
    ) -> None:
        self._host, self._limits, self._events, self._out = host, limits, events, out
        self._broadcast, self._reply, self._finish = broadcast, reply, finish
        self._wait: Wait | None = None
        self._step_limit = 0.0
        self._replies: dict[int, bool] = {}  # other processes: True if it waits for something of its own
        self._hung_hosts: list[int] = []  # as announced by process 0
        self._is_decided = threading.Event()
        self._lock, self._arming = threading.Lock(), threading.Lock()
        self._armed, self._armed_for = 0.0, 0.0  # when Python's own C thread was set, and for which timeout
        self.is_held: Callable[[], bool] = lambda: False  # while it returns True, the time of waits does not count
        self.on_hang: Callable[[], None] = lambda: None  # called on a thread; it may never return
        self.hung = False  # True if this host is about to end for a hang, its own or another's
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        if limits.is_on:
            self._step_limit = limits.step()
            self._thread.start()

    @contextlib.contextmanager
    def waiting(
        self, subject: str, step: int, *, is_own: Callable[[], bool] = lambda: False, min_seconds: float = 0.0
    ) -> Iterator[None]:
        """Watch the training thread's wait for `subject`, with a timeout of at least `min_seconds`.

        Afterwards an enclosing wait continues; without one, the training thread has no timeout.
        """
        outer, self._wait = self._wait, Wait(subject, step, is_own, min_seconds)
        self._arm()
        try:
            yield
        finally:
            self._wait = outer
            self._arm()

    def stop(self) -> None:
        """Stop watching; the process may continue."""
        self._is_stopped.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def record_step(self, seconds: float) -> None:
        """Record the seconds that a step took."""
        self._limits.measured.record_step(seconds)
        self._step_limit = self._limits.step() if self._limits.is_on else 0.0

    def limit(self, wait: Wait) -> float:
        """Return the timeout of a wait, in seconds."""
        return max(self._step_limit, wait.min_seconds)

    def receive(self, text: str, peer: int) -> None:
        """Handle another host's JSON message: a hang, its reply, or the hosts at fault."""
        message = json.loads(text)
        if "blamed" in message:
            self._hung_hosts = [int(process) for process in message["blamed"]]
            self._is_decided.set()
        else:
            self._replies[peer] = bool(message["own"])
            if not self.hung:
                threading.Thread(target=self._end, args=(self._wait or _NO_WAIT,), name="hang").start()

    def _watch(self) -> None:
        """Measure the wait and postpone the timer of Python's own C thread; runs on the watchdog thread."""
        tick = min(1.0, self._step_limit / 10)
        woke = time.monotonic()
        while not (self.hung or self._is_stopped.is_set()):
            now, wait = time.monotonic(), self._wait
            limit = self.limit(wait or _NO_WAIT)
            if wait is not None and not self.is_held():
                wait.seconds += min(now - woke, 2 * tick)
            woke = now
            if wait is not None and wait.seconds > limit:
                self._end(wait)
            else:
                self._arm(is_exact=True)
            self._is_stopped.wait(tick)
        self._disarm()

    def _arm(self, *, is_exact: bool = False) -> None:
        """Set the timer of Python's own C thread to twice the current timeout, if it differs or was set some time ago.

        Immediately, not at the next tick, which may never come. A short wait's timer would end a long wait, and a long
        wait's timer would let a short one hang for hours. Unless `is_exact`, as at each tick, a timer that is longer by
        a small factor stays: setting it takes 0.1 ms, and waits of one step begin and end several times.
        """
        with self._arming:
            if self.hung or self._is_stopped.is_set() or not self._limits.is_on:
                return
            now, limit = time.monotonic(), self.limit(self._wait or _NO_WAIT)
            longest = limit if is_exact else _LONGER * limit
            if not limit <= self._armed_for <= longest or now - self._armed > limit / 4:
                with contextlib.suppress(ValueError, OSError, AttributeError):  # stderr may not be a file
                    faulthandler.dump_traceback_later(2 * limit, exit=True)
                self._armed, self._armed_for = now, limit

    def _disarm(self) -> None:
        with self._arming:
            faulthandler.cancel_dump_traceback_later()

    def _end(self, wait: Wait) -> None:
        """Report this host's wait and stacks, and end the host; later calls on any thread do nothing."""
        with self._lock:
            if self.hung:
                return
            self.hung = True
        self._disarm()
        me = self._host.process_id
        own = wait.is_own()
        (self._reply if me else self._broadcast)("hung " + json.dumps({"own": own}))
        start = time.monotonic()
        name = self._host.name(me)
        file = f"stacks/s{self._host.slice_id}-h{self._host.worker_id}-{self._host.attempt}.txt"
        summary = f"{name}: has waited {wait.seconds:.0f} s for {wait.subject}"
        stacks = "\n".join(_stacks())
        print(f"{summary}; its threads:\n{stacks}", file=sys.stderr, flush=True)
        details: dict[str, Any] = {"waited_for": wait.subject, "own": own, "stacks": file}
        records = [
            _start_write(lambda: self._events.write("hang", wait.step, wait.seconds, **details)),
            _start_write(lambda: (self._out / file).write(f"{summary}\n{stacks}\n".encode())),
            _start_write(self.on_hang),
        ]
        hung_hosts = self._await_hung_hosts(start) if me else self._announce_hung_hosts(start, is_own=own)
        is_lost = bool(hung_hosts) and me not in hung_hosts
        for thread in records:
            thread.join(max(0.0, start + _FILE_SECONDS - time.monotonic()))
        if is_lost:
            _start_write(lambda: self._events.write("peer_lost", peer=hung_hosts[0])).join(_FILE_SECONDS)
            termination_message.write(termination_message.LOST + self._host.name(hung_hosts[0]))
            say(f"{name}: exiting so that the job can restart; {self._host.name(hung_hosts[0])} hangs")
        else:
            say(f"{name}: hangs; exiting so that the job can restart; stacks of its threads are in {self._out / file}")
        if not me:
            time.sleep(_LAST_SECONDS)
        self._finish(ExitCode.PEER_LOST if is_lost else ExitCode.HUNG, _FLUSH_SECONDS)

    def _announce_hung_hosts(self, start: float, *, is_own: bool) -> list[int]:
        """Announce and return the hosts at fault, first those that have not replied; process 0 only."""
        time.sleep(max(0.0, start + _REPLY_SECONDS - time.monotonic()))
        replies = {0: is_own} | self._replies
        silent = [process for process in range(self._host.processes) if process not in replies]
        hung_hosts = silent + sorted(process for process, is_own in replies.items() if is_own)
        self._broadcast("hung " + json.dumps({"blamed": hung_hosts}))
        return hung_hosts

    def _await_hung_hosts(self, start: float) -> list[int]:
        """Return the hosts at fault as announced by process 0; process 0 itself if it announces none."""
        is_announced = self._is_decided.wait(max(0.0, start + _ANNOUNCEMENT_SECONDS - time.monotonic()))
        return self._hung_hosts if is_announced else [0]


def _start_write(write: Callable[[], object]) -> threading.Thread:
    """Start a write on its own thread, because it may never end."""

    def work() -> None:
        with contextlib.suppress(OSError):
            write()

    thread = threading.Thread(target=work, name="record", daemon=True)
    thread.start()
    return thread


def _stacks() -> Iterator[str]:
    """Yield the lines of all threads' stacks, the main thread's first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frames: dict[int, Any] = sys._current_frames()
    for ident in sorted(frames, key=lambda ident: ident != main):
        if ident != threading.get_ident():
            yield f"thread {names.get(ident, ident)}"
            yield from "".join(traceback.format_stack(frames[ident])).rstrip().splitlines()
