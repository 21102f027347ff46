"""Control connection between the hosts, beside JAX: liveness, stop requests and small agreements.

Process 0 listens on the coordinator's port + 1; every other host keeps one TCP connection to it. The kernel closes the
connection of a process that dies, so a death is known within milliseconds, also while the main thread is stuck in a
collective that will never end. Messages are JSON, one per line:

    ready    hub -> hosts  everyone is connected
    report   host -> hub   {"report": key, "value": v}    announce  hub -> hosts  {"announce": key, "value"}
    tell     any  -> all   {"tell": what, "by": id}       lost      hub -> hosts  {"lost": id}
    answer   host -> hub   {"answer": what}
    beat     both ways, every two seconds: a host that hangs keeps its connection but falls silent
    bye      both ways: the end of this connection is not a death

The handshake of `trainer.hosts.handshake` comes first. A connection with an invalid message is closed.
"""

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from trainer.errors import FatalError, PeerAbsent, Problem
from trainer.hosts.connection import MAX_HUB_MESSAGE_BYTES, MAX_MESSAGE_BYTES, Link, dial, line, listen
from trainer.hosts.handshake import HANDSHAKE_SECONDS, Gate, Identity, introduce

BEAT_SECONDS = 2.0
_AGAIN_SECONDS = 0.2
SILENT_SECONDS = 20.0  # importing JAX on a busy machine may keep a host silent for seconds
_PROTOCOL_ERRORS = (TypeError, ValueError, KeyError, AttributeError)  # raised by messages that no host sends


