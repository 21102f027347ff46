"""Local (emergency) checkpoints: every host keeps the newest state of its own chips on a RAM disk or local disk.

    <checkpoint.local_path>/xpk-<digest of the output's address>/s<slice>-h<host>/
        .saving-<step>/    being written, or interrupted
        .written-<step>/   complete on this host; unknown whether also on the others
        <step>/            written by all hosts, as each of them has reported to process 0

A host removes the previous checkpoint only after renaming the new one, so at any moment one step is on all hosts. After
a restart each host reports its complete checkpoints that match its chips. Training resumes from the newest step of
which the hosts together hold every part of a replica. A host that has lost its part receives it from a replica in
another slice, over the network. Checkpoints of an earlier run at the same address have another run id and are removed.
"""

# mypy: disallow-untyped-calls=False

import dataclasses
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from trainer.checkpoint import shards
from trainer.checkpoint.broadcast import assemble, broadcast
from trainer.checkpoint.shards import Pieces
from trainer.checkpoint.stores import manifest
from trainer.errors import FatalError, Problem, reason
from trainer.hosts import background
from trainer.hosts.background import Background
from trainer.hosts.job import Job
from trainer.hosts.own_work import OwnWork
from trainer.step.compiler import Compile
from trainer.step.programs import State
from trainer.step.update_sharding import dimension_of
from trainer.telemetry.metrics import say
from xpk_shared.storage import Place

_RUN_ID = "run-id"
_SAVING, _WRITTEN = ".saving-", ".written-"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclasses.dataclass(frozen=True, slots=True)
class CandidateCheckpoint:
    """A complete checkpoint of one host, with the parts that its chips need."""

    step: int
    session: str  # of the attempt that wrote it, because two attempts may have reached the same step
    committed: bool  # True if this host knows that all hosts have written it
    notes: dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class LocalCheckpoint:
    """A checkpoint of which the hosts together hold every part."""

    step: int
    session: str
    notes: dict[str, Any]
    sources: list[
        int
    ]  # for each position in a replica, the replica to read it from; empty: every host has its own part


