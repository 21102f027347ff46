"""Local (emergency) checkpoints: every host keeps the newest state of its own chips on a RAM disk or local disk.

    <checkpoint.local_path>/xpk-<digest of the output's address>/s<slice>-h<host>/
        .saving-<step>/    being written, or cut off
        .written-<step>/   complete on this host; unknown whether also on the others
        <step>/            written by all hosts: process 0 has heard so from each of them

A host removes the previous checkpoint only after renaming the new one, so at any moment one step is on all hosts. After
a restart each host reports its complete checkpoints that fit its chips; the newest step wins for which every place of a
replica is on some host. A host that has lost its part gets it from a replica in another slice, over the network.
Checkpoints of an earlier run at the same address have another run id and are removed.
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
from trainer.checkpoint.broadcast import assemble, spread
from trainer.checkpoint.shards import Pieces
from trainer.checkpoint.shelves import manifest
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
    session: str  # of the attempt that wrote it, as two attempts may have reached the same step
    committed: bool  # True if this host knows that all hosts have written it
    notes: dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class LocalCheckpoint:
    """A checkpoint that is complete over all hosts."""

    step: int
    session: str
    notes: dict[str, Any]
    sources: list[int]  # for each place in a replica, the replica to get it from; empty: every host has its own


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
        self._mine = [self._own]  # stores that this host uses: its own, and those of hosts that moved away
        self._paths: dict[tuple[int, str], Path] = {}
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
        """Agree with all hosts on the newest local checkpoint that is complete over them, or None.

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
            kept, lacking = newest_common_checkpoint(candidates, holders, peers_help=not shared)
            for step, missing in lacking.items():
                lost = ", ".join(self._host.name(process) for process in missing)
                say(f"warning: local checkpoint of step {step} is incomplete: {lost} lost their part")
            self._peers.announce("local/kept", None if kept is None else dataclasses.asdict(kept))
        chosen = self._peers.await_("local/kept")
        return None if chosen is None else LocalCheckpoint(**chosen)

    def settle(self, step: int) -> None:
        """Remove checkpoints after `step`, which this attempt resumes from: they are another attempt's future."""
        with self._own_work:
            for (other, _), path in self._paths.items():
                if other > step:
                    shutil.rmtree(path, ignore_errors=True)

    def restore(
        self, kept: LocalCheckpoint, mesh: Mesh, abstract: State, compiler: Compile
    ) -> Callable[[], tuple[State, bool]]:
        """Start to read a local checkpoint; the returned function returns (state, whether this host had its part)."""
        path = self._paths.get((kept.step, kept.session))

        def read() -> list[shards.Placed]:
            with self._own_work:
                return [{} for _ in jax.tree.leaves(abstract)] if path is None else shards.read(path, abstract)

        result = background.start(read, "restore-local")

        def finish() -> tuple[State, bool]:
            if not kept.sources:
                return assemble(result(), abstract), True
            givers = {mesh.devices[replica].flat[place] for place, replica in enumerate(kept.sources)}
            return spread(result(), givers, mesh, abstract, compiler), path is not None

        return finish

    def save(self, step: int, state: State, **notes: Any) -> None:
        """Start to save `state`; return once it is copied off the chips, so that it may be donated.

        A failure costs only this checkpoint: the previous one stays on all hosts, and an event and a line report it.
        """
        began = time.monotonic()
        self.wait()
        with self._own_work:
            held = shards.copied(state)
        blocked = time.monotonic() - began
        about = self._notes | notes | {"run": self._run, "session": self._session}
        self._committing.begin(partial(self._commit, step, held, about, began, blocked))

    def wait(self) -> None:
        """Wait for the save in progress."""
        self._committing.wait()

    def ended(self, seconds: float) -> bool:
        """Wait up to this many seconds for the save in progress; return whether it has ended."""
        return self._committing.ended(seconds)

    def clear(self) -> None:
        """Remove all checkpoints of this host, as the run is complete."""
        self.wait()
        if not self.every:
            return
        with self._own_work:
            for store in self._mine:
                shutil.rmtree(store, ignore_errors=True)

    def _commit(
        self, step: int, held: Mapping[str, Pieces], notes: dict[str, Any], began: float, blocked: float
    ) -> None:
        with self._own_work:
            failure = self._write(step, held, notes)
        self._peers.report(f"local/{step}", failure)
        if self._peers.process_id == 0:
            self._peers.announce(f"kept/{step}", next(filter(None, self._peers.collect(f"local/{step}")), ""))
        failure = self._peers.await_(f"kept/{step}")
        try:
            with self._own_work:
                self._promote(step) if not failure else shutil.rmtree(self._written(step), ignore_errors=True)
        except OSError as error:  # it keeps its name; the others know that all hosts have it
            failure = reason(error)
        if failure:
            self._events.write("local_save_failed", step, reason=failure)
            if self._peers.process_id == 0:
                say(f"warning: local checkpoint of step {step} not kept in {self._own}: {failure}")
            return
        taken = time.monotonic() - began
        self._events.write("local_save", step, taken, blocked=round(blocked, 4), bytes=shards.size(held))

    def _write(self, step: int, held: Mapping[str, Pieces], notes: dict[str, Any]) -> str:
        """Write this host's part; return the reason of a failure, or ""."""
        saving, written = self._own / f"{_SAVING}{step}", self._written(step)
        try:
            for path in (saving, written):
                shutil.rmtree(path, ignore_errors=True)
            self._write_pieces(saving, held, notes)
            os.replace(saving, written)
        except OSError as error:
            shutil.rmtree(saving, ignore_errors=True)
            return f"{self._host.name(self._peers.process_id)}: {reason(error)}"
        return ""

    def _written(self, step: int) -> Path:
        return self._own / f"{_WRITTEN}{step}"

    def _promote(self, step: int) -> None:
        """Rename a checkpoint that all hosts have written, and remove the previous one."""
        final = self._own / str(step)
        shutil.rmtree(final, ignore_errors=True)  # of another attempt, which this one did not resume from
        os.replace(self._written(step), final)
        for store in self._mine:
            for path in _folders(store):
                if path != final:
                    shutil.rmtree(path, ignore_errors=True)

    def _share_stores(self) -> None:
        """Agree on the run's id, this attempt's name, and the stores that each host may use.

        A host that starts on another host's node finds that host's store there.
        """
        with self._own_work:
            seen = {path.name: _identity(path) for path in self._stores.iterdir() if path.is_dir()}
            run = _run_id(self._out) if self._peers.process_id == 0 else ""
        self._peers.report("local/stores", seen)
        if self._peers.process_id == 0:
            names = [f"s{n // self._host.hosts_per_slice}-h{n % self._host.hosts_per_slice}" for n in self._processes()]
            shares = assign_stores(names, self._peers.collect("local/stores"))
            self._peers.announce("local/shares", [run, uuid.uuid4().hex, shares])
        self._run, self._session, shares = self._peers.await_("local/shares")
        others = [self._stores / name for name in shares[self._peers.process_id]]
        self._mine = [self._own, *(path for path in others if path != self._own)]

    def _processes(self) -> range:
        return range(self._peers.processes)

    def _offers(self, abstract: State) -> list[CandidateCheckpoint]:
        """Scan this host's stores, remove useless checkpoints, and return those that are complete and fit."""
        offers = []
        for path in (path for store in self._mine for path in _folders(store)):
            step, notes = _step(path), _notes(path)
            if step is None or notes is None or notes.get("run") != self._run:
                self._lost(path, step, "" if step is None or notes else f"{manifest.MANIFEST} is damaged")
                continue
            if damage := _damage(path):
                self._lost(path, step, damage)
                continue
            session = str(notes.get("session"))
            self._paths[step, session] = path
            if shards.covers(notes, abstract):
                known = {key: value for key, value in notes.items() if key in self._notes or key == "tokens"}
                offers.append(CandidateCheckpoint(step, session, not path.name.startswith("."), known))
            else:
                self._events.write("local_skipped", step, reason="of another mesh or model")
                if self._peers.process_id == 0:
                    say(f"warning: local checkpoint {path} is of another mesh or model and is not used")
        return offers

    def _lost(self, path: Path, step: int | None, damage: str) -> None:
        if damage:
            self._events.write("local_skipped", step, reason=damage)
            say(f"warning: local checkpoint {path} is damaged and ignored: {damage}")
        shutil.rmtree(path, ignore_errors=True)


