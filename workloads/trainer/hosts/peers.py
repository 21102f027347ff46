"""Control connection between the hosts, beside JAX: liveness, stop requests and small agreements.

Process 0 listens on the coordinator's port + 1, where the hosts keep the links of `xpk_shared.links`, with a beat every
two seconds, or more often in elastic slices. Further messages:

    report   host -> hub   {"report": key, "value": v}    announce  hub -> hosts  {"announce": key, "value"}
    answer   host -> hub   {"answer": what}
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from trainer.errors import FatalError, PeerAbsent, Problem
from xpk_shared.links.connection import MAX_HUB_MESSAGE_BYTES, line
from xpk_shared.links.endpoint import Beats, Handlers
from xpk_shared.links.handshake import Identity
from xpk_shared.links.hub import Hub
from xpk_shared.links.member import Member

BEATS = Beats()


class Peers:
    """This host's connection to the others. All callbacks run on a background thread.

    `on_lost(id)`: another host died. `on_message(text, id)`: another host sent `text`, to all hosts or to process 0
    only. `job` names the job: only hosts that name the same job and attempt, and know its `secret`, may join.
    """

    def __init__(
        self,
        process_id: int,
        processes: int,
        attempt: int = 0,
        job: Sequence[str] = (),
        *,
        secret: bytes = b"",
        max_message_bytes: int = MAX_HUB_MESSAGE_BYTES,
        beats: Beats = BEATS,
        on_lost: Callable[[int], None],
        on_message: Callable[[str, int], None],
    ) -> None:
        self.process_id, self.processes, self.attempt = process_id, processes, attempt
        self._on_message, self._max_message_bytes = on_message, max_message_bytes
        identity, handlers = Identity(job, attempt, secret), Handlers(on_lost, on_message, self._receive)
        self._link = (
            Member(identity, process_id, handlers, beats=beats)
            if process_id
            else Hub(identity, processes, handlers, beats=beats)
        )
        self._reports: dict[str, dict[int, Any]] = {}
        self._announced: dict[str, Any] = {}
        self._on_report: dict[str, Callable[[int, Any], None]] = {}
        self._on_announced: dict[str, Callable[[Any], None]] = {}
        self._changed = threading.Condition()
        self._ready = processes == 1

    def connect(self, address: str, port: int, timeout: float, resolve: Callable[[], str] | None = None) -> str:
        """Listen (process 0) or connect, then wait for every host; return process 0's address.

        `resolve` returns the current address if there is no answer. Raises PeerAbsent naming the processes that did not
        connect, AddressError if it cannot listen.
        """
        if self.processes == 1:
            return address
        deadline = time.monotonic() + timeout
        if isinstance(self._link, Hub):
            self._link.open(address, port)
        else:
            address = self._link.join(address, port, deadline, resolve)
        with self._changed:
            if not self._changed.wait_for(lambda: self._ready, max(0.0, deadline - time.monotonic())):
                missing = sorted(self._link.absent)
                raise PeerAbsent(f"processes {missing or [0]} did not connect within {timeout:.0f} s", missing)
        return address

    @property
    def present(self) -> int:
        """Number of connected hosts; process 0 counts all hosts, the others only themselves and process 0."""
        return 1 + len(self._link.links)

    def report(self, key: str, value: Any) -> None:
        """Send `value` (JSON) to process 0, which waits for all hosts' values in `collect`."""
        if self.process_id == 0:
            self._store_report(0, key, value)
        else:
            self._link.send(line({"report": key, "value": value}))

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
            self._link.send(content)
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

    def handle(self, key: str, on_report: Callable[[int, Any], None], on_announced: Callable[[Any], None]) -> None:
        """Call these for each report (on process 0) and announcement of `key`; call this before `connect`.

        Announcements come in the order in which process 0 makes them; one at a time may be made.
        """
        self._on_report[key], self._on_announced[key] = on_report, on_announced

    def barrier(self, key: str) -> None:
        """Wait until every host has called this with the same key."""
        self.report(key, None)
        if self.process_id == 0:
            self.collect(key)
            self.announce(key, None)
        self.await_(key)

    def broadcast(self, message: str) -> None:
        """Send a message to every other host."""
        self._link.broadcast(message)

    def reply(self, message: str) -> None:
        """Send a message to process 0 only, as soon as this host is connected."""
        if isinstance(self._link, Member):
            self._link.send_to_hub({"answer": message})

    def limit_silence(self, seconds: float) -> None:
        """Treat a host as dead after this time without a message from it."""
        self._link.silent_seconds = seconds

    def leave(self, timeout: float = 10.0) -> None:
        """Close the connection in order, so that no host counts this one as dead. Process 0 leaves last."""
        self._link.leave(timeout)

    def _receive(self, message: dict[str, Any], peer: int) -> None:
        if "report" in message:
            self._store_report(peer, message["report"], message["value"])
        elif "announce" in message:
            self._store(message["announce"], message["value"])
        elif "answer" in message:
            self._on_message(message["answer"], peer)
        elif "ready" in message:
            with self._changed:
                self._ready = True
                self._changed.notify_all()

    def _store_report(self, peer: int, key: str, value: Any) -> None:
        if key in self._on_report:
            self._on_report[key](peer, value)
            return
        with self._changed:
            self._reports.setdefault(key, {})[peer] = value
            self._changed.notify_all()

    def _store(self, key: str, value: Any) -> None:
        if key in self._on_announced:
            self._on_announced[key](value)
            return
        with self._changed:
            self._announced[key] = value
            self._changed.notify_all()