class LocalTier:
    """The local checkpoints of one host; does nothing if `checkpoint.local_every` is 0."""

    def __init__(self, job: Job, notes: dict[str, Any], *, write: Callable[..., None] = shards.write) -> None:
        self.every, self._notes = job.config.checkpoint.local_every, notes
        self._write_pieces = write
        self._peers, self._events, self._host = job.peers, job.events, job.host
        self._out, self._session, self._run = job.out, "", ""
        digest = hashlib.sha256(str(job.out).encode()).hexdigest()[:16]
        self._stores = Path(job.config.checkpoint.local_path).expanduser() / f"xpk-{digest}"
        self._own = self._stores / f"s{job.host.slice_id}-h{job.host.worker_id}"
        self._own_stores = [self._own]  # stores that this host uses: its own, and those of hosts that moved away
        self._paths: dict[tuple[int, str], Path] = {}  # of the checkpoints that this host can restore
        self._complete: list[tuple[int, Path]] = []  # all checkpoints in its stores
        self._committing = Background("keep")
        self._own_work = OwnWork()
        if self.every:
            self._open()

    def _open(self) -> None:
        try:
            self._own.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"checkpoint.local_path: {error.filename} cannot be written: {reason(error)}"
            raise FatalError(Problem(message, "Use a folder that every host can write to")) from error

    @property
    def place(self) -> Path:
        """This host's own folder."""
        return self._own

    @property
    def busy(self) -> bool:
        """True if this host itself reads or writes, rather than waiting for others."""
        return self._own_work.busy

    def choose(self, mesh: Mesh, abstract: State) -> LocalCheckpoint | None:
        """Agree with all hosts on the newest local checkpoint that they can restore together, or None.

        Verifies checksums. `settle` removes checkpoints newer than the choice.
        """
        if not self.every:
            return None
        self._share_stores()
        with self._own_work:
            offers = self._offers(abstract)
        self._peers.report("local/offers", [dataclasses.asdict(offer) for offer in offers])
        if self._peers.process_id == 0:
            candidates = [
                [CandidateCheckpoint(**offer) for offer in offers] for offers in self._peers.collect("local/offers")
            ]
            shared = any(dimension_of(leaf.sharding.spec, "dp") is not None for leaf in jax.tree.leaves(abstract))
            holders = [[device.process_index for device in replica.flat] for replica in mesh.devices]
            checkpoint, missing_hosts = newest_common_checkpoint(candidates, holders, can_share=not shared)
            for step, missing in missing_hosts.items():
                names = ", ".join(self._host.name(process) for process in missing)
                say(f"warning: local checkpoint of step {step} is incomplete: missing on {names}")
            self._peers.announce("local/kept", None if checkpoint is None else dataclasses.asdict(checkpoint))
        chosen = self._peers.await_("local/kept")
        return None if chosen is None else LocalCheckpoint(**chosen)

    def settle(self, step: int) -> None:
        """Remove checkpoints newer than `step`, from which this attempt resumes."""
        with self._own_work:
            for other, path in self._complete:
                if other > step:
                    shutil.rmtree(path, ignore_errors=True)

    def restore(
        self, checkpoint: LocalCheckpoint, mesh: Mesh, abstract: State, compiler: Compile
    ) -> Callable[[], tuple[State, bool]]:
        """Start to read a local checkpoint; the returned function returns (state, whether this host had its part)."""
        path = self._paths.get((checkpoint.step, checkpoint.session))

        def read() -> list[shards.Placed]:
            with self._own_work:
                return [{} for _ in jax.tree.leaves(abstract)] if path is None else shards.read(path, abstract)

        result = background.start(read, "restore-local")

        def finish() -> tuple[State, bool]:
            if not checkpoint.sources:
                return assemble(result(), abstract), True
            source_devices = {
                mesh.devices[replica].flat[position] for position, replica in enumerate(checkpoint.sources)
            }
            return broadcast(result(), source_devices, mesh, abstract, compiler), path is not None

        return finish

    def save(self, step: int, state: State, **notes: Any) -> None:
        """Start to save `state`; return once it is copied off the chips, so that it may be donated.

        A failure loses only this checkpoint: the previous one stays on all hosts, and an event and a log line report
        it.
        """
        began = time.monotonic()
        self.wait()
        with self._own_work:
            pieces = shards.copy_pieces(state)
        blocked = time.monotonic() - began
        checkpoint_notes = self._notes | notes | {"run": self._run, "session": self._session}
        self._committing.begin(partial(self._commit, step, pieces, checkpoint_notes, began, blocked))

    def wait(self) -> None:
        """Wait for the save in progress."""
        self._committing.wait()

    def join(self, seconds: float) -> bool:
        """Wait up to this many seconds for the save in progress; return whether it has ended."""
        return self._committing.join(seconds)

    def clear(self) -> None:
        """Remove all checkpoints of this host after the run is complete."""
        self.wait()
        if not self.every:
            return
        with self._own_work:
            for store in self._own_stores:
                shutil.rmtree(store, ignore_errors=True)

    def _commit(
        self, step: int, pieces: Mapping[str, Pieces], notes: dict[str, Any], began: float, blocked: float
    ) -> None:
        with self._own_work:
            failure = self._write(step, pieces, notes)
        self._peers.report(f"local/{step}", failure)
        if self._peers.process_id == 0:
            self._peers.announce(f"kept/{step}", next(filter(None, self._peers.collect(f"local/{step}")), ""))
        failure = self._peers.await_(f"kept/{step}")
        try:
            with self._own_work:
                self._publish(step) if not failure else shutil.rmtree(self._written(step), ignore_errors=True)
        except OSError as error:  # it keeps its temporary name; the other hosts know that all hosts have it
            failure = reason(error)
        if failure:
            self._events.write("local_save_failed", step, reason=failure)
            if self._peers.process_id == 0:
                say(f"warning: local checkpoint of step {step} not saved in {self._own}: {failure}")
            return
        taken = time.monotonic() - began
        self._events.write("local_save", step, taken, blocked=round(blocked, 4), bytes=shards.size(pieces))

    def _write(self, step: int, pieces: Mapping[str, Pieces], notes: dict[str, Any]) -> str:
        """Write this host's part; return the reason of a failure, or ""."""
        saving, written = self._own / f"{_SAVING}{step}", self._written(step)
        try:
            for path in (saving, written):
                shutil.rmtree(path, ignore_errors=True)
            self._write_pieces(saving, pieces, notes)
            os.replace(saving, written)
        except OSError as error:
            shutil.rmtree(saving, ignore_errors=True)
            return f"{self._host.name(self._peers.process_id)}: {reason(error)}"
        return ""

    def _written(self, step: int) -> Path:
        return self._own / f"{_WRITTEN}{step}"

    def _publish(self, step: int) -> None:
        """Rename a checkpoint that all hosts have written, and remove the previous one."""
        final = self._own / str(step)
        shutil.rmtree(final, ignore_errors=True)  # of another attempt, from which this one did not resume
        os.replace(self._written(step), final)
        for store in self._own_stores:
            for path in _folders(store):
                if path != final:
                    shutil.rmtree(path, ignore_errors=True)

    def _share_stores(self) -> None:
        """Agree on the run's id, this attempt's name, and the stores that each host may use.

        A host that starts on another host's node finds that host's store there.
        """
        with self._own_work:
            stores = {path.name: _identity(path) for path in self._stores.iterdir() if path.is_dir()}
            run = _run_id(self._out) if self._peers.process_id == 0 else ""
        self._peers.report("local/stores", stores)
        if self._peers.process_id == 0:
            names = [f"s{n // self._host.hosts_per_slice}-h{n % self._host.hosts_per_slice}" for n in self._processes()]
            shares = assign_stores(names, self._peers.collect("local/stores"))
            self._peers.announce("local/shares", [run, uuid.uuid4().hex, shares])
        self._run, self._session, shares = self._peers.await_("local/shares")
        others = [self._stores / name for name in shares[self._peers.process_id]]
        self._own_stores = [self._own, *(path for path in others if path != self._own)]

    def _processes(self) -> range:
        return range(self._peers.processes)

    def _offers(self, abstract: State) -> list[CandidateCheckpoint]:
        """Scan this host's stores, remove useless checkpoints, and return those that are complete and fit.

        Of several from one save, the first one is read: this host's own store comes first.
        """
        offers: dict[tuple[int, str], CandidateCheckpoint] = {}
        for path in (path for store in self._own_stores for path in _folders(store)):
            step, notes = _step(path), _notes(path)
            if step is None or notes is None or notes.get("run") != self._run:
                self._discard(path, step, "" if step is None or notes else f"{manifest.MANIFEST} is damaged")
                continue
            if damage := _damage(path):
                self._discard(path, step, damage)
                continue
            self._complete.append((step, path))
            if shards.covers(notes, abstract):
                key = step, str(notes.get("session"))
                self._paths.setdefault(key, path)
                known = {name: value for name, value in notes.items() if name in self._notes or name == "tokens"}
                is_committed = not path.name.startswith(".") or (key in offers and offers[key].committed)
                offers[key] = CandidateCheckpoint(*key, is_committed, known)
            else:
                self._events.write("local_skipped", step, reason="different mesh or model")
                if self._peers.process_id == 0:
                    say(f"warning: local checkpoint {path} has a different mesh or model and is ignored")
        return list(offers.values())

    def _discard(self, path: Path, step: int | None, damage: str) -> None:
        if damage:
            self._events.write("local_skipped", step, reason=damage)
            say(f"warning: local checkpoint {path} is damaged and ignored: {damage}")
        shutil.rmtree(path, ignore_errors=True)


