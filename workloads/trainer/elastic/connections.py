"""TCP connections between hosts of equal number in different slices, for gradients and states.

The host of the slice with the higher number connects to the one with the lower number. Both prove that they know the
workload's secret. After that, a frame is a header in JSON and a payload of bytes. A connection that breaks is opened
again as long as the other slice is present; frames that were in transit are lost, so senders look at `generation`.

The first hosts of slices send beats, which show that they are not frozen, and name the slices that they have dropped.
"""

import contextlib
import json
import math
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.hosts.membership import Membership, Peer
from xpk_shared.links.connection import configure, listen
from xpk_shared.links.handshake import HANDSHAKE_SECONDS, PROTOCOL_ERRORS, Identity, is_same
from xpk_shared.slices.registry import BEATS

_BEAT = "beat"  # key of a frame's header
Frame = tuple[dict[str, Any], memoryview]
_SIZES = struct.Struct(">IQ")  # of a frame's header and payload in bytes
_MAX_HEADER_BYTES, _MAX_UNVERIFIED_BYTES = 1 << 24, 1 << 10
_RETRY_SECONDS = 0.1
_EMPTY = memoryview(b"")
_UNVERIFIED = 64  # connections without a handshake at a time


class Connections:
    """This host's connections. `on_frame` is called on background threads, and `membership` is notified."""

    def __init__(
        self,
        identity: Identity,
        own: Peer,
        on_frame: Callable[[Peer, dict[str, Any], memoryview], None],
        membership: Membership,
    ) -> None:
        self._identity, self._own = identity, own
        self._on_frame, self._membership = on_frame, membership
        self._expected: dict[Peer, tuple[str, int]] = {}
        self._open: dict[Peer, _Connection] = {}
        self._dialing: set[Peer] = set()
        self._lock, self._generations = threading.Lock(), 0
        self._sends_beats = False
        self._unverified = threading.BoundedSemaphore(_UNVERIFIED)

    def listen(self, address: str, *, beats: bool) -> int:
        """Listen at an address of this host, and send beats if asked to; return the port. Raises AddressError."""
        listener = listen(address, 0)
        threading.Thread(target=self._accept, args=(listener,), name="exchange", daemon=True).start()
        self._sends_beats = beats
        if beats:
            threading.Thread(target=self._beat, name="exchange-beat", daemon=True).start()
        return int(listener.getsockname()[1])

    def expect(self, peers: Mapping[Peer, tuple[str, int]]) -> None:
        """Connect to these hosts, and close connections to all others, which are told that they were dropped."""
        with self._lock:
            self._expected = dict(peers)
            gone = [self._open.pop(peer) for peer in list(self._open) if peer not in peers]
            dialed = [peer for peer in peers if peer[0] < self._own[0] and peer not in self._dialing | set(self._open)]
            self._dialing |= set(dialed)
        for connection in gone:
            self._send_beat(connection)
            connection.close()
        for peer in dialed:
            threading.Thread(target=self._dial, args=(peer,), name="exchange-dial", daemon=True).start()

    def generation(self, peer: Peer) -> int:
        """Return a number that is different for each connection to a host, 0 without a connection."""
        with self._lock:
            return self._open[peer].generation if peer in self._open else 0

    def send(self, peer: Peer, header: dict[str, Any], payload: memoryview) -> None:
        """Send a frame; do nothing without a connection, or if it breaks."""
        with self._lock:
            connection = self._open.get(peer)
        if connection:
            connection.send(header, payload)

    def silence(self, peer: Peer) -> float:
        """Return the seconds since a host has sent anything, infinity without a connection."""
        with self._lock:
            return time.monotonic() - self._open[peer].received_at if peer in self._open else math.inf

    def _beat(self) -> None:
        while True:
            time.sleep(BEATS.seconds)
            with self._lock:
                connections = list(self._open.values())
            for connection in connections:
                self._send_beat(connection)

    def _send_beat(self, connection: "_Connection") -> None:
        if self._sends_beats:
            connection.beat({_BEAT: self._membership.dropped})

    def _accept(self, listener: socket.socket) -> None:
        while True:
            with contextlib.suppress(OSError):
                sock, _ = listener.accept()
                self._unverified.acquire()
                threading.Thread(target=self._greet, args=(sock,), name="exchange-accept", daemon=True).start()

    def _greet(self, sock: socket.socket) -> None:
        """Verify a host that has connected, then read its frames."""
        peer: Peer | None = None
        try:
            peer = _challenge(_Connection(sock), self._identity, self._own)
        finally:
            self._unverified.release()
            if peer is None:
                sock.close()
        if peer is not None:
            self._serve(peer, _Connection(sock))

    def _dial(self, peer: Peer) -> None:
        """Keep a connection to a host of a slice with a lower number while that slice is present."""
        while (address := self._expected.get(peer)) is not None:
            with contextlib.suppress(OSError):
                sock = socket.create_connection(address, timeout=HANDSHAKE_SECONDS)
                if _introduce(_Connection(sock), self._identity, self._own, peer):
                    self._serve(peer, _Connection(sock))
                sock.close()
            time.sleep(_RETRY_SECONDS)
        with self._lock:
            self._dialing.discard(peer)

    def _serve(self, peer: Peer, connection: "_Connection") -> None:
        """Register a verified connection and read its frames until it ends."""
        connection.configure()
        connection.received_at = -math.inf  # until the other host says whom its slice has dropped
        with self._lock:
            self._generations += 1
            connection.generation = self._generations
            former = self._open.get(peer)
            self._open[peer] = connection
        if former:
            former.close()
        self._membership.notify()
        self._send_beat(connection)
        with contextlib.suppress(OSError, *PROTOCOL_ERRORS):
            while True:
                header, payload = connection.receive()
                if _BEAT in header:
                    self._membership.hear(peer, header[_BEAT])
                else:
                    self._on_frame(peer, header, payload)
        with self._lock:
            if self._open.get(peer) is connection:
                del self._open[peer]
        connection.close()
        self._membership.notify()


