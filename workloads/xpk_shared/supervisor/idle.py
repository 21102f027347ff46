"""Program of an idle interpreter: it imports modules, waits, and becomes the next attempt of a command.

The interpreter is the user's. It receives this file as text and imports no module of xpk, because the user may have
modules with the same names. It uses only the standard library of Python 3.8.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import sys
import time
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from typing import Any, BinaryIO

_SLICE_SECONDS = 0.01  # of CPU time
_MAX_OOM_SCORE = "1000"  # the kernel kills this process first when memory runs out


def main(channel: BinaryIO, order: dict[str, Any]) -> None:
    """Import the modules of `order`, report that on `channel`, wait for an attempt, and run it.

    The process ends whenever the other end of the channel is closed.
    """
    fd = channel.fileno()
    os.set_inheritable(fd, False)
    interrupted = signal.signal(signal.SIGINT, signal.SIG_DFL)
    _set_arguments(order)
    if select.select([fd], [], [], order["delay_seconds"])[0] or free_bytes() < order["min_free_bytes"]:
        os._exit(0)
    initial_environ = dict(os.environ)
    with _ended_by(fd), _throttled(order["share"]):
        _import(order["imports"])
        _release_memory()
    with _raised_oom_score():
        attempt = _next_attempt(channel)
    channel.close()
    _set_environ(attempt["environ"], initial_environ)
    _set_arguments(attempt)
    signal.signal(signal.SIGINT, interrupted)
    _run(attempt)


def free_bytes(proc: str = "/proc", groups: str = "/sys/fs/cgroup") -> int:
    """Return the free memory for this process, on its node and within the limits of its control groups (v2)."""
    with open(f"{proc}/meminfo") as lines:
        free = [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    with open(f"{proc}/self/cgroup") as lines:
        paths = [line[3:].strip() for line in lines if line.startswith("0::")]
    parts = paths[0].strip("/").split("/") if paths else []
    for length in range(len(parts) + 1):
        with contextlib.suppress(OSError, ValueError):  # there is no limit, or it cannot be read
            free.append(_group_free_bytes("/".join([groups, *parts[:length]])))
    return min(free, default=0)


def _group_free_bytes(folder: str) -> int:
    """Return the memory that a control group may still allocate. Raises OSError or ValueError if it has no limit."""
    with open(f"{folder}/memory.max") as limit, open(f"{folder}/memory.current") as current:
        free = int(limit.read()) - int(current.read())
    with open(f"{folder}/memory.stat") as lines:  # the kernel frees cached files first
        return free + sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))


@contextlib.contextmanager
def _ended_by(fd: int) -> Iterator[None]:
    """End this process with a signal when the other end of `fd` is closed."""
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_ASYNC)  # SIGIO, which ends a process by default
    if select.select([fd], [], [], 0)[0]:
        os._exit(0)
    yield
    fcntl.fcntl(fd, fcntl.F_SETFL, flags)


@contextlib.contextmanager
def _throttled(share: float) -> Iterator[None]:
    """Sleep after each slice of CPU time, so that this process uses only a share of one core.

    A low priority could not be raised again without a privilege, and the imports would never end on a busy node.
    """

    def pause(*_: object) -> None:
        time.sleep(_SLICE_SECONDS * (1 / share - 1))
        signal.setitimer(signal.ITIMER_PROF, _SLICE_SECONDS)

    signal.signal(signal.SIGPROF, pause)
    signal.setitimer(signal.ITIMER_PROF, _SLICE_SECONDS)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)


def _import(names: list[str]) -> None:
    """Import modules; end the process if one cannot be imported, because the command itself reports such errors."""
    gc.disable()
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException as error:
            print(f"xpk: no standby: cannot import {name}: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)


def _next_attempt(channel: BinaryIO) -> dict[str, Any]:
    """Report that this process is ready, and wait for an attempt; exit when the other end of the channel is closed."""
    line = b""
    with contextlib.suppress(OSError):
        os.write(channel.fileno(), b"\n")
        line = channel.readline()
    if not line.endswith(b"\n"):
        os._exit(0)
    attempt: dict[str, Any] = json.loads(line)
    return attempt


def _release_memory() -> None:
    """Release memory to the system that the imports no longer need."""
    gc.enable()
    gc.collect()
    gc.freeze()
    with contextlib.suppress(ImportError, OSError, AttributeError):  # no ctypes, or no glibc
        import ctypes

        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def _raised_oom_score() -> Iterator[None]:
    """Let the kernel kill this process first when memory runs out, if that setting can be undone."""
    file = "/proc/self/oom_score_adj"
    initial_score = ""
    with contextlib.suppress(OSError):
        with open(file) as score:
            initial_score = score.read()
        for value in (_MAX_OOM_SCORE, initial_score, _MAX_OOM_SCORE):
            _write(file, value)
    yield
    with contextlib.suppress(OSError):
        _write(file, initial_score)


def _write(file: str, text: str) -> None:
    with open(file, "w") as stream:
        stream.write(text)


def _set_environ(environ: dict[str, str], initial_environ: dict[str, str]) -> None:
    """Replace the environment, but keep the changes of imports, which the modules would make again."""
    imported = dict(os.environ)
    os.environ.clear()
    os.environ.update(environ)
    for name in initial_environ.keys() | imported.keys():
        before, after = initial_environ.get(name), imported.get(name)
        if before == after or environ.get(name) != before:
            continue
        if after is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = after


def _set_arguments(command: dict[str, Any]) -> None:
    """Set the command line, which modules may read when they are imported, and the first entry of `sys.path`."""
    target, is_module = command["target"], command["is_module"]
    sys.argv = ["-m" if is_module else target, *command["arguments"]]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = command["argv"]
    if sys.path[:1] == [""]:  # Python has options for leaving it out
        sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.realpath(target))


def _run(command: dict[str, Any]) -> None:
    """Run a module as `python -m` does, or a script."""
    program = sys.modules["__main__"].__dict__
    for name in [name for name in program if not (name.startswith("__") and name.endswith("__"))]:
        del program[name]
    target = command["target"]
    if command["is_module"]:
        runpy._run_module_as_main(target)  # type: ignore[attr-defined]
        return
    file = os.path.abspath(target) if sys.version_info >= (3, 9) else target
    loader = SourceFileLoader("__main__", file)
    try:
        source = loader.get_data(file)
    except OSError as error:
        print(f"{sys.executable}: can't open file {file!r}: [Errno {error.errno}] {error.strerror}", file=sys.stderr)
        sys.exit(2)
    program.update(__file__=file, __cached__=None, __loader__=loader)
    exec(compile(source, file, "exec", dont_inherit=True), program)
