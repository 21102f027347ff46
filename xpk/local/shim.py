"""The supervisor of one host: `python -S -E -s shim.py POD_FOLDER`.

It is the host's parent, so hosts outlive the daemon. It imports nothing of xpk and little of the standard
library, because a restart of the workload waits for it to start. Its files in the folder are all that the
daemon knows about the host: `lock` (held while this runs), `start.json`, `log` and `exit.json`.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable

LAST_WORD = "termination-log"
_LONGEST_WORD = 4096
_PDEATHSIG, _CHILD_SUBREAPER = 1, 36
_LONGEST = 16 * 1024
_DRAIN_SECONDS = 2.0
_POLL_SECONDS = 0.2
_LOCK_TRIES = 20
_prctl = ctypes.CDLL(None).prctl


def stamp() -> str:
    """Return the time in nanoseconds, in the format of container logs."""
    seconds, rest = divmod(time.time_ns(), 10**9)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest:09d}Z"


def write(folder: str, name: str, content: object) -> None:
    """Write a file atomically, even if the daemon and a supervisor write it at once."""
    path = os.path.join(folder, name)
    with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as file:
        json.dump(content, file)
    os.replace(file.name, path)


def retry_while_exists(folder: str, action: Callable[[], object]) -> None:
    """Retry an action that needs disk space for as long as it takes; give up only once the folder is gone."""
    while os.path.isdir(folder):
        with contextlib.suppress(OSError):
            action()
            return
        time.sleep(_POLL_SECONDS)
    raise FileNotFoundError(folder)


class Log:
    """Log file with a timestamped copy of the host's output. A full disk loses lines, never the host."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._rest: dict[bytes, bytes] = {b"stdout": b"", b"stderr": b""}
        self._dropped = 0

    def _put(self, data: bytes) -> int:
        """Write lines; return the number of lines that were not written completely."""
        with contextlib.suppress(OSError):
            while data:
                data = data[os.write(self._file, data) :]
        return data.count(b"\n")

    def _write(self, stream: bytes, lines: Iterable[tuple[bytes, bytes]]) -> None:
        now = stamp().encode()
        data = b"".join(b"%s %s %s %s\n" % (now, stream, tag, line) for tag, line in lines)
        if self._dropped and data:  # the last write may be incomplete: begin on a new line
            if self._put(b"\n%s stderr F xpk: %d lines were dropped, the disk was full\n" % (now, self._dropped)):
                self._dropped += data.count(b"\n")
                return
            self._dropped = 0
        self._dropped += self._put(data)

    def add(self, stream: bytes, data: bytes) -> None:
        """Log a chunk of output; an unfinished line is kept until its end, unless it is long."""
        *lines, rest = (self._rest[stream] + data).split(b"\n")
        parts = [part for line in lines for part in _parts(line)]
        while len(rest) > _LONGEST:
            parts.append((b"P", rest[:_LONGEST]))
            rest = rest[_LONGEST:]
        self._rest[stream] = rest
        self._write(stream, parts)

    def end(self) -> None:
        """Log a last line without a line end."""
        for stream, rest in self._rest.items():
            if rest:
                self._write(stream, [(b"F", rest)])

    def say(self, text: str) -> None:
        """Log a line of the supervisor itself."""
        self._write(b"stderr", [(b"F", text.encode())])


def _parts(line: bytes) -> Iterable[tuple[bytes, bytes]]:
    while len(line) > _LONGEST:
        yield b"P", line[:_LONGEST]
        line = line[_LONGEST:]
    yield b"F", line


