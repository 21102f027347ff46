"""The lease: which cluster may run a workload of several clusters. It is a file beside the workload's output.

Each version is written over the one that was read (compare-and-swap), so any number of programs may decide at a time.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Lease:
    """A decision where a workload runs. The number `epoch` increases with each decision for a cluster."""

    run: str  # identifies the copies of one `workload create`
    epoch: int
    cluster: str
    since: float | None = None  # time since which its released copy waits, in Unix seconds; None if it does not
    moves: int = 0  # to other clusters since it last ran
    end: str = ""  # why nothing is released any more; "" until then


class LeaseFile(Protocol):
    """A file with versions, as `xpk_shared.storage.Slot`; version 0 means that it does not exist."""

    def look(self) -> tuple[int, bytes]:
        """Return version and content."""

    def put(self, content: bytes, over: int) -> int:
        """Write over a version and return the new one. Raises FileExistsError if there is another version."""


def read(file: LeaseFile) -> tuple[int, Lease | None]:
    """Return the version of the lease and the lease, None if there is none that can be understood."""
    version, content = file.look()
    return version, decode(content)


def write(file: LeaseFile, lease: Lease, over: int) -> bool:
    """Write the lease over a version; return False if it was modified concurrently."""
    # Each write is unique, so that a bucket recognizes a request whose response was lost.
    content = json.dumps(asdict(lease) | {"write": secrets.token_hex(8)}).encode()
    try:
        file.put(content, over)
    except FileExistsError:
        return False
    return True


def decode(content: bytes) -> Lease | None:
    """Return the lease in a file, which anyone with access to the bucket may have written; None if it is none."""
    try:
        fields = json.loads(content)
        since = fields["since"]
        return Lease(
            run=str(fields["run"]),
            epoch=int(fields["epoch"]),
            cluster=str(fields["cluster"]),
            since=None if since is None else float(since),
            moves=int(fields["moves"]),
            end=str(fields["end"]),
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
