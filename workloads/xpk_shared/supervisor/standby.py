"""Warm standby: an idle interpreter that has imported the modules of a command's next attempt.

An attempt of a JAX program starts with seconds of imports. The standby imports the modules during the previous attempt,
and uses no device. Only commands `python [options] -m MODULE ...` and `python [options] FILE.py ...` can have one, also
as the only command of a `bash -c`.
"""

from __future__ import annotations

import json
import os
import pkgutil
import re
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass

from xpk_shared.supervisor.idle import free_bytes
from xpk_shared.supervisor.names import IMPORTS, MIN_SLICES

_KNOWN_IMPORTS = {"trainer": "trainer.imports"}  # of programs that run as `python -m`
_ELASTIC_IMPORTS = {"trainer": "trainer.imports,trainer.elastic.train"}  # if slices are elastic
_FREE_BYTES = 1 << 30  # minimum free memory for starting a standby
_PER_ATTEMPT = ("XPK_", "MEGASCALE_", "TPU_WORKER_")  # variables that modules do not read when they are imported

_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_SWITCHES = re.compile(r"-[bBdEIOPqsSuv]+|-[XW].+")
_PLAIN = re.compile(r"[\w@%+=:,./ -]+")  # words that a shell passes on as they are
_PROGRAM = ("xpk_shared.supervisor", "idle.py")
# The program is sent through the socket, so that the command line of the process stays readable.
_LOADER = (
    "import json, os, sys; channel = os.fdopen(int(sys.argv[1]), 'rb'); order = json.loads(channel.readline()); "
    "idle = {'__name__': 'xpk_idle'}; exec(compile(order['program'], '<xpk standby>', 'exec'), idle); "
    "idle['main'](channel, order)"
)
_READY = b"\n"
_SEND_SECONDS, _END_SECONDS = 5.0, 1.0


@dataclass(frozen=True)
class Invocation:
    """Parts of a command that runs Python."""

    argv: list[str]
    options: list[str]  # of the interpreter
    target: str  # module or file
    is_module: bool
    arguments: list[str]

    @property
    def fixed(self) -> tuple[list[str], str, bool]:
        """Return the parts that an interpreter cannot change once it has started."""
        return [self.argv[0], *self.options], self.target, self.is_module


def parse(argv: list[str]) -> Invocation | None:
    """Return the parts of a command that runs Python, directly or in a shell; None for any other command."""
    if argv[:2] == ["bash", "-c"] and len(argv) == 3 and _PLAIN.fullmatch(argv[2]):
        argv = argv[2].split()
    if not argv or not _PYTHON.fullmatch(os.path.basename(argv[0])):
        return None
    index = 1
    while index < len(argv) and (_SWITCHES.fullmatch(argv[index]) or argv[index] in ("-X", "-W")):
        index += 2 if argv[index] in ("-X", "-W") else 1
    is_module = argv[index : index + 1] == ["-m"]
    options, program_and_arguments = argv[1:index], argv[index + is_module :]
    if (
        not program_and_arguments
        or program_and_arguments[0].startswith("-")
        or not (is_module or program_and_arguments[0].endswith(".py"))
    ):
        return None
    return Invocation(argv, options, program_and_arguments[0], is_module, program_and_arguments[1:])


class Standby:
    """At most one idle interpreter, for the next attempt of a command."""

    def __init__(
        self, argv: list[str], *, delay_seconds: float = 10.0, share: float = 0.2, min_free_bytes: int = _FREE_BYTES
    ) -> None:
        """Start nothing yet.

        The interpreter begins to import `delay_seconds` after `prepare`, and uses this share of one core.
        """
        self._invocation = parse(argv)
        self._limits = {"delay_seconds": delay_seconds, "share": share, "min_free_bytes": min_free_bytes}
        self._environ: dict[str, str] = {}
        self._folder = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    def prepare(self, environ: Mapping[str, str]) -> None:
        """Start the idle interpreter, unless one is running, the command cannot have one, or memory is short."""
        invocation = self._invocation
        imports = imports_of(invocation, environ) if invocation else []
        if self._process or not invocation or not imports:
            return
        with suppress(OSError):
            if free_bytes() < self._limits["min_free_bytes"]:
                return
            self._environ, self._folder = dict(environ), os.getcwd()
            self._start(invocation, {**asdict(invocation), **self._limits, "imports": imports})

    @property
    def is_ready(self) -> bool:
        """True once the idle interpreter has imported everything."""
        channel = self._channel
        try:
            return channel is not None and channel.recv(1, socket.MSG_PEEK) == _READY
        except OSError:
            return False

    @property
    def pid(self) -> int:
        """Process of the idle interpreter, 0 without one."""
        return self._process.pid if self._process else 0

    def take(self, argv: list[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
        """Return the idle process, which now runs this command; None if none is ready or the command does not match.

        In both cases there is no idle interpreter afterwards.
        """
        invocation, process, channel = parse(argv), self._process, self._channel
        with suppress(OSError):  # the process has ended, or the folder was removed
            if process and channel and invocation and self.is_ready and self._fits(invocation, environ):
                channel.recv(len(_READY))
                _send(channel, {**asdict(invocation), "environ": dict(environ)})
                channel.close()
                self._process = self._channel = None
                process.args = argv
                return process
        self.close()
        return None

    def close(self) -> None:
        """End the idle interpreter."""
        process, channel = self._process, self._channel
        self._process = self._channel = None
        if channel:
            channel.close()
        if process:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)

    def _start(self, invocation: Invocation, order: dict[str, object]) -> None:
        parent, child = socket.socketpair()
        with child:
            fd = child.fileno()
            argv = [invocation.argv[0], *invocation.options, "-c", _LOADER, str(fd), *invocation.argv]
            try:
                self._process = subprocess.Popen(argv, env=self._environ, pass_fds=(fd,), start_new_session=True)
                self._channel = parent
                program = (pkgutil.get_data(*_PROGRAM) or b"").decode()
                _send(parent, {**order, "program": program})
            except OSError:
                parent.close()
                self.close()

    def _fits(self, invocation: Invocation, environ: Mapping[str, str]) -> bool:
        """Return whether the interpreter would have started and imported in the same way for this command."""
        if self._invocation is None or invocation.fixed != self._invocation.fixed:
            return False
        if self._folder != os.getcwd():
            return False
        changed = {
            name for name in self._environ.keys() | environ.keys() if self._environ.get(name) != environ.get(name)
        }
        return all(name.startswith(_PER_ATTEMPT) for name in changed)


def _send(channel: socket.socket, message: dict[str, object]) -> None:
    """Send one line of JSON; the channel does not block afterwards. Raises OSError if the reader has ended."""
    channel.settimeout(_SEND_SECONDS)
    channel.sendall(json.dumps(message).encode() + b"\n")
    channel.setblocking(False)


def imports_of(invocation: Invocation, environ: Mapping[str, str]) -> list[str]:
    """Return the modules to import for a command."""
    known_imports = _ELASTIC_IMPORTS if environ.get(MIN_SLICES) else _KNOWN_IMPORTS
    known = known_imports.get(invocation.target, "") if invocation.is_module else ""
    names = [name.strip() for name in environ.get(IMPORTS, known).split(",")]
    # The program itself has to run as __main__.
    return [name for name in names if name and not (invocation.is_module and name == invocation.target)]