def _become_host(spec: dict[str, object], out: int, err: int, report: int, parent: int) -> None:
    """Turn this forked process into the host. Returns only on failure, after reporting it through `report`."""
    os.setpgid(0, 0)
    _prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(137)
    _reset_signals()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    command = [str(part) for part in spec["command"]]  # type: ignore[attr-defined]
    failure = f"cannot use the working folder '{spec['folder']}'"
    try:
        os.chdir(str(spec["folder"]))
        failure = f"cannot run '{command[0]}'"
        os.execvpe(command[0], command, dict(spec["environment"]))  # type: ignore[call-overload]
    except OSError as error:
        os.write(report, f"{failure}: {error.strerror}".encode())
        os._exit(128)  # container runtimes' code for a failed start; 126 and 127 are a shell's


def _reset_signals() -> None:
    """Restore the defaults of all signals, as in a container: the daemon, or what started it, may ignore some."""
    for number in range(1, signal.NSIG):
        with contextlib.suppress(OSError, ValueError):  # not those of the system
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.set_wakeup_fd(-1)


def _spawn(spec: dict[str, object], record: Callable[[int], None]) -> tuple[int, dict[int, bytes], str]:
    """Start the host once its pid is recorded; return its pid, its outputs and the error if it could not start."""
    out, err, report, gate = os.pipe(), os.pipe(), os.pipe(), os.pipe()
    parent, pid = os.getpid(), os.fork()
    if not pid:
        try:
            os.close(gate[1])
            if os.read(gate[0], 1):
                _become_host(spec, out[1], err[1], report[1], parent)
        finally:
            os._exit(128)
    record(pid)
    os.write(gate[1], b"!")
    for end in (out[1], err[1], report[1], *gate):
        os.close(end)
    with contextlib.suppress(OSError):  # both sides set it, so neither has to wait for the other
        os.setpgid(pid, pid)
    problem = os.read(report[0], 4096).decode()  # end of file as soon as exec has worked
    return pid, {out[0]: b"stdout", err[0]: b"stderr"}, problem


def _children() -> set[int]:
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return {int(pid) for pid in file.read().split()}


def _kill_rest(group: int) -> None:
    """Kill processes that the host left behind: its group, and orphans that this process adopted."""
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGKILL)
    _kill_children()


def _kill_children() -> None:
    """Kill children, and orphans that this process adopts by that, until none is left."""
    while True:
        for pid in _children():
            os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _guard() -> int | None:
    """Fork; return None in the child, and its exit code in the parent, which guards it.

    If the child is killed, its host dies with it, but the host's descendants do not: this process adopts and kills
    them, whatever they have done to their environment and session.
    """
    _prctl(_CHILD_SUBREAPER, 1)
    child = os.fork()
    if not child:
        return None
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            break
    _kill_children()
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1


class Supervisor:
    """Monitor of one running host until it has ended."""

    def __init__(self, pid: int, outputs: dict[int, bytes], log: Log, wake: int) -> None:
        self._pid, self._outputs, self._log, self._wake = pid, outputs, log, wake
        self.asked: list[int] = []
        self.status: int | None = None
        self._passed, self._told = set[int](), set[int]()

    def deliver(self) -> None:
        """Forward signals to the host's group, SIGTERM once: a daemon that was killed does not know that it sent it."""
        while self.asked:
            number = self.asked.pop(0)
            if number == signal.SIGTERM and number in self._passed:
                continue
            self._passed.add(number)
            with contextlib.suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL if number == signal.SIGUSR1 else number)

    def reap(self) -> bool:
        """Collect children that have ended, including adopted ones; return whether any are left."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return True
                if pid == self._pid:
                    self.status = os.waitstatus_to_exitcode(status)
        return False

    def _tell_adopted(self) -> None:
        """Send SIGTERM, once, to orphans that had left the host's group."""
        for pid in _children() - self._told:
            self._told.add(pid)
            with contextlib.suppress(OSError):
                if os.getpgid(pid) != self._pid:
                    os.kill(pid, signal.SIGTERM)

    def copy(self, timeout: float | None) -> bool:
        """Copy output until none is ready; return whether there was any."""
        ready = select.select([*self._outputs, self._wake], [], [], timeout)[0]
        if self._wake in ready:
            os.read(self._wake, 512)
        for fd in set(ready) & self._outputs.keys():
            data = os.read(fd, 65536)
            if data:
                self._log.add(self._outputs[fd], data)
            else:
                del self._outputs[fd]
                os.close(fd)
        return bool(ready)

    def run(self) -> int:
        """Return the host's exit status, negative for a signal, once all its processes have ended."""
        while self.status is None:
            self.deliver()
            self.reap()
            if self.status is None:
                self.copy(None)
        # SIGTERM ends a shell at once, but its children may be saving: they have the grace period, too.
        while signal.SIGTERM in self._passed and signal.SIGUSR1 not in self._passed and self.reap():
            self._tell_adopted()
            self.copy(_POLL_SECONDS)
            self.deliver()
        _kill_rest(self._pid)
        deadline = time.monotonic() + _DRAIN_SECONDS
        while self._outputs and time.monotonic() < deadline and self.copy(0.1):
            pass
        self._log.end()
        return self.status