def newest_common_checkpoint(
    offers: Sequence[Sequence[CandidateCheckpoint]], holders: Sequence[Sequence[int]], *, peers_help: bool
) -> tuple[LocalCheckpoint | None, dict[int, list[int]]]:
    """Return the newest checkpoint that is complete over all hosts, and the hosts that newer ones lack.

    `offers` are those of each process; `holders` has for every replica the process of each of its places. Without
    `peers_help` every host needs its own part, as replicas do not hold the same. A checkpoint counts only if all hosts
    have written it: one of them knows, or all have it.
    """
    hosts_by_checkpoint: dict[tuple[int, str], dict[int, CandidateCheckpoint]] = {}
    for process, offered in enumerate(offers):
        for offer in offered:
            hosts_by_checkpoint.setdefault((offer.step, offer.session), {})[process] = offer
    lacking: dict[int, list[int]] = {}
    for (step, session), have in sorted(hosts_by_checkpoint.items(), reverse=True):
        notes = next(iter(have.values())).notes
        if len(have) == len(offers):
            return LocalCheckpoint(step, session, notes, []), lacking
        if not any(offer.committed for offer in have.values()):
            continue
        sources = [
            next((n for n, replica in enumerate(holders) if replica[place] in have), -1)
            for place in range(len(holders[0]))
        ]
        if peers_help and -1 not in sources:
            return LocalCheckpoint(step, session, notes, sources), lacking
        lacking[step] = [process for process in range(len(offers)) if process not in have]
    return None, lacking


def assign_stores(names: Sequence[str], seen: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """Return the stores that each process may use, given the stores that each of them sees and their names.

    Hosts may share a disk. A store belongs to its namesake if that one sees it; else to a host of the same place in
    another slice, which holds the same; else to the first that sees it.
    """
    shares: list[list[str]] = [[] for _ in names]
    for name, identity in dict.fromkeys(store for stores in seen for store in stores.items()):
        place = name.partition("-")[2]
        _, _, owner = min(
            (own != name, own.partition("-")[2] != place, process)
            for process, own in enumerate(names)
            if seen[process].get(name) == identity
        )
        shares[owner].append(name)
    return shares


def _folders(store: Path) -> list[Path]:
    return sorted(path for path in store.glob("*") if path.is_dir()) if store.is_dir() else []


def _step(path: Path) -> int | None:
    """Return the step of a checkpoint that this host has completely written, or None."""
    number = path.name.removeprefix(_WRITTEN)
    return int(number) if number.isdigit() else None


def _damage(path: Path) -> str:
    """Return the defect of a folder, or "". An unreadable one counts as lost: other slices have the same."""
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


def begun(out: Place) -> bool:
    """Return whether a run with a local tier has started in an output folder; its nodes may have checkpoints."""
    return (out / _RUN_ID).is_file()


def _run_id(out: Place) -> str:
    """Return the id of the run in an output folder; create one if there is none, as after it was emptied."""
    place = out / _RUN_ID
    if place.is_file():
        return str(place.read().decode())
    made = uuid.uuid4().hex
    place.write(made.encode())
    return made
