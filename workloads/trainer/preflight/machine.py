"""Checks of a host that need neither chips nor the other hosts: its name service, its folders and its clock."""

import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from trainer.errors import FatalError, reason
from trainer.hosts.bootstrap import resolve
from trainer.hosts.peers import Peers
from trainer.preflight.checks import Check, Result
from trainer.storage import open_place
from xpk_shared.links.errors import PeerAbsent
from xpk_shared.storage import Place

_DNS_SECONDS = 60.0  # a pod's name appears some seconds after the pod
_FILE_BYTES = 4 << 20
_ROUNDS = 3  # comparisons of clocks, of which the fastest counts
_MAX_OFFSET_SECONDS = 1.0  # between two clocks


def check_name(coordinator: str, say: Callable[[str], None], timeout: float = _DNS_SECONDS) -> Result:
    """Return whether and how fast the coordinator's name (host:port) resolves."""
    began, name = time.monotonic(), coordinator.rpartition(":")[0]
    try:
        resolve(coordinator, timeout, say)
    except PeerAbsent as error:
        return Result(check=Check.DNS, problem=str(error))
    return Result(check=Check.DNS, value=round(time.monotonic() - began, 4), unit="s", detail=name)


def check_storage(address: str, name: str, read: Callable[[Path], bytes] = Path.read_bytes) -> Result:
    """Return whether a folder or bucket returns 4 MiB that this host writes; `name` is unique to the host."""
    began = time.monotonic()
    try:
        place = open_place(address)
        if place.path is not None:
            _check_folder(place.path / f".preflight-{name}", read)
        else:
            _check_bucket(place / "preflight" / name)
    except FatalError as error:
        return Result(check=Check.DISK, problem="; ".join(problem.message for problem in error.problems))
    except OSError as error:
        return Result(check=Check.DISK, problem=f"{address}: {reason(error)}")
    return Result(check=Check.DISK, value=round(time.monotonic() - began, 4), unit="s", detail=address)


def _check_folder(file: Path, read: Callable[[Path], bytes]) -> None:
    """Write a file to the disk and read it back from there. Raises OSError."""
    content = secrets.token_bytes(_FILE_BYTES)
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with file.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # read from the disk, not from memory
        _compare(content, read(file))
    finally:
        with suppress(OSError):
            file.unlink()


def _check_bucket(folder: Place) -> None:
    content = secrets.token_bytes(_FILE_BYTES)
    try:
        (folder / "file").write(content)
        _compare(content, (folder / "file").read())
    finally:
        with suppress(OSError):
            folder.remove_tree("")


def _compare(written: bytes, read: bytes) -> None:
    if written != read:
        raise OSError(f"returns other bytes than the {len(written):,} that were written")


def compare_clocks(peers: Peers, wall_clock: Callable[[], float] = time.time) -> list[Result]:
    """Compare the clocks of all hosts; every host calls this at the same point. Return all results on process 0.

    Process 0 notes its clock before it asks and after all hosts have answered. The offset of an answer to the middle
    of both is then exact to half of their difference (Cristian, Distributed Computing 3, 1989).
    """
    best: tuple[float, list[float]] = (float("inf"), [])
    for number in range(_ROUNDS):
        key = f"clock/{number}"
        asked = wall_clock()
        if peers.process_id == 0:
            peers.announce(key, None)
        peers.await_(key)
        peers.report(key, wall_clock())
        if peers.process_id == 0:
            times = peers.collect(key)
            half = (wall_clock() - asked) / 2
            best = min(best, (half, [at - asked - half for at in times]))
    return [clock_result(offset if process else 0.0, best[0]) for process, offset in enumerate(best[1])]


def clock_result(offset: float, uncertainty: float) -> Result:
    """Return the result for an offset that is known to within an uncertainty, both in seconds."""
    problem = ""
    if abs(offset) - uncertainty > _MAX_OFFSET_SECONDS:
        problem = f"differs by {offset:.3f} s from slice 0 host 0, at most {_MAX_OFFSET_SECONDS:g} s is allowed"
    detail = f"to within {uncertainty:.4f} s"
    return Result(check=Check.CLOCK, problem=problem, value=round(offset, 4), unit="s", detail=detail)
