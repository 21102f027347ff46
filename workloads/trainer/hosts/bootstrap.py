"""This host's place in the job, and `jax.distributed` start-up.

Reading the environment does not need JAX; `join` does.
"""

# mypy: disallow-untyped-calls=False

import contextlib
import dataclasses
import errno
import math
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from trainer.errors import AddressError, FatalError, PeerAbsent, Problem
from trainer.hosts.coordinator_tls import credentials
from trainer.hosts.peers import Peers
from trainer.hosts.time_limits import JOIN_START
from xpk_shared.links.connection import listen
from xpk_shared.supervisor.names import MIN_SLICES, REGISTRY

_POLL_SECONDS = 0.01
_STALE_SECONDS, _LOOK_SECONDS = 60.0, 0.5
_LISTENING = "coordinator"  # key that process 0 announces once its service listens
_SECRET_VARIABLE, _SECRET_BYTES = "XPK_PEER_SECRET_FILE", 32
_HINT = "Start hosts with `xpk workload create`, or unset these variables to run on one host"


@dataclasses.dataclass(frozen=True, slots=True)
class Host:
    """This host's place in the job, from its environment."""

    num_slices: int = 1
    slice_id: int = 0
    hosts_per_slice: int = 1
    worker_id: int = 0
    coordinator: str = ""  # host:port, empty when running alone
    attempt: int = 0
    output_dir: str = ""
    workload: str = ""
    job_id: str = ""  # distinguishes jobs of the same name; empty if nothing sets it
    in_place: str = "0"  # restarts in place since the host was created, which `attempt` includes
    secret: bytes = dataclasses.field(default=b"", repr=False)  # shared by all hosts of the job
    min_slices: int = 0  # of elastic slices: number of slices with which the run continues; 0: slices are not elastic
    registry: str = ""  # host:port of the registry of elastic slices

    @property
    def is_elastic(self) -> bool:
        """True if every slice is a JAX world of its own, whose processes are those of this slice."""
        return self.min_slices > 0

    @property
    def joined_slices(self) -> int:
        """Number of slices that JAX joins."""
        return 1 if self.is_elastic else self.num_slices

    @property
    def replicas(self) -> int:
        """Number of virtual replicas, each of which has a share of the batch; 1 without elastic slices."""
        return self.num_slices // self.joined_slices

    @property
    def processes(self) -> int:
        """Number of processes that JAX joins."""
        return self.joined_slices * self.hosts_per_slice

    @property
    def process_id(self) -> int:
        """This host's index among them."""
        return (0 if self.is_elastic else self.slice_id) * self.hosts_per_slice + self.worker_id

    def name(self, process_id: int) -> str:
        """Return a process's name for people: its slice and its host in it."""
        slice_id = self.slice_id if self.is_elastic else process_id // self.hosts_per_slice
        return f"slice {slice_id} host {process_id % self.hosts_per_slice}"


def read_host(environ: Mapping[str, str]) -> Host:
    """Read the environment that docs/environment.md describes; without any of it, return a job of one host.

    Raises FatalError naming every variable that is missing or malformed.
    """
    attempt, output_dir = environ.get("XPK_RESTART_ATTEMPT") or "0", environ.get("XPK_OUTPUT_DIR", "")
    numbers = ("MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID", "XPK_HOSTS_PER_SLICE", "TPU_WORKER_ID")
    if not any(environ.get(name) for name in (*numbers[:3], "XPK_COORDINATOR_ADDRESS")):
        return Host(attempt=int(attempt) if attempt.isdigit() else 0, output_dir=output_dir)
    problems, values = [], []
    for name, text in [
        *((name, environ.get(name, "")) for name in numbers),
        ("XPK_RESTART_ATTEMPT", attempt),
    ]:
        if not text.isdigit():
            what = f"is {text!r}, not a number" if text else "is not set"
            problems.append(Problem(f"environment variable {name} {what}", _HINT))
        values.append(int(text) if text.isdigit() else 0)
    coordinator = environ.get("XPK_COORDINATOR_ADDRESS", "")
    name, _, port = coordinator.rpartition(":")
    if not name or not port.isdigit():
        message = f"environment variable XPK_COORDINATOR_ADDRESS is {coordinator!r}, not host:port"
        problems.append(Problem(message, _HINT))
    num_slices, slice_id, hosts_per_slice, worker_id, number = values
    if not problems and not (slice_id < num_slices and worker_id < hosts_per_slice):
        message = f"slice {slice_id} of {num_slices}, host {worker_id} of {hosts_per_slice} is out of range"
        problems.append(Problem(message, "Slice and host indices start at 0"))
    secret = b""
    try:
        secret = _read_secret(environ.get(_SECRET_VARIABLE, ""))
    except OSError as error:
        message = f"environment variable {_SECRET_VARIABLE}: cannot read {error.filename!r}: {error.strerror}"
        problems.append(Problem(message, _HINT))
    if problems:
        raise FatalError(*problems)
    names = environ.get("XPK_WORKLOAD", ""), environ.get("XPK_JOB_ID", "")
    in_place = environ.get("XPK_RESTARTS_IN_PLACE") or "0"
    host = Host(
        num_slices, slice_id, hosts_per_slice, worker_id, coordinator, number, output_dir, *names, in_place, secret
    )
    return _elastic(host, environ) if environ.get(MIN_SLICES) else host


