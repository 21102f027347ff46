"""Threads of which one at a time runs: at each change of a file, a seed chooses which one continues."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from random import Random

_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate"}
_CREATES = {"open", "os.mkdir"}
_SLOW_SHARE = 0.05  # of the turns that a process on a slow disk gets
_local = threading.local()


class Crashed(BaseException):
    """A process was killed. No handler of errors catches this."""


class Task:
    """One process: it runs until a change of a file, or until it waits for another process."""

    def __init__(self, schedule: Schedule, name: str, action: Callable[[], None]) -> None:
        self.name, self.is_killed, self.has_ended = name, False, False
        self.is_slow = False  # its disk
        self._torn = ""  # file within whose write it is killed
        self.is_ready: Callable[[], bool] = lambda: True
        self.problem: BaseException | None = None
        self.root = schedule.root  # only changes below are changes of this life
        self._schedule, self._action, self._go = schedule, action, threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._go.acquire()
        _local.task = self
        try:
            self._action()
        except Crashed:
            pass
        except BaseException as error:
            self.problem = error
        self.has_ended = True
        self._schedule.back.release()

    def resume(self) -> None:
        """Let it run until it pauses or ends; called by the schedule."""
        self._go.release()
        self._schedule.back.acquire()
        if self.has_ended:
            self._thread.join()

    def pause(self, is_ready: Callable[[], bool] = lambda: True) -> None:
        """Let others run, at least until `is_ready`. Raises Crashed if this process was killed meanwhile."""
        self.is_ready = is_ready
        self._schedule.back.release()
        self._go.acquire()
        self.check_alive()

    def check_alive(self) -> None:
        """Raise Crashed if this process was killed, perhaps within its last write, of which then only a part remains.

        To be called before anyone may learn that the write is done.
        """
        if self._torn:
            _local.task = None  # this change is not the process's own
            self._schedule.tear(self._torn)
            _local.task, self._torn, self.is_killed = self, "", True
        if self.is_killed:
            raise Crashed

    def before_change(self, name: str, *, writes: bool, creates: bool) -> None:
        """Pause before a change of a file. Raises Crashed, and the error of a full disk."""
        self.check_alive()  # also of what it does while it ends
        self.pause()
        if creates and self._schedule.is_full:
            raise OSError(28, os.strerror(28))
        if writes and self._schedule.draw_torn():
            self._torn = name


class Schedule:
    """All processes of a life."""

    def __init__(self, rng: Random, root: str) -> None:
        self._rng, self.root, self.back = rng, root, threading.Semaphore(0)
        self.tasks: list[Task] = []
        self.is_full = False  # the disk
        self.torn_share = 0.0  # of the writes, within which the process is killed
        self.torn_writes = 0
        self.trace: list[str] = []  # names of the processes in the order in which they ran

    @property
    def steps(self) -> int:
        """The number of times that a process ran."""
        return len(self.trace)

    def start(self, name: str, action: Callable[[], None]) -> Task:
        """Add a process."""
        self.tasks.append(task := Task(self, name, action))
        return task

    def step(self) -> bool:
        """Let one process run for a while; return False if all of them have ended. Raises their errors."""
        self.tasks = [task for task in self.tasks if not task.has_ended]
        ready = [task for task in self.tasks if task.is_killed or task.is_ready()]
        if not ready:
            if self.tasks:
                raise AssertionError(f"these wait for ever: {[task.name for task in self.tasks]}")
            return False
        task = self._rng.choice(ready)
        if task.is_slow and self._rng.random() > _SLOW_SHARE:
            task = self._rng.choice(ready)
        self.trace.append(task.name)
        task.resume()
        if task.problem is not None:
            raise task.problem
        return True

    def draw_torn(self) -> bool:
        """Return whether a process is killed within the write that it begins."""
        return self.torn_share > 0 and self._rng.random() < self.torn_share

    def tear(self, name: str) -> None:
        """Cut a file off at a random offset."""
        with contextlib.suppress(FileNotFoundError):
            os.truncate(name, self._rng.randint(0, os.path.getsize(name)))
            self.torn_writes += 1

    def kill_all(self) -> None:
        """Kill all processes, at the end of a life."""
        for task in self.tasks:
            task.is_killed = True
            while not task.has_ended:
                task.resume()


def current() -> Task | None:
    """Return the process that runs in this thread."""
    return getattr(_local, "task", None)


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    is_open = event == "open"
    task = current() if is_open or event in _CHANGES else None
    if task is None:
        return
    path, flags = arguments[0], arguments[2] if is_open else None
    if is_open and (not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
        return
    if isinstance(path, str | os.PathLike):
        name = os.fspath(path)
        if not os.path.isabs(name) or name.startswith(task.root):  # relative in the removal of a folder
            writes = isinstance(flags, int) and bool(flags & (os.O_TRUNC | os.O_EXCL))  # all of its content
            task.before_change(name, writes=writes, creates=event in _CREATES)


sys.addaudithook(_audit)  # the only place where all changes of files are seen; it does nothing in other threads
