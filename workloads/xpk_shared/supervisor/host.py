"""This host's place in the job, from its environment, and its log lines."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from xpk_shared.supervisor.names import COORDINATOR, FATAL, GRACE, LIMIT, MIN_SLICES, PORT, REGISTRY, SLICE_ATTEMPT

_OWN = (LIMIT, FATAL, PORT, GRACE)  # variables that the command does not get
_GRACE_SECONDS = 30.0  # Kubernetes' default
_PORT_OFFSET = 2  # from the coordinator's; the port between is the bundled trainer's


@dataclass(frozen=True)
class ElasticSlices:
    """The slices of an elastic workload, each of which has supervisors of its own."""

    num_slices: int
    min_slices: int
    own: int  # this host's slice
    registry: str  # host:port


@dataclass(frozen=True)
class Host:
    """One host of a group: all hosts of the job, or those of one slice if slices are elastic.

    The first host of the group listens at `address` and `port`.
    """

    number: int  # in the group
    hosts: int
    hosts_per_slice: int
    address: str
    port: int
    job: str
    attempt: int  # of the JobSet, when this host's pod was created
    secret_file: str
    max_restarts: int | None = None  # in place; None: the command is not restarted in place
    fatal_codes: frozenset[int] = frozenset()  # exit codes after which the command is not restarted
    output_dir: str = ""
    elastic: ElasticSlices | None = None
    slice_attempt: int | None = None  # how often its slice was replaced; None: all slices get new pods together
    grace_seconds: float = _GRACE_SECONDS  # from SIGTERM to SIGKILL for a host that is asked to end

    @property
    def replaces_slices(self) -> bool:
        """True if Kubernetes replaces only the slice of a disrupted host, and the other hosts wait for it."""
        return self.slice_attempt is not None and self.max_restarts is not None and not self.elastic

    def is_beside(self, number: int) -> bool:
        """Return whether a host of the group is in the same slice as this one."""
        return number // self.hosts_per_slice == self.number // self.hosts_per_slice

    def name(self, number: int) -> str:
        """Return the name of a host of the group in messages."""
        return "s{}/h{}".format(*self.place(number))

    def place(self, number: int) -> tuple[int, int]:
        """Return the slice of a host of the group and its index in the slice."""
        slice_id, index = divmod(number, self.hosts_per_slice)
        return self._first_slice + slice_id, index

    def number_of(self, place: tuple[int, int] | None) -> int | None:
        """Return the number of the host at a place, None if the group has none there."""
        if place is None or place[1] >= self.hosts_per_slice:
            return None
        number = (place[0] - self._first_slice) * self.hosts_per_slice + place[1]
        return number if 0 <= number < self.hosts else None

    @property
    def group(self) -> tuple[str, ...]:
        """Name of the group: hosts of different groups do not connect to each other."""
        return (self.job, str(self.elastic.own)) if self.elastic else (self.job,)

    @property
    def _first_slice(self) -> int:
        return self.elastic.own if self.elastic else 0

    @property
    def own_address(self) -> str:
        """Address at which the first host listens."""
        return address_to_listen(self.address)

    def read_secret(self) -> bytes:
        """Return the workload's secret, b"" if it cannot be read."""
        try:
            return Path(self.secret_file).read_bytes().strip()
        except OSError as error:
            say(f"cannot read {self.secret_file} ({error.strerror}); lost hosts will be detected late")
            return b""

    def environment(self, environ: Mapping[str, str], restarts: int, first_address: str = "") -> dict[str, str]:
        """Return the command's environment after this number of restarts in place.

        A restart in place changes no address, so the first host's replaces its name: DNS may not answer.
        """
        if self.max_restarts is None:
            return dict(environ)
        changed = {"XPK_RESTART_ATTEMPT": str(self.attempt + restarts), "XPK_RESTARTS_IN_PLACE": str(restarts)}
        if restarts and first_address and not self.elastic:  # of elastic slices it is another host of each slice
            port = environ[COORDINATOR].rpartition(":")[2]
            changed[COORDINATOR] = f"[{first_address}]:{port}" if ":" in first_address else f"{first_address}:{port}"
        return {**{name: text for name, text in environ.items() if name not in _OWN}, **changed}


def read_host(environ: Mapping[str, str]) -> Host | None:
    """Return this host from the variables in docs/environment.md; None without them."""
    try:
        hosts_per_slice = int(environ["XPK_HOSTS_PER_SLICE"])
        address, _, port = environ[COORDINATOR].rpartition(":")
        elastic = _read_elastic(environ)
        slice_id, num_slices = int(environ["MEGASCALE_SLICE_ID"]), int(environ["MEGASCALE_NUM_SLICES"])
        return Host(
            number=(0 if elastic else slice_id) * hosts_per_slice + int(environ["TPU_WORKER_ID"]),
            hosts=(1 if elastic else num_slices) * hosts_per_slice,
            hosts_per_slice=hosts_per_slice,
            address=environ["TPU_WORKER_HOSTNAMES"].partition(",")[0] if elastic else address,
            port=int(environ.get(PORT) or int(port) + _PORT_OFFSET),
            job=environ["XPK_JOB_ID"],
            attempt=int(environ["XPK_RESTART_ATTEMPT"]),
            secret_file=environ["XPK_PEER_SECRET_FILE"],
            max_restarts=int(environ[LIMIT]) if environ.get(LIMIT) else None,
            fatal_codes=frozenset(map(int, environ.get(FATAL, "").split())),
            output_dir=environ.get("XPK_OUTPUT_DIR", ""),
            elastic=elastic,
            slice_attempt=int(environ[SLICE_ATTEMPT]) if environ.get(SLICE_ATTEMPT) else None,
            grace_seconds=float(environ.get(GRACE) or _GRACE_SECONDS),
        )
    except (KeyError, ValueError):
        return None


def _read_elastic(environ: Mapping[str, str]) -> ElasticSlices | None:
    """Return the elastic slices; None if slices are not elastic. Raises KeyError or ValueError."""
    if not environ.get(MIN_SLICES):
        return None
    return ElasticSlices(
        num_slices=int(environ["MEGASCALE_NUM_SLICES"]),
        min_slices=int(environ[MIN_SLICES]),
        own=int(environ["MEGASCALE_SLICE_ID"]),
        registry=environ[REGISTRY],
    )


def address_to_listen(name: str) -> str:
    """Return the address at which a host of this name listens.

    "" for all, because its name may not resolve to its new pod yet. Hosts of a local cluster have addresses instead.
    """
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            socket.inet_pton(family, name)
            return name
    return ""


def say(text: str) -> None:
    """Print a line to stderr, among the command's own output.

    Not through `sys.stderr`: Python aborts at its end if a thread still holds the lock of a buffered file.
    """
    with contextlib.suppress(OSError):  # nobody reads it any more
        os.write(2, f"xpk: {text}\n".encode(errors="backslashreplace"))
