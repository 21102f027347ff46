"""Parallel execution of a plan's steps, in the order of their dependencies and at most a given number at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from xpk.model.errors import XpkError

_TICK_SECONDS = 0.5  # interval of progress updates


@dataclass(frozen=True, slots=True)
class Step:
    """One change: its title and its action.

    `key`: its name for others; `after`: keys of the steps that have to be done before.
    `undo`: reverts it, and returns False if nothing was to revert; `undo_last`: only once all others are reverted.
    `may_fail`: later steps run even if it fails.
    `commands`: equivalent lines for a shell.
    """

    title: str
    act: Callable[[], None]
    key: str = ""
    after: tuple[str, ...] = ()
    undo: Callable[[], object] | None = None
    undo_last: bool = False
    may_fail: bool = False
    commands: tuple[str, ...] = ()


class Activity:
    """Progress of running steps, for display; steps pause here, so that they can be interrupted."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.listener: Callable[[Mapping[str, str]], None] = lambda now: None
        self._now: dict[str, str] = {}
        self._lock = threading.Lock()

    def update(self, what: str, state: str) -> None:
        """Set the progress of a step."""
        with self._lock:
            self._now[what] = state
        self.listener(self.now())

    def clear(self, what: str) -> None:
        """Remove a step's progress."""
        with self._lock:
            self._now.pop(what, None)

    def now(self) -> dict[str, str]:
        """Return the progress of all running steps."""
        with self._lock:
            return dict(self._now)

    def pause(self, seconds: float) -> None:
        """Wait. Raises XpkError if the plan is interrupted."""
        if self.stop.wait(seconds):
            raise XpkError("interrupted", hint="run the same command again to continue")


class PlanExecutor:
    """Takes the steps of a plan, at most `at_once` at the same time."""

    def __init__(
        self,
        steps: Sequence[Step],
        at_once: int,
        activity: Activity,
        progress: Callable[[str], None],
        live: Callable[[Mapping[str, str]], None],
    ) -> None:
        self._steps, self._at_once, self._activity = steps, at_once, activity
        self._progress, self._live = progress, live
        self._keys = {step.key for step in steps}
        self._done: set[str] = set()
        self._failed: list[tuple[Step, XpkError]] = []

    def run(self, *, roll_back: bool) -> XpkError | None:
        """Run all steps; skip those that need a failed one. Raises XpkError that combines the failures.

        Returns the combined error of steps that may fail.
        """
        executor = ThreadPoolExecutor(self._at_once, thread_name_prefix="xpk-step")
        try:
            skipped = self._take_all(executor)
            if any(not step.may_fail for step, _ in self._failed):
                self._end(executor, skipped, roll_back=roll_back)
            return combined_error(self._failed, []) if self._failed else None
        except BaseException:
            self._activity.stop.set()
            raise
        finally:
            executor.shutdown(wait=False, cancel_futures=True)

    def _take_all(self, executor: ThreadPoolExecutor) -> list[Step]:
        waiting, running = list(self._steps), dict[Future[None], Step]()
        while waiting or running:
            free, later = self._at_once - len(running), list[Step]()
            for step in waiting:
                if free and self._is_ready(step):
                    running[executor.submit(step.act)] = step
                    free -= 1
                else:
                    later.append(step)
            waiting = later
            if not running:
                return waiting
            finished, _ = wait(running, timeout=_TICK_SECONDS, return_when=FIRST_COMPLETED)
            for future in finished:
                self._note(running.pop(future), future)
            self._live(self._activity.now())
        return []

    def _is_ready(self, step: Step) -> bool:
        return all(key in self._done or key not in self._keys for key in step.after)

    def _note(self, step: Step, future: Future[None]) -> None:
        error = future.exception()
        if error is None:
            self._done.add(step.key)
            self._progress(step.title)
        elif isinstance(error, XpkError):
            self._failed.append((step, error))
            if step.may_fail:
                self._done.add(step.key)
        else:
            raise error

    def _end(self, executor: ThreadPoolExecutor, skipped: list[Step], *, roll_back: bool) -> None:
        if not roll_back:
            raise combined_error(self._failed, skipped)
        start = self._done | {step.key for step, _ in self._failed}
        undone, reverted = [step for step in reversed(self._steps) if step.key in start and step.undo], 0
        for last in (False, True):
            at_once = [step for step in undone if step.undo_last is last]
            for step, future in [(step, executor.submit(step.undo)) for step in at_once if step.undo]:
                if (error := future.exception()) is not None:
                    raise error
                if future.result() is not False:
                    self._progress(f"reverted: {step.title}")
                    reverted += 1
        raise combined_error(self._failed, skipped, undone=reverted)


def combined_error(
    failed: Sequence[tuple[Step, XpkError]], skipped: Sequence[Step], *, undone: int | None = None
) -> XpkError:
    """Return one error for all failures: the cause and hint of the first, and the number of the others."""
    first_step, first = failed[0]
    alike = [step for step, error in failed if error.message == first.message]
    more = f" ({len(failed)} steps failed, {len(alike)} of them with this error)" if len(failed) > 1 else ""
    message = f"could not {first_step.title}: {first.message}{more}"
    if undone is not None:
        message += f"; {undone} steps were reverted"
    elif skipped:
        message += f"; {len(skipped)} later steps were skipped"
    error = type(first)(message, hint=first.hint)
    error.__cause__ = first
    return error
