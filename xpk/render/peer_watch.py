"""The supervisor of a host's command: `python3 -c THIS COMMAND...` runs the command and watches the host's peers.

A host that dies leaves the others in a collective that never ends. Kubernetes would then end the hosts of its slice
and, after those, the hosts of the other slices, each with the full grace period. Therefore every host keeps a
connection to the first host. The kernel closes it when a host dies; then all other hosts end their commands at once,
and themselves as soon as Kubernetes asks them to: the exit code of the failed host alone decides.

A host that was asked to end (SIGTERM), or has succeeded, announces it: its end is not a loss, and it keeps its grace
period. A command that fails before the hosts have met is held back for a moment, so that its peers notice. A command
that ends with 143 although no host was asked to end has failed; Kubernetes would not count that code. Where hosts
cannot connect, the command just runs. This program runs in the user's image: standard library, Python 3.8.

A connection counts once its host has answered a challenge with a proof that it knows the workload's secret:

    challenge NONCE    first host -> host    hello NUMBER NONCE PROOF    host -> first host
    welcome PROOF      first host -> host    lost NUMBER, asked, bye     what has happened
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import resource
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

_PORT_OFFSET = 2  # from the coordinator's; the port between is the bundled trainer's
_SOURCE_VARIABLE = "XPK_PEER_WATCH"
_SECRET_VARIABLE = "XPK_PEER_SECRET_FILE"
_FAILED, _PEER_LOST, _ASKED_TO_END = 1, 75, 143
_CALM_SECONDS, _END_SECONDS, _DIAL_SECONDS, _POLL_SECONDS, _IDLE_SECONDS = 1.0, 60.0, 0.5, 0.2, 60.0
_MEET_SECONDS = 10.0  # for which a host that has failed at once waits to be known to those it fails
_HANDSHAKE_SECONDS, _PAUSE_SECONDS = 5.0, 0.5
_STRANGERS = 64  # connections without a handshake, where there are fewer hosts than that
_LONGEST = 1024  # bytes of one line; hosts say far less
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}
_FORWARDED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
_WATCHED = {*_FORWARDED, signal.SIGCHLD}


class Peers:
    """The connections between hosts. `lost` is called on another thread, with the number of the host that is gone."""

    def __init__(
        self, me: int, hosts: int, address: str, port: int, job: str, secret: bytes, lost: Callable[[int], None]
    ) -> None:
        self._me, self._hosts, self._address, self._port, self._lost = me, hosts, address, port, lost
        self._job, self._secret = job, secret
        self._strangers: dict[socket.socket, tuple[bytes, float]] = {}  # with the nonce they got, and their deadline
        self._links: dict[socket.socket, int] = {}
        self._said: list[bytes] = []
        self._left: set[int] = set()
        self._gone: list[int] = []  # in order: hosts that hear of a loss hang up, which looks like another one
        self._missing = set(range(hosts)) - {me} if me == 0 else {0}  # whom this host has yet to meet
        self.asked = False  # whether any host was asked to end

    def start(self) -> None:
        """Listen or connect, on a thread of its own."""
        threading.Thread(target=self._serve if self._me == 0 else self._join, daemon=True).start()

    @property
    def met(self) -> bool:
        """True if this host's end will be noticed, or never can be."""
        return not self._missing

    def give_up(self) -> None:
        """Meet nobody."""
        self._missing.clear()

    def leave(self, *, asked: bool = False) -> None:
        """Announce that this host's end is not a loss, and whether it was asked to end."""
        self.asked = self.asked or asked
        self._said = [b"asked", b"bye"] if asked else [b"bye"]
        for line in self._said:
            self._tell(line)

    def _proofs(self, number: int, challenge: bytes, nonce: bytes) -> tuple[bytes, bytes]:
        """Return what host `number` and the first host prove to each other on this connection of this attempt."""
        text = f"xpk-peer-watch {self._job} {number} ".encode() + challenge + b" " + nonce
        host, hub = (hmac.new(self._secret, role + b" " + text, hashlib.sha256) for role in (b"host", b"hub"))
        return host.hexdigest().encode(), hub.hexdigest().encode()

    def _serve(self) -> None:
        """First host: take the others in, and tell all of them when one is gone."""
        try:
            server = _listen(self._port)
        except OSError as error:
            say(f"cannot listen at port {self._port} ({error.strerror}): a lost host will be noticed late")
            self.give_up()
            return
        resumes: float | None = 0.0  # when to accept again; while it does not, the kernel keeps new connections
        with selectors.DefaultSelector() as selector:
            while True:
                now = time.monotonic()
                for link in [link for link, (_, deadline) in self._strangers.items() if now > deadline]:
                    self._hang_up(selector, link)
                if resumes is not None and now >= resumes and len(self._strangers) < max(_STRANGERS, self._hosts):
                    selector.register(server, selectors.EVENT_READ)
                    resumes = None
                waits = self._strangers or resumes is not None
                for key, _ in selector.select(_PAUSE_SECONDS if waits else None):
                    if key.fileobj is server:
                        if not self._accept(server, selector):
                            selector.unregister(server)
                            resumes = time.monotonic() + _PAUSE_SECONDS
                    elif isinstance(key.fileobj, socket.socket) and not self._heard(key.fileobj, key.data):
                        self._hang_up(selector, key.fileobj)

    def _accept(self, server: socket.socket, selector: selectors.BaseSelector) -> bool:
        """Take a connection and challenge it; return False where no more should, or can, be taken now."""
        try:
            link = _prepared(server.accept()[0])
        except OSError:  # it is gone already, or there are no descriptors left
            return False
        challenge = secrets.token_hex(16).encode()
        self._strangers[link] = challenge, time.monotonic() + _HANDSHAKE_SECONDS
        selector.register(link, selectors.EVENT_READ, bytearray())
        with contextlib.suppress(OSError):
            link.sendall(b"challenge " + challenge + b"\n")
        return len(self._strangers) < max(_STRANGERS, self._hosts)

    def _hang_up(self, selector: selectors.BaseSelector, link: socket.socket) -> None:
        self._strangers.pop(link, None)
        selector.unregister(link)
        link.close()

    def _heard(self, link: socket.socket, buffer: bytearray) -> bool:
        """Act on what a host says; return False when its connection is over."""
        lines = _lines(link, buffer)
        for line in lines or ():
            if link not in self._links:
                if not self._welcomed(link, line):
                    return False
            elif line == b"asked":
                self.asked = True
                self._tell(line)
            elif line == b"bye":
                self._left.add(self._links[link])
        if lines is not None:
            return True
        gone = self._links.pop(link, None)
        if gone is not None and gone not in self._left:
            self._gone.append(gone)
            self._tell(b"lost %d" % gone)
            self._lost(gone)
        return False

    def _welcomed(self, link: socket.socket, line: bytes) -> bool:
        """Take a host in that proves to be one of this attempt's, and is not here yet."""
        word, *parts = line.split(b" ")
        if word != b"hello" or len(parts) != 3 or not parts[0].isdigit() or len(parts[0]) > 9:
            return False
        number, (nonce, proof) = int(parts[0]), parts[1:]
        mine, ours = self._proofs(number, self._strangers[link][0], nonce)
        if not hmac.compare_digest(proof, mine) or not 0 < number < self._hosts or number in self._links.values():
            return False
        del self._strangers[link]
        self._links[link] = number
        with contextlib.suppress(OSError):
            news = [b"lost %d" % each for each in self._gone] + [b"asked"] * self.asked
            link.sendall(b"\n".join([b"welcome " + ours, *news, b""]))
        self._missing.discard(number)
        return True

    def _join(self) -> None:
        """Another host: connect, for as long as that takes, and listen until the end."""
        patience = 1.0  # short at first: the name may still stand for a host that is gone, and nothing comes back
        while True:
            there = self._address, self._port
            with contextlib.suppress(OSError), socket.create_connection(there, timeout=patience) as link:
                if self._listened(_prepared(link)):
                    return
            self._links.clear()
            patience = min(2 * patience, 10.0)
            time.sleep(_DIAL_SECONDS)

    def _listened(self, link: socket.socket) -> bool:
        """Listen to the first host until there is no more to learn; return False if it is another job's."""
        link.settimeout(2 * _HANDSHAKE_SECONDS)
        buffer, nonce, welcome, is_welcome = bytearray(), secrets.token_hex(16).encode(), b"", False
        while True:
            lines = _lines(link, buffer)
            if lines is None:
                if is_welcome:
                    self._lost(0)
                return is_welcome
            for line in lines:
                word, _, rest = line.partition(b" ")
                if is_welcome:
                    if self._is_over(word, rest):
                        return True
                elif word == b"challenge" and not welcome:
                    proof, welcome = self._proofs(self._me, rest, nonce)
                    link.settimeout(None)  # from now on the end of this connection would be taken for this host's
                    self._links[link] = 0
                    link.sendall(b"\n".join([b"hello %d %s %s" % (self._me, nonce, proof), *self._said, b""]))
                elif word == b"welcome" and welcome and hmac.compare_digest(rest, welcome):
                    is_welcome = True
                    self._missing.clear()
                else:
                    return False

    def _is_over(self, word: bytes, rest: bytes) -> bool:
        """Act on what the first host says; return whether that was its last word."""
        if word == b"lost":
            self._lost(int(rest))
        elif word == b"asked":
            self.asked = True
        return word in (b"lost", b"bye")

    def _tell(self, line: bytes) -> None:
        for link in list(self._links):
            with contextlib.suppress(OSError):
                link.sendall(line + b"\n")