def newest_common_checkpoint(
    offers: Sequence[Sequence[CandidateCheckpoint]], holders: Sequence[Sequence[int]], *, can_share: bool
) -> tuple[LocalCheckpoint | None, dict[int, list[int]]]:
    """Return the newest checkpoint that the hosts can restore together, and the missing hosts of newer ones by step.

    `offers` are the candidates of each process; `holders` has for every replica the process at each of its positions.
    Without `can_share` every host needs its own part, because replicas hold different parts. A checkpoint counts only
    if all hosts have written it: one of them has recorded that, or all have it.
    """
    hosts_by_checkpoint: dict[tuple[int, str], dict[int, CandidateCheckpoint]] = {}
    for process, offered in enumerate(offers):
        for offer in offered:
            hosts_by_checkpoint.setdefault((offer.step, offer.session), {})[process] = offer
    missing_hosts: dict[int, list[int]] = {}
    for (step, session), candidates_by_host in sorted(hosts_by_checkpoint.items(), reverse=True):
        notes = next(iter(candidates_by_host.values())).notes
        if len(candidates_by_host) == len(offers):
            return LocalCheckpoint(step, session, notes, []), missing_hosts
        if not any(offer.committed for offer in candidates_by_host.values()):
            continue
        sources = [
            next((n for n, replica in enumerate(holders) if replica[position] in candidates_by_host), -1)
            for position in range(len(holders[0]))
        ]
        if can_share and -1 not in sources:
            return LocalCheckpoint(step, session, notes, sources), missing_hosts
        missing_hosts[step] = [process for process in range(len(offers)) if process not in candidates_by_host]
    return None, missing_hosts


