"""The registry of elastic slices in the supervisor of slice 0 host 0."""

from __future__ import annotations

from xpk_shared.slices.registry import Registry
from xpk_shared.supervisor.host import Host, address_to_listen


class RegistryServer:
    """The registry, which listens as long as this process runs, also between attempts of the command.

    Raises AddressError if it cannot listen.
    """

    def __init__(self, host: Host, secret: bytes, seconds: float) -> None:
        assert host.elastic is not None
        elastic = host.elastic
        self._registry = Registry(host.job, secret, elastic.num_slices, elastic.min_slices)
        name, _, port = elastic.registry.rpartition(":")
        self._registry.open(address_to_listen(name), int(port))
        self._seconds, self._done_at = seconds, 0.0

    def is_needed(self, now: float) -> bool:
        """Return whether slices have not learned yet that the run has finished; False after a time limit.

        Call it repeatedly once this host could exit. `now` is the time of a monotonic clock.
        """
        self._done_at = self._done_at or now
        return not self._registry.has_finished and now < self._done_at + self._seconds


def open_registry(host: Host, secret: bytes, seconds: float) -> RegistryServer | None:
    """Return the registry if this host serves it: slice 0 host 0 with elastic slices. Raises AddressError.

    Without a secret, anybody could register.
    """
    if host.elastic is None or host.elastic.own or host.number or not secret:
        return None
    return RegistryServer(host, secret, seconds)