def as_bytes(vector: npt.NDArray[Any]) -> memoryview:
    """Return the bytes of an array of any type, without a copy if it is contiguous."""
    return np.ascontiguousarray(vector).reshape(-1).view(np.uint8).data


class _Connection:
    """One TCP connection that carries frames."""

    def __init__(self, sock: socket.socket) -> None:
        self.generation, self.received_at = 0, time.monotonic()
        self._sock, self._sending = sock, threading.Lock()
        self._deadline: float | None = None

    def configure(self) -> None:
        """Set the options of a verified connection."""
        self._sock.settimeout(None)
        configure(self._sock)

    def limit(self, seconds: float) -> None:
        """Set the time that all following operations may take in all, so that a slow sender cannot prolong it."""
        self._deadline = time.monotonic() + seconds
        self._sock.settimeout(seconds)

    def send(self, header: dict[str, Any], payload: memoryview = _EMPTY) -> None:
        """Send a frame. An error ends the connection, which its reader detects."""
        with self._sending:
            self._send(header, payload)

    def beat(self, header: dict[str, Any]) -> None:
        """Send a frame without waiting, unless one is being sent or not read, whose bytes show the same."""
        if self._sending.acquire(blocking=False):
            try:
                if self._has_room():
                    self._send(header, _EMPTY)
            finally:
                self._sending.release()

    def receive(self, max_header_bytes: int = _MAX_HEADER_BYTES, max_payload_bytes: int | None = None) -> Frame:
        """Return the next frame. Raises OSError when the connection ends, ValueError for an invalid frame."""
        header_bytes, payload_bytes = _SIZES.unpack(self._read(_SIZES.size))
        if header_bytes > max_header_bytes or payload_bytes > (max_payload_bytes or payload_bytes):
            raise ValueError("the frame is too large")
        header = json.loads(bytes(self._read(header_bytes)))
        if not isinstance(header, dict):
            raise ValueError("the header is not an object")
        return header, self._read(payload_bytes)

    def _send(self, header: dict[str, Any], payload: memoryview) -> None:
        content = json.dumps(header).encode()
        data = payload.cast("B") if payload.nbytes else payload
        try:
            self._sock.sendall(_SIZES.pack(len(content), data.nbytes) + content)
            if data.nbytes:
                self._sock.sendall(data)
        except OSError:
            self.close()

    def _has_room(self) -> bool:
        """Return whether the kernel takes a small frame at once: it says so if a third of its buffer is free."""
        writable = select.poll()
        try:
            writable.register(self._sock, select.POLLOUT)
        except (OSError, ValueError):  # closed
            return False
        return bool(writable.poll(0))

    def close(self) -> None:
        """End the connection, also for the thread that reads from it."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _read(self, size: int) -> memoryview:
        """Return the next bytes. Memory is used only for those that have arrived, whatever size the frame claims."""
        try:
            content = np.empty(size, np.uint8).data
        except (MemoryError, OverflowError) as error:
            raise ValueError("the frame is too large") from error
        position = 0
        while position < size:
            if self._deadline is not None:
                self._sock.settimeout(max(0.001, self._deadline - time.monotonic()))
            count = self._sock.recv_into(content[position:])
            if not count:
                raise ConnectionError("the connection has ended")
            position += count
            self.received_at = time.monotonic()
        return content


def _receive_unverified(connection: _Connection) -> dict[str, Any]:
    return connection.receive(_MAX_UNVERIFIED_BYTES, 1)[0]


def _challenge(connection: _Connection, identity: Identity, own: Peer) -> Peer | None:
    """Verify a host that has connected; return its slice and incarnation, None if it does not know the secret."""
    challenge = f"{own[1]} {secrets.token_hex(16)}"
    with contextlib.suppress(OSError, *PROTOCOL_ERRORS):
        connection.limit(HANDSHAKE_SECONDS)
        connection.send({"challenge": challenge})
        hello = _receive_unverified(connection)
        number, nonce = int(hello["hello"]), str(hello["nonce"])
        if is_same(hello["proof"], identity.proof("host", number, challenge, nonce)):
            connection.send({"welcome": identity.proof("hub", number, challenge, nonce)})
            return number, nonce.partition(" ")[0]
    return None


def _introduce(connection: _Connection, identity: Identity, own: Peer, peer: Peer) -> bool:
    """Prove to a host that this one knows the secret, and verify that it is the expected one."""
    with contextlib.suppress(OSError, *PROTOCOL_ERRORS):
        connection.limit(HANDSHAKE_SECONDS)
        challenge = str(_receive_unverified(connection)["challenge"])
        nonce = f"{own[1]} {secrets.token_hex(16)}"
        proof = identity.proof("host", own[0], challenge, nonce)
        connection.send({"hello": own[0], "nonce": nonce, "proof": proof})
        welcome = _receive_unverified(connection)["welcome"]
        is_expected = challenge.partition(" ")[0] == peer[1]
        return is_expected and is_same(welcome, identity.proof("hub", own[0], challenge, nonce))
    return False
