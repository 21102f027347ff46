"""Connections of a host to the other elastic slices, and its registration with them."""

import contextlib
import functools
import json
import socket
from typing import Any

from trainer.elastic import handover
from trainer.elastic.connections import Connections
from trainer.elastic.handover import Receiver
from trainer.elastic.reduction import Reductions
from trainer.errors import ExitCode
from trainer.hosts import bootstrap
from trainer.hosts.job import Job, leave
from trainer.hosts.membership import Membership, new_incarnation
from trainer.telemetry import metrics
from xpk_shared.links.handshake import Identity
from xpk_shared.slices.registry import AWAITED_SECONDS, silence_limit
from xpk_shared.slices.roster import ACTIVE

RESOLVE_SECONDS = 300.0
_CONNECT_SECONDS = 5.0  # for the connections to the active slices, before this slice may become one of them


class Slices:
    """This host's connections to the other slices."""

    def __init__(self, job: Job, membership: Membership) -> None:
        self.job, self.membership = job, membership
        self.receiver = Receiver(membership)
        self.reductions: Reductions | None = None
        self.connections: Connections

    def enter(self, coordinator: str) -> str:
        """Listen, register with the other slices and wait; return the role of this slice.

        `coordinator` is the address of process 0, "" if it is the only process of its slice.
        """
        job, host, peers = self.job, self.job.host, self.job.peers
        if job.is_first:
            peers.announce("incarnation", new_incarnation())
        own = host.slice_id, str(peers.await_("incarnation"))
        identity = Identity(("exchange", host.job_id, str(host.worker_id)), 0, host.secret)
        self.connections = Connections(identity, own, self._receive, self.membership)
        address = own_address(host, coordinator)
        peers.report("exchange", [address, self.connections.listen(address, beats=job.is_first)])
        addresses = [(str(name), int(port)) for name, port in peers.collect("exchange")] if job.is_first else None
        self.membership.views += [self._connect, lambda view: peers.limit_silence(silence_limit(view, host.slice_id))]
        self.membership.is_heard = lambda peer: self.connections.silence(peer) < AWAITED_SECONDS
        registry = functools.partial(bootstrap.resolve, host.registry, RESOLVE_SECONDS, metrics.say)
        self.membership.enter(addresses, own[1], lambda: registry()[0])
        return self.membership.wait_for_role()  # without a time limit: there may be no capacity for the other slices

    def await_connections(self) -> None:
        """Wait until all hosts of this slice are connected to the active slices, one of which sends the state."""
        membership = self.membership

        def are_open() -> bool:
            active = [(n, entry.incarnation) for n, entry in membership.view.slices.items() if entry.phase == ACTIVE]
            return all(map(self.connections.generation, active))

        with membership.changed:
            membership.changed.wait_for(are_open, _CONNECT_SECONDS)
        self.job.peers.barrier("connections")

    def _connect(self, view: Any) -> None:
        """Connect to the hosts of equal number in the slices that are present."""
        peers = {
            (number, entry.incarnation): entry.hosts[self.job.host.worker_id]
            for number, entry in view.slices.items()
            if number != self.job.host.slice_id
        }
        self.connections.expect(peers)

    def _receive(self, peer: Any, header: dict[str, Any], payload: memoryview) -> None:
        if header["kind"] == handover.KIND:
            self.receiver.receive(header, payload)
        elif self.reductions is not None:
            self.reductions.receive(peer, header, payload)


def own_address(host: bootstrap.Host, coordinator: str) -> str:
    """Return the address at which other slices reach this host: the one from which it reaches its coordinator.

    `coordinator` is the address to which this slice's hosts have connected: its name may resolve to a former pod again.
    """
    if host.process_id == 0:
        resolve = functools.partial(bootstrap.resolve, host.coordinator, RESOLVE_SECONDS, metrics.say)
        return coordinator or bootstrap.own_address(resolve)[0]
    family = socket.AF_INET6 if ":" in coordinator else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:  # sends nothing
        probe.connect((coordinator, int(host.coordinator.rpartition(":")[2])))
        return str(probe.getsockname()[0])


def has_finished(job: Job) -> bool:
    """Return whether this job has written its result; then its registry may have ended, too."""
    if job.is_first:
        result: Any = None
        with contextlib.suppress(OSError, ValueError):
            result = json.loads((job.out / "result.json").read())
        owner = result.get("job") if isinstance(result, dict) else None
        job.peers.announce("finished", bool(owner) and owner == job.host.job_id)
    return bool(job.peers.await_("finished"))


def leave_slices(job: Job, code: ExitCode) -> ExitCode:
    """Leave the other slices and the hosts of this one; return the exit code."""
    assert job.slices is not None
    job.slices.leave(is_done=code == ExitCode.DONE)
    leave(job)
    return code