def _elastic(host: Host, environ: Mapping[str, str]) -> Host:
    """Return a host of elastic slices: its coordinator is the first host of its slice. Raises FatalError."""
    first, _, _ = environ.get("TPU_WORKER_HOSTNAMES", "").partition(",")
    registry, minimum = environ.get(REGISTRY, ""), environ[MIN_SLICES]
    if not first or not registry or not minimum.isdigit() or not 0 < int(minimum) <= host.num_slices:
        message = f"environment variables {MIN_SLICES}, {REGISTRY} and TPU_WORKER_HOSTNAMES are incomplete or invalid"
        raise FatalError(Problem(message, _HINT))
    coordinator = f"{first}:{host.coordinator.rpartition(':')[2]}"
    return dataclasses.replace(host, coordinator=coordinator, min_slices=int(minimum), registry=registry)


def _read_secret(file: str) -> bytes:
    """Return the secret in a file, or b"" without a file. Raises OSError, also if it is too short."""
    secret = Path(file).read_bytes().strip() if file else b""
    if file and len(secret) < _SECRET_BYTES:
        raise OSError(errno.EINVAL, f"{len(secret)} bytes, expected at least {_SECRET_BYTES}", file)
    return secret


def resolve(coordinator: str, timeout: float, say: Callable[[str], None]) -> tuple[str, int]:
    """Wait until the coordinator's name resolves; return its address and port.

    A pod's DNS name appears some seconds after the pod. Raises PeerAbsent after `timeout` seconds.
    """
    name, _, port = coordinator.rpartition(":")
    began, is_reported = time.monotonic(), False
    while True:
        try:
            addresses = socket.getaddrinfo(name.strip("[]"), int(port), type=socket.SOCK_STREAM)
            return str(addresses[0][4][0]), int(port)
        except socket.gaierror as error:
            waited = time.monotonic() - began
            if waited > timeout:
                raise PeerAbsent(f"the coordinator's name {name!r} did not resolve within {timeout:.0f} s") from error
            if waited > 2 and not is_reported:
                say(f"waiting for the name {name!r} of slice 0 host 0 to resolve (up to {timeout:.0f} s)")
                is_reported = True
            time.sleep(0.2)


def own_address(resolve_again: Callable[[], tuple[str, int]]) -> tuple[str, int]:
    """Return process 0's own address and port, as its name resolves. Raises AddressError if they cannot be bound.

    DNS caches (half a minute is usual) may still have the previous attempt's address, so the name is resolved again.
    """
    deadline = time.monotonic() + _STALE_SECONDS
    while True:
        addresses = resolve_again()
        try:
            listen(*addresses).close()
        except AddressError as error:
            cause = error.__cause__
            is_stale = isinstance(cause, OSError) and cause.errno == errno.EADDRNOTAVAIL
            if not is_stale or time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_SECONDS)
        else:
            return addresses


def bracketed(address: str, port: int) -> str:
    """Return address:port, with an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _announce_when_listening(address: str, port: int, peers: Peers, seconds: float) -> None:
    """Announce that the coordinator's service listens; runs on a thread of process 0."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            socket.create_connection((address, port), timeout=seconds).close()
            break
        time.sleep(_POLL_SECONDS)
    peers.announce(_LISTENING, None)
    peers.await_(_LISTENING)


def join(host: Host, address: str, port: int, peers: Peers, seconds: float = JOIN_START) -> None:
    """Start jax.distributed with explicit arguments, among hosts that are connected by `peers`, in so many seconds.

    No host connects before process 0 listens, because a gRPC client whose first attempt fails waits for a second.
    Cluster auto-detection is disabled, because it can hang outside Google Cloud. Process 0 binds to one address only:
    several jobs on one machine use the same port on different loopback addresses.
    """
    import jax

    if host.process_id == 0:
        threading.Thread(
            target=_announce_when_listening, args=(address, port, peers, seconds), name="listens", daemon=True
        ).start()
    else:
        peers.await_(_LISTENING)
    # The trainer handles SIGTERM itself, without an RPC; JAX's notifier would intercept the signal.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        coordinator_address=bracketed(address, port),
        num_processes=host.processes,
        process_id=host.process_id,
        initialization_timeout=math.ceil(seconds),
        # Only a fallback: peers.py detects dead hosts at once and hung hosts sooner, and exits with a more specific
        # code than JAX's abort.
        heartbeat_timeout_seconds=60,
        coordinator_bind_address=bracketed(address, port),
        cluster_detection_method="deactivate",
        **credentials(host, jax.distributed.initialize),
    )
