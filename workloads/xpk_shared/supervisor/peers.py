"""The other hosts of a command: which are lost, and whether any was asked to end."""

from __future__ import annotations

import threading
from collections.abc import Callable

from xpk_shared.links.endpoint import Handlers
from xpk_shared.links.errors import AddressError
from xpk_shared.links.handshake import HANDSHAKE_SECONDS, Identity
from xpk_shared.links.hub import Hub
from xpk_shared.links.member import Member
from xpk_shared.supervisor.host import Host, say

_ASKED = "asked"


class Peers:
    """This host's link to the others. `wake` is called on another thread when a host is lost."""

    def __init__(
        self, host: Host, secret: bytes, wake: Callable[[], None], *, handshake_seconds: float = HANDSHAKE_SECONDS
    ) -> None:
        self.lost: list[int] = []  # in order: hosts that end because of a loss look like another one
        self.asked = threading.Event()  # set once any host was asked to end
        self._host, self._wake = host, wake
        identity, handlers = Identity(("command", host.job), host.attempt, secret), Handlers(self._lose, self._note)
        self._end = (
            Member(identity, host.number, handlers)
            if host.number
            else Hub(identity, host.hosts, handlers, handshake_seconds=handshake_seconds)
        )
        if not secret:
            self._end.absent.clear()

    def connect(self) -> None:
        """Listen or connect, in the background, unless this host is alone or cannot."""
        if self.have_met:
            return
        if isinstance(self._end, Member):
            target, address = self._end.join, (self._host.address, self._host.port)
            threading.Thread(target=target, args=address, name="join", daemon=True).start()
            return
        try:
            self._end.open("", self._host.port)
        except AddressError as error:
            say(f"{error}: a lost host will be noticed late")
            self._end.absent.clear()

    @property
    def have_met(self) -> bool:
        """True if this host's end will be noticed, or never can be."""
        return not self._end.absent

    def leave(self, *, asked: bool = False) -> None:
        """Announce that this host's end is not a loss, and whether it was asked to end."""
        if asked and not self.asked.is_set():
            self._note(_ASKED, self._host.number)
            self._end.tell(_ASKED)
        self._end.leave()

    def _lose(self, number: int) -> None:
        self.lost.append(number)
        self._wake()

    def _note(self, what: str, number: int) -> None:
        if what == _ASKED:
            self.asked.set()
