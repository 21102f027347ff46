"""The clients of the registry of elastic slices, without connections."""

from __future__ import annotations

from typing import Any

from xpk_shared.slices.client import RegistryClient
from xpk_shared.slices.registry import AWAITED_SECONDS, BEATS, identity
from xpk_shared.slices.roster import ACTIVE, READY, Entry, View


class _Member:
    """A connection to the registry; nothing is sent."""

    silent_seconds = BEATS.silent_seconds

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send_to_hub(self, message: dict[str, Any]) -> None:
        """Keep a message."""
        self.sent.append(message)

    def leave(self) -> None:
        """Do nothing."""


def connect(client: RegistryClient) -> Any:
    """Connect a client."""
    client._begin()
    member: Any = _Member()
    client._enter(member)
    return member


def test_an_active_slice_soon_finds_that_a_new_registry_is_silent_too() -> None:
    """A third registry forms the list some seconds after it has begun, and would refuse the slice then."""
    own = Entry("a0", ACTIVE, ())
    client = RegistryClient(identity("job", b""), 0, own, on_view=lambda view: None, on_evicted=lambda: None)
    first = connect(client)
    assert first.silent_seconds == AWAITED_SECONDS
    client._receive(View(1, {0: own}).as_json(), 0)
    assert first.silent_seconds > AWAITED_SECONDS, "the only active slice is dropped late"
    client._leave_lost(first)
    assert connect(client).silent_seconds == AWAITED_SECONDS


def test_a_slice_tells_the_next_registry_whom_the_former_one_has_dropped() -> None:
    own, lost = Entry("a0", ACTIVE, ()), Entry("a1", READY, ())
    client = RegistryClient(identity("job", b""), 0, own, on_view=lambda view: None, on_evicted=lambda: None)
    first = connect(client)
    for number, slices in enumerate(({0: own, 1: lost}, {0: own}, {0: own, 1: Entry("b1", ACTIVE, ())})):
        client._receive(View(number + 1, slices).as_json(), 0)
    client._leave_lost(first)
    assert connect(client).sent[-1]["dropped"] == client.dropped == ["a1"]