def _lock(folder: str) -> int | None:
    """Take the folder's lock for the life of this process and its guard; no host ever starts twice."""
    fd = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    for _ in range(_LOCK_TRIES):  # a liveness check in another process holds it briefly
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        time.sleep(0.01)
    else:
        return None
    os.truncate(fd, 0)
    start = any(os.path.exists(os.path.join(folder, name)) for name in ("start.json", "exit.json"))
    return None if start else fd


def _is_lock_of(folder: str, lock: int) -> bool:
    """Return whether a descriptor is that of the folder's lock, thus whether the folder is still the same."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(lock), os.stat(os.path.join(folder, "lock")))
    return False


def _termination_message(folder: str) -> str:
    """Return the host's termination message."""
    with contextlib.suppress(OSError), open(os.path.join(folder, LAST_WORD), "rb") as file:
        return file.read(_LONGEST_WORD).decode("utf-8", "replace").strip()
    return ""


def main(folder: str) -> int:
    """Run the host of the pod in `folder` to its end."""
    lock = _lock(folder)
    if lock is None:
        return 1
    guarded = _guard()
    if guarded is not None:
        return guarded
    early: list[int] = []
    wake, alarm = os.pipe()
    os.set_blocking(alarm, False)
    signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _frame: early.append(number))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    retry_while_exists(folder, lambda: os.write(lock, str(os.getpid()).encode()))
    _prctl(_CHILD_SUBREAPER, 1)
    with open(os.path.join(folder, "spec.json"), encoding="utf-8") as file:
        spec = json.load(file)
    log = Log(os.path.join(folder, "log"))
    started = stamp()

    def record(pid: int) -> None:  # from here on, a host may have run
        retry_while_exists(folder, lambda: write(folder, "start.json", {"startedAt": started, "pid": pid}))

    pid, outputs, problem = _spawn(spec, record)
    ring(str(spec["bell"]))
    supervisor = Supervisor(pid, outputs, log, wake)
    supervisor.asked = early
    # A process that removes or replaces the folder kills its processes, but cannot find a host before its exec.
    if not _is_lock_of(folder, lock):
        early.append(signal.SIGUSR1)
    code = supervisor.run()
    end: dict[str, object] = {"exitCode": code if code >= 0 else 128 - code}
    end |= {"startedAt": started, "finishedAt": stamp()}
    if code < 0:
        end["signal"] = -code
    if problem:
        log.say(problem)
        end |= {"reason": "StartError", "message": problem}
    elif word := _termination_message(folder):
        end["message"] = word
    retry_while_exists(folder, lambda: write(folder, "exit.json", end))
    ring(str(spec["bell"]))
    return 0


def ring(bell: str) -> None:
    """Wake up the daemon, if there is one."""
    with contextlib.suppress(OSError):
        fd = os.open(bell, os.O_WRONLY | os.O_NONBLOCK)
        os.write(fd, b"!")
        os.close(fd)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
