"""Watchdog of the training thread: if a wait exceeds its timeout, it reports the wait and ends the host.

In a step all hosts wait for each other, so one that hangs makes them all hang. The first whose wait times out tells
process 0, which tells the others, and they answer it. At fault are the hosts that wait for something of their own
(their data, not a step), and those that do not answer, such as a stopped process; process 0 announces them. A host at
fault ends with 76, those that wait for it with 75. Each writes the stacks of all its threads, and waits for its storage
only once it knows who is at fault, as the storage may be what hangs.

If not even a thread can run, because C++ code holds Python's lock, Python's own C thread writes the stacks and ends the
process with 1, after twice the time.
"""

import contextlib
import dataclasses
import faulthandler
import json
import statistics
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from trainer.config import Observe
from trainer.errors import ExitCode
from trainer.hosts.bootstrap import Host
from trainer.telemetry.metrics import Events, say
from xpk_shared.storage import Place
from xpk_shared.supervisor import termination_message

_RECENT = 20  # steps
_ANSWER_SECONDS = 2.0  # for all hosts to answer process 0
_VERDICT_SECONDS = 4.0  # for process 0 to announce the hosts at fault; else it is at fault itself
_LAST_SECONDS = 1.0  # that process 0 stays, as JAX aborts the others once it has gone
_FILE_SECONDS = 5.0  # for writing the stacks, and for writing each event
_FLUSH_SECONDS = 10.0


@dataclasses.dataclass(slots=True)
class Wait:
    """A wait of the training thread; `own` returns True for something of this host alone, such as its data."""

    what: str
    step: int
    own: Callable[[], bool]
    least: float  # minimum timeout in seconds
    waited: float = 0.0  # seconds, except those in which this process itself was suspended


_NOTHING = Wait("nothing that has a time limit", 0, lambda: False, 0.0)