class Command:
    """The user's command: a session of its own, so that all of its processes can be told something."""

    def __init__(self, argv: list[str]) -> None:
        self.code: int | None = None
        self._orphaned = False
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        environ = {key: value for key, value in os.environ.items() if key != _SOURCE_VARIABLE}
        # No thread runs yet, so that the child may do something of ours before it begins.
        self._process = subprocess.Popen(argv, env=environ, start_new_session=True, preexec_fn=_unblock)

    def pass_on(self, number: int) -> None:
        """Send a signal to its first process, as a container would: the others are its affair while it is there."""
        if self.code is None:
            os.kill(self._process.pid, number)
        else:
            self.tell(number)

    def tell(self, number: int) -> bool:
        """Send a signal to all of its processes; return whether there are any."""
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return False
        return True

    @property
    def saves(self) -> bool:
        """True if processes are left that only this program has told to end."""
        return self._orphaned and self.tell(0)

    def reap(self) -> None:
        """Take note of processes that have ended: the first of a container inherits those of others."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._process.pid:
                    if os.WIFSIGNALED(status):  # it has passed nothing on, as a shell without a trap does not
                        self._orphaned = self.tell(signal.SIGTERM)
                    self.code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def run(command: Command, peers: Peers, lost: list[int], hosts_per_slice: int) -> int:
    """Return this host's exit code, when its command has ended and nobody waits for anything."""
    asked, lost_at, began = False, 0.0, time.monotonic()
    while True:
        waits = asked or lost_at or command.code is not None
        got = signal.sigtimedwait(_WATCHED, _POLL_SECONDS if waits else _IDLE_SECONDS)
        if got and got.si_signo in _FORWARDED:
            if got.si_signo in (signal.SIGTERM, signal.SIGINT):
                asked = True
                peers.leave(asked=True)
            command.pass_on(got.si_signo)
        command.reap()
        if lost and not asked and not lost_at and command.code is None:
            slice_id, host = divmod(lost[0], hosts_per_slice)
            say(f"host s{slice_id}/h{host} is gone: this host's command is ended")
            command.pass_on(signal.SIGTERM)
            lost_at = time.monotonic()
        if lost_at and time.monotonic() > lost_at + _CALM_SECONDS:
            command.tell(signal.SIGKILL)
        if command.code is None:
            continue
        if command.code == 0:
            peers.leave()
            return 0
        if not lost_at:
            if not (asked and command.saves) and (asked or peers.met or time.monotonic() > began + _MEET_SECONDS):
                return command.code if asked else _own_code(command.code, peers)
        elif asked:
            return _ASKED_TO_END
        elif time.monotonic() > lost_at + _END_SECONDS:
            return _PEER_LOST