def assign_stores(names: Sequence[str], seen: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """Return the stores that each process may use, given the hosts' names and the stores that each process sees.

    Hosts may share a disk. A store belongs to the host of the same name if that host sees it; else to the host with the
    same index in another slice, which holds the same part; else to the first host that sees it.
    """
    shares: list[list[str]] = [[] for _ in names]
    for name, identity in dict.fromkeys(store for stores in seen for store in stores.items()):
        index = name.partition("-")[2]
        _, _, owner = min(
            (own != name, own.partition("-")[2] != index, process)
            for process, own in enumerate(names)
            if seen[process].get(name) == identity
        )
        shares[owner].append(name)
    return shares


def _folders(store: Path) -> list[Path]:
    return sorted(path for path in store.glob("*") if path.is_dir()) if store.is_dir() else []


def _step(path: Path) -> int | None:
    """Return the step of a checkpoint that this host has completely written, or None."""
    return manifest.read_step(path.name.removeprefix(_WRITTEN))


def _damage(path: Path) -> str:
    """Return the defect of a folder, or "". An unreadable one counts as lost, because other slices hold copies."""
    try:
        return manifest.damage(path)
    except OSError as error:
        return f"{error.filename or path} cannot be read: {error.strerror}"


def _notes(path: Path) -> dict[str, Any] | None:
    try:
        content = (path / manifest.MANIFEST).read_bytes()
    except OSError:
        return None
    return manifest.notes(content) if manifest.read_manifest(content) is not None else None


def _identity(path: Path) -> str:
    """Return a name for a folder that is unique over machines."""
    boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
    stat = path.stat()
    return f"{boot}/{stat.st_dev}/{stat.st_ino}"


def has_started(out: Place) -> bool:
    """Return whether a run with a local tier has started in an output folder; its nodes may have checkpoints."""
    return (out / _RUN_ID).is_file() or bool((out / _RUN_ID).slot().look()[0])


def _run_id(out: Place) -> str:
    """Return the id of the run in an output folder; create one if there is none, for example after it was emptied."""
    place = out / _RUN_ID
    if place.is_file():  # in a bucket, and from older versions
        return str(place.read().decode())
    slot = place.slot()
    version, content = slot.look()
    if not content:
        content = uuid.uuid4().hex.encode()
        try:
            slot.put(content, version)
        except FileExistsError:  # an attempt that has begun at the same time has created it
            _, content = slot.look()
    return content.decode()