class Watchdog:
    """Watchdog of one host. `tell` sends to all others, `answer` to process 0 alone; `finish` ends this host."""

    def __init__(
        self,
        host: Host,
        limits: Observe,
        events: Events,
        out: Place,
        tell: Callable[[str], None],
        answer: Callable[[str], None],
        finish: Callable[[ExitCode, float], None],
    ) -> None:
        self._host, self._limits, self._events, self._out = host, limits, events, out
        self._tell, self._answer, self._finish = tell, answer, finish
        self._wait: Wait | None = None
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._answers: dict[int, bool] = {}  # other processes: True if it waits for something of its own
        self._blamed: list[int] = []  # as announced by process 0
        self._verdict = threading.Event()
        self._lock, self._arming = threading.Lock(), threading.Lock()
        self._armed, self._armed_for = 0.0, 0.0  # when Python's own C thread was set, and for which timeout
        self.hung = False  # True if this host is about to end for a hang, its own or another's
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        if limits.hang_seconds > 0:
            self._thread.start()

    @contextlib.contextmanager
    def waiting(
        self, what: str, step: int, *, own: Callable[[], bool] = lambda: False, least: float = 0.0
    ) -> Iterator[None]:
        """Watch the training thread's wait for `what`, with a timeout of at least `least` seconds.

        At the end, a wait around this one continues; without one, the training thread has no timeout.
        """
        outer, self._wait = self._wait, Wait(what, step, own, least)
        self._arm()
        try:
            yield
        finally:
            self._wait = outer
            self._arm()

    def stop(self) -> None:
        """Stop watching: the process may continue, and must not be ended for what it does then."""
        self._over.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def took(self, seconds: float) -> None:
        """Record the seconds that a step took."""
        self._recent.append(seconds)

    def limit(self, wait: Wait) -> float:
        """Return the timeout of a wait, in seconds."""
        recent = statistics.median(self._recent) if self._recent else 0.0
        return max(self._limits.hang_seconds, self._limits.hang_factor * recent, wait.least)

    def receive(self, words: str, peer: int) -> None:
        """Handle another host's message in JSON: that it hangs, its answer, or the hosts at fault."""
        message = json.loads(words)
        if "blamed" in message:
            self._blamed = [int(process) for process in message["blamed"]]
            self._verdict.set()
        else:
            self._answers[peer] = bool(message["own"])
            if not self.hung:
                threading.Thread(target=self._end, args=(self._wait or _NOTHING,), name="hang").start()

    def _watch(self) -> None:
        """Watchdog thread: measure the wait, and keep Python's own C thread from acting."""
        tick = min(1.0, self._limits.hang_seconds / 10)
        woke = time.monotonic()
        while not (self.hung or self._over.is_set()):
            now, wait = time.monotonic(), self._wait
            limit = self.limit(wait or _NOTHING)
            if wait is not None:
                wait.waited += min(now - woke, 2 * tick)
            woke = now
            if wait is not None and wait.waited > limit:
                self._end(wait)
            else:
                self._arm()
            self._over.wait(tick)
        self._disarm()

    def _arm(self) -> None:
        """Set Python's own C thread to twice the current timeout, if it differs or was set some time ago.

        At once, not at the next tick, which may never come. A timer of a short wait would end a long one, and one of a
        long wait would let a short one hang for hours.
        """
        with self._arming:
            if self.hung or self._over.is_set() or not self._limits.hang_seconds:
                return
            now, limit = time.monotonic(), self.limit(self._wait or _NOTHING)
            if limit != self._armed_for or now - self._armed > limit / 4:
                with contextlib.suppress(ValueError, OSError, AttributeError):  # stderr may not be a file
                    faulthandler.dump_traceback_later(2 * limit, exit=True)
                self._armed, self._armed_for = now, limit

    def _disarm(self) -> None:
        with self._arming:
            faulthandler.cancel_dump_traceback_later()

    def _end(self, wait: Wait) -> None:
        """Report this host's wait and stacks, and end the host; only the first call on any thread does."""
        with self._lock:
            if self.hung:
                return
            self.hung = True
        self._disarm()
        me = self._host.process_id
        own = wait.own()
        (self._answer if me else self._tell)("hung " + json.dumps({"own": own}))
        since = time.monotonic()
        name = self._host.name(me)
        file = f"stacks/s{self._host.slice_id}-h{self._host.worker_id}-{self._host.attempt}.txt"
        summary = f"{name}: has waited {wait.waited:.0f} s for {wait.what}"
        stacks = "\n".join(_stacks())
        print(f"{summary}; its threads:\n{stacks}", file=sys.stderr, flush=True)
        details: dict[str, Any] = {"waited_for": wait.what, "own": own, "stacks": file}
        records = [
            _start_write(lambda: self._events.write("hang", wait.step, wait.waited, **details)),
            _start_write(lambda: (self._out / file).write(f"{summary}\n{stacks}\n".encode())),
        ]
        blamed = self._await_verdict(since) if me else self._blame(since, own=own)
        is_lost = bool(blamed) and me not in blamed
        for thread in records:
            thread.join(max(0.0, since + _FILE_SECONDS - time.monotonic()))
        if is_lost:
            _start_write(lambda: self._events.write("peer_lost", peer=blamed[0])).join(_FILE_SECONDS)
            termination_message.write(termination_message.LOST + self._host.name(blamed[0]))
            say(f"{name}: exiting so that the job can restart; {self._host.name(blamed[0])} hangs")
        else:
            say(f"{name}: hangs; exiting so that the job can restart; stacks of its threads are in {self._out / file}")
        if not me:
            time.sleep(_LAST_SECONDS)
        self._finish(ExitCode.PEER_LOST if is_lost else ExitCode.HUNG, _FLUSH_SECONDS)

    def _blame(self, since: float, *, own: bool) -> list[int]:
        """Process 0: announce and return the hosts at fault, first those that have not answered."""
        time.sleep(max(0.0, since + _ANSWER_SECONDS - time.monotonic()))
        answers = {0: own} | self._answers
        silent = [process for process in range(self._host.processes) if process not in answers]
        blamed = silent + sorted(process for process, at_own in answers.items() if at_own)
        self._tell("hung " + json.dumps({"blamed": blamed}))
        return blamed

    def _await_verdict(self, since: float) -> list[int]:
        """Return the hosts at fault as announced by process 0; process 0 itself if it announces none."""
        is_announced = self._verdict.wait(max(0.0, since + _VERDICT_SECONDS - time.monotonic()))
        return self._blamed if is_announced else [0]


def _start_write(write: Callable[[], object]) -> threading.Thread:
    """Start a write on a thread of its own, which may never end."""

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