def _own_code(code: int, peers: Peers) -> int:
    """Return the exit code of a host that nobody asked to end: 143 would not be counted as the failure that it is."""
    deadline = time.monotonic() + _CALM_SECONDS  # word that another host was asked may be on its way
    while code == _ASKED_TO_END and not peers.asked:
        if time.monotonic() > deadline:
            say(f"the command ended with {code}, but no host was asked to end: exit code {_FAILED}")
            return _FAILED
        time.sleep(_POLL_SECONDS / 10)
    return code


def main(argv: list[str], environ: Mapping[str, str] = os.environ) -> int:
    """Run a command as one host of several. Returns its exit code."""
    try:
        slices, hosts = int(environ["MEGASCALE_NUM_SLICES"]), int(environ["XPK_HOSTS_PER_SLICE"])
        me = int(environ["MEGASCALE_SLICE_ID"]) * hosts + int(environ["TPU_WORKER_ID"])
        address, _, port = environ["XPK_COORDINATOR_ADDRESS"].rpartition(":")
        job = environ["XPK_JOB_ID"] + "." + environ["XPK_RESTART_ATTEMPT"]
        first_port, secret_file = int(port) + _PORT_OFFSET, environ[_SECRET_VARIABLE]
    except (KeyError, ValueError):
        os.execvp(argv[0], argv)  # nobody has said who the peers are
    lost: list[int] = []

    def note(number: int) -> None:
        lost.append(number)
        os.kill(os.getpid(), signal.SIGCHLD)  # look up

    try:
        command = Command(argv)
    except OSError as error:
        say(f"cannot run {argv[0]}: {error.strerror}")
        return 127
    secret = _read(secret_file)
    peers = Peers(me, slices * hosts, address, first_port, job, secret, note)
    if secret and slices * hosts > 1:
        peers.start()
    else:
        peers.give_up()
    return run(command, peers, lost, hosts)


def say(text: str) -> None:
    """Print a line among those of the command."""
    print(f"xpk: {text}", file=sys.stderr, flush=True)


def _read(file: str) -> bytes:
    """Return the workload's secret, nothing where there is none."""
    try:
        secret = Path(file).read_bytes().strip()
    except OSError as error:
        say(f"cannot read {file} ({error.strerror}): a lost host will be noticed late")
        return b""
    return secret


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)


def _listen(port: int) -> socket.socket:
    with contextlib.suppress(ValueError, OSError):  # a connection for each host
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("::", port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=1024)


def _prepared(link: socket.socket) -> socket.socket:
    """Notice soon that the other machine has vanished: it sends no end of stream."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        if hasattr(socket, option):
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return link


def _lines(link: socket.socket, buffer: bytearray) -> list[bytes] | None:
    """Wait for data and return the whole lines; None where the connection is over."""
    try:
        data = link.recv(4096)
    except OSError:
        return None
    buffer += data
    *lines, rest = bytes(buffer).split(b"\n")
    if not data or max(len(line) for line in (*lines, rest)) > _LONGEST:
        return None
    buffer[:] = rest
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