class Peers:
    """This host's connection to the others. All callbacks run on a background thread.

    `on_lost(id)`: another host died. `on_told(what, id)`: another host sent `what`, to everybody or to process 0 alone.
    `job` names the job: only hosts that name the same job and attempt, and know its `secret`, may join.
    """

    def __init__(
        self,
        process_id: int,
        processes: int,
        attempt: int = 0,
        job: Sequence[str] = (),
        *,
        secret: bytes = b"",
        beat_seconds: float = BEAT_SECONDS,
        handshake_seconds: float = HANDSHAKE_SECONDS,
        max_message_bytes: int = MAX_HUB_MESSAGE_BYTES,
        on_lost: Callable[[int], None],
        on_told: Callable[[str, int], None],
    ) -> None:
        self.process_id, self.processes, self.attempt = process_id, processes, attempt
        self._identity = Identity(job, attempt, secret)
        self._beat_seconds, self._handshake_seconds = beat_seconds, handshake_seconds
        self._max_message_bytes = max_message_bytes  # of process 0
        self._on_lost, self._on_told = on_lost, on_told
        self._links: dict[int, Link] = {}
        self._reports: dict[str, dict[int, Any]] = {}
        self._announced: dict[str, Any] = {}
        self._changed = threading.Condition()
        self._ready = processes == 1
        self._closing = False
        self._listener: socket.socket | None = None

    def connect(self, address: str, port: int, timeout: float, again: Callable[[], str] | None = None) -> str:
        """Listen (process 0) or connect, then wait for every host; return process 0's address.

        `again` resolves the address again if nobody answers. Raises PeerAbsent naming the processes that did not
        connect, AddressError if it cannot listen.
        """
        if self.processes == 1:
            return address
        deadline = time.monotonic() + timeout
        if self.process_id == 0:
            self._listener = listen(address, port)
            threading.Thread(target=self._serve, name="peers-hub", daemon=True).start()
        else:
            link, said = self._introduced(address, port, deadline, again)
            address = str(link.sock.getpeername()[0])
            self._links[0] = link
            threading.Thread(target=self._listen, args=(link, said), name="peers", daemon=True).start()
        threading.Thread(target=self._beat, name="peers-beat", daemon=True).start()
        with self._changed:
            if not self._changed.wait_for(lambda: self._ready, max(0.0, deadline - time.monotonic())):
                missing = sorted(set(range(1, self.processes)) - set(self._links)) if self.process_id == 0 else []
                raise PeerAbsent(f"processes {missing or [0]} did not connect within {timeout:.0f} s", missing)
        return address

    @property
    def present(self) -> int:
        """Number of connected hosts; process 0 knows of all, the others of themselves and process 0."""
        return 1 + len(self._links)

    def report(self, key: str, value: Any) -> None:
        """Send `value` (JSON) to process 0, which waits for everyone's in `collect`."""
        if self.process_id == 0:
            self._reported(0, key, value)
        else:
            self._links[0].send({"report": key, "value": value})

    def collect(self, key: str) -> list[Any]:
        """Process 0 only: wait for every host's report of `key`; return them in process order."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._reports.get(key, ())) == self.processes)
            reports = self._reports.pop(key)
        return [reports[process] for process in range(self.processes)]

    def announce(self, key: str, value: Any) -> None:
        """Process 0 only: send every host, including itself, the value that `await_` returns.

        Raises FatalError if it is too long to be sent.
        """
        if self.processes > 1:
            content = line({"announce": key, "value": value})
            if len(content) > self._max_message_bytes:
                sizes = f"{len(content):,} bytes are more than {self._max_message_bytes:,}"
                message = f"cannot announce {key} to the hosts: {sizes}"
                raise FatalError(Problem(message, "Prepare the data in fewer files: --file-tokens"))
            self._send(content)
        self._store(key, value)

    def await_(self, key: str) -> Any:
        """Wait for process 0 to announce `key` and return its value.

        No time limit: if process 0 or any other host dies, `on_lost` ends this process.
        """
        with self._changed:
            self._changed.wait_for(lambda: key in self._announced)
            return self._announced.pop(key)

    def is_announced(self, key: str) -> bool:
        """Return whether process 0 has announced `key` and no caller here has taken it yet."""
        return key in self._announced

    def barrier(self, key: str) -> None:
        """Wait until every host has called this with the same key."""
        self.report(key, None)
        if self.process_id == 0:
            self.collect(key)
            self.announce(key, None)
        self.await_(key)

    def tell(self, what: str) -> None:
        """Send `what` to every other host."""
        message = {"tell": what, "by": self.process_id}
        if self.process_id == 0:
            self._broadcast(message)
        elif self._links:
            self._links[0].send(message)

    def answer(self, what: str) -> None:
        """Send `what` to process 0 alone."""
        if self.process_id != 0 and self._links:
            self._links[0].send({"answer": what})

    def leave(self, timeout: float = 10.0) -> None:
        """Close the connection in order, so that nobody counts this host as dead. Process 0 leaves last."""
        if self.process_id != 0:
            self._closing = True
            for link in self._links.values():
                link.send({"bye": self.process_id})
            return
        with self._changed:
            self._changed.wait_for(lambda: all(link.left for link in self._links.values()), timeout)
        self._closing = True
        self._broadcast({"bye": 0})

    def _introduced(
        self, address: str, port: int, deadline: float, again: Callable[[], str] | None
    ) -> tuple[Link, list[dict[str, Any]]]:
        """Return the connection to the hub, and the messages received so far. Raises PeerAbsent after `deadline`."""
        while True:
            link = Link(dial(address, port, deadline, again), self._max_message_bytes)
            said = introduce(link, self._identity, self.process_id, deadline)
            if said is not None:
                return link, said
            if time.monotonic() > deadline:
                raise PeerAbsent(f"process 0 at {address}:{port} is of another job or attempt, or does not answer")
            time.sleep(_AGAIN_SECONDS)
            address = again() if again else address

    def _serve(self) -> None:
        """Hub thread: accept hosts and read their messages."""
        assert self._listener is not None
        with selectors.DefaultSelector() as selector:
            gate = Gate(self._listener, selector, self._identity, self.processes, self._handshake_seconds)
            while True:
                for key, _ in selector.select(gate.tend()):
                    if key.data is None:
                        gate.accept()
                    elif not self._heard(gate, key.data):
                        selector.unregister(key.fileobj)
                        gate.forget(key.data)

    def _heard(self, gate: Gate, link: Link) -> bool:
        """Act on data from a connection; return False when it is over."""
        messages = link.receive()
        with contextlib.suppress(*_PROTOCOL_ERRORS):
            if messages is not None and all(self._understood(gate, link, message) for message in messages):
                return True
        if link.peer >= 0 and not link.left and not self._closing:
            self._broadcast({"lost": link.peer}, but=link.peer)
            self._on_lost(link.peer)
        return False

    def _understood(self, gate: Gate, link: Link, message: dict[str, Any]) -> bool:
        """Act on one message; return False for one of a stranger, unless it is a valid hello."""
        if link.peer < 0:
            return message["hello"] not in self._links and gate.admits(link, message) and self._joined(link, message)
        if "report" in message:
            self._reported(link.peer, message["report"], message["value"])
        elif "tell" in message:
            self._broadcast({"tell": message["tell"], "by": link.peer}, but=link.peer)
            self._on_told(message["tell"], link.peer)
        elif "answer" in message:
            self._on_told(message["answer"], link.peer)
        elif "bye" in message:
            with self._changed:
                link.left = True
                self._changed.notify_all()
        return True

    def _joined(self, link: Link, hello: dict[str, Any]) -> bool:
        """Register a host that completed the handshake."""
        link.peer, link.longest = hello["hello"], MAX_MESSAGE_BYTES
        with self._changed:
            self._links[link.peer] = link
            complete = len(self._links) == self.processes - 1
        if complete:
            self._broadcast({"ready": True})
            self._all_here()
        return True

    def _listen(self, link: Link, said: list[dict[str, Any]]) -> None:
        """Host thread: read the hub's messages until the connection ends or one is invalid."""
        messages: list[dict[str, Any]] | None = said
        with contextlib.suppress(*_PROTOCOL_ERRORS):
            while messages is not None:
                for message in messages:
                    self._obey(message)
                messages = link.receive()
        if not self._closing:
            self._on_lost(0)

    def _obey(self, message: dict[str, Any]) -> None:
        if "announce" in message:
            self._store(message["announce"], message["value"])
        elif "lost" in message:
            self._on_lost(message["lost"])
        elif "tell" in message:
            self._on_told(message["tell"], message["by"])
        elif "bye" in message:
            self._closing = True
        elif "ready" in message:
            self._all_here()

    def _all_here(self) -> None:
        with self._changed:
            self._ready = True
            self._changed.notify_all()

    def _beat(self) -> None:
        """Heartbeat thread: show that this host is alive, and detect hosts that fell silent."""
        me, woke = line({"beat": self.process_id}), time.monotonic()
        while not self._closing:
            time.sleep(self._beat_seconds)
            for link in list(self._links.values()):
                if not link.left:
                    link.beat(me)
            now = time.monotonic()
            if now - woke > 2 * self._beat_seconds:  # this host itself was suspended and has not listened
                for link in list(self._links.values()):
                    link.heard = now
            woke = now
            for peer, link in list(self._links.items()):
                if now - link.heard > SILENT_SECONDS and not link.left and not self._closing:
                    self._broadcast({"lost": peer}, but=peer)
                    self._on_lost(peer)

    def _broadcast(self, message: dict[str, Any], but: int = -1) -> None:
        self._send(line(message), but)

    def _send(self, content: bytes, but: int = -1) -> None:
        """Send all hosts but one a message that was encoded once: it may be long, and the hosts many."""
        for peer, link in list(self._links.items()):
            if peer != but and not link.left:
                link.send_line(content)

    def _reported(self, peer: int, key: str, value: Any) -> None:
        with self._changed:
            self._reports.setdefault(key, {})[peer] = value
            self._changed.notify_all()

    def _store(self, key: str, value: Any) -> None:
        with self._changed:
            self._announced[key] = value
            self._changed.notify_all()
