"""Properties of the checkpoints of a simulated job; docs/simulation.md lists them for readers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.simulation.checkpoints.hosts import saved_content
from tests.simulation.properties import Violated
from trainer.checkpoint.local import LocalCheckpoint
from trainer.checkpoint.stores import manifest

if TYPE_CHECKING:
    from tests.simulation.checkpoints.hosts import Attempt
    from tests.simulation.checkpoints.world import World


class Properties:
    """Saves that hosts were told of, and checks of what an attempt chooses and of what a save leaves."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._folder = world.root / "out" / "checkpoints"
        self._saved: set[int] = set()  # steps of intact checkpoints that must exist
        self._damaged_at: dict[int, int] = {}  # time by step
        self._looks_complete: set[int] = set()  # steps of damaged checkpoints whose files have the same sizes
        self._saves_began_at: dict[int, dict[int, int]] = {}  # time by attempt by step
        self._saved_locally: dict[int, set[int]] = {}  # processes by step, of the newest attempt
        self._damaged_locally_at: dict[int, int] = {}  # time by step
        self.newest_local_save = 0  # step of the newest local checkpoint that all hosts have kept, 0 if none

    @property
    def newest_save(self) -> int:
        """The step of the newest intact checkpoint, 0 if there is none."""
        return max(self._saved, default=0)

    def require(self, holds: bool, what: str) -> None:
        """Raise Violated unless it holds."""
        if not holds:
            raise Violated(f"after {self._world.schedule.steps} steps: {what}")

    def on_choice(self, attempt: Attempt, local: LocalCheckpoint | None, step: int | None) -> None:
        """Check the checkpoint from which an attempt resumes: a local one, or a newer one of a step."""
        chosen = max(local.step if local else 0, step or 0)
        expected = min(attempt.expected, self.newest_save)  # it may have been damaged since
        self.require(chosen >= expected, f"step {expected} was saved, but step {chosen} is chosen")
        if local and not self._is_damaged_locally(local.step, attempt):  # since it was verified
            self._check_local(attempt, local)
        kept = min(attempt.expected_local, self.newest_local_save)
        self.require(chosen >= kept, f"all hosts have kept step {kept}, but step {chosen} is chosen")
        if step:
            damaged_at = self._damaged_at.get(step, attempt.began)
            newest_save = max(self._saves_began_at.get(step, {}).values(), default=0)
            is_damaged = newest_save <= damaged_at < attempt.began
            self.require(not is_damaged, f"the damaged checkpoint of step {step} is chosen")
            self._check_complete(step)

    def on_save_begin(self, attempt: Attempt, step: int) -> None:
        """Note the begin of a save."""
        self._saves_began_at.setdefault(step, {})[attempt.number] = self._world.schedule.steps

    def on_save(self, attempt: Attempt, step: int) -> None:
        """Check what a successful save has left."""
        if not attempt.is_alone and not self._exists(step):
            return  # another attempt has saved a later step, and removed this one
        if self._damaged_at.get(step, 0) < self._saves_began_at[step][attempt.number]:
            self._damaged_at.pop(step, None)
        self._check_complete(step)
        self._saved = self._kept_by(step) - self._damaged_at.keys()
        began = self._saves_began_at[step][attempt.number]
        if any(at >= began for at in self._damaged_at.values()):  # the save may have counted on a damaged one
            self._saved = {saved for saved in self._saved if self._exists(saved)}
        if attempt.is_alone:
            present = {path.name for path in self._folder.iterdir()} - {".owner"}
            half_made = sorted(name for name in present if not name.isdigit())
            self.require(not half_made, f"{half_made} remain after the save of step {step}")
            older = sorted(int(name) for name in present if int(name) <= step)
            intact = [s for s in older if s not in self._damaged_at]
            self.require(len(intact) <= self._world.keep, f"{intact} are kept, but {self._world.keep} were asked for")

    def on_local_save(self, attempt: Attempt, process: int, step: int) -> None:
        """Note a local checkpoint that a host has kept."""
        if attempt is not self._world.newest:
            return
        processes = self._saved_locally.setdefault(step, set())
        processes.add(process)
        damaged = [other for other in self._damaged_locally_at if self._is_damaged_locally(other, attempt)]
        if len(processes) == len(attempt.nodes) and step > max(damaged, default=0):
            self.newest_local_save = step

    def on_begin(self, *, has_new_nodes: bool) -> None:
        """Forget the local saves of an earlier attempt as far as they may be lost."""
        self._saved_locally.clear()
        if has_new_nodes:
            self.newest_local_save = 0

    def on_damage(self, step: int, *, has_sizes: bool) -> None:
        """Note that the checkpoint of a step was damaged; `has_sizes`: its files have the same sizes as before.

        If nobody was told of its save yet, that may be about to remove older ones, or was cut off after it had.
        """
        if step not in self._saved:
            self._saved = {saved for saved in self._saved & self._kept_by(step) if self._exists(saved)}
        self._saved.discard(step)
        if not has_sizes:
            self._looks_complete.discard(step)
        elif step not in self._damaged_at:
            self._looks_complete.add(step)
        self._damaged_at[step] = self._world.schedule.steps

    def on_local_damage(self, step: int) -> None:
        """Note that one host's local checkpoint of a step was damaged, perhaps before it is complete."""
        self._damaged_locally_at[step] = self._world.schedule.steps
        self.newest_local_save = 0

    def _is_damaged_locally(self, step: int, attempt: Attempt) -> bool:
        """Return whether one host's local checkpoint of a step was damaged since an attempt began."""
        return self._damaged_locally_at.get(step, -1) >= attempt.began

    def _kept_by(self, step: int) -> set[int]:
        """Return the steps of the checkpoints that the save of a step keeps, and those of later ones.

        A save compares only the sizes of older checkpoints, so some that it keeps are found to be damaged when read.
        """
        self._looks_complete = {s for s in self._looks_complete if s in self._damaged_at and self._exists(s)}
        older = sorted(s for s in self._saved | self._looks_complete | {step} if s <= step)
        return {*older[-self._world.keep :], *(s for s in self._saved if s > step)}

    def _exists(self, step: int) -> bool:
        return (self._folder / str(step)).is_dir()

    def _check_complete(self, step: int) -> None:
        """A checkpoint has the part of every host, and all of one attempt."""
        if step in self._damaged_at:
            return
        processes = range(self._world.slices * self._world.hosts)
        parts = [_content(self._folder / str(step) / f"host-{process}") for process in processes]
        attempts = range(self._world.attempts)
        wholes = ([saved_content(step, number, process) for process in processes] for number in attempts)
        self.require(parts in wholes, f"the checkpoint of step {step} is not of one attempt: {parts}")

    def _check_local(self, attempt: Attempt, chosen: LocalCheckpoint) -> None:
        """Every host has its part of the chosen local checkpoint, or a host of another slice has it."""
        hosts = self._world.hosts
        for process, node in enumerate(attempt.nodes):
            holders = [node]
            if chosen.sources:
                holders = [attempt.nodes[chosen.sources[process % hosts] * hosts + process % hosts]]
            parts = [path for holder in holders for path in holder.glob("xpk-*/s*/*") if _is_part(path, chosen)]
            self.require(bool(parts), f"host {process} lacks its part of the local checkpoint of step {chosen.step}")


def _is_part(path: Path, chosen: LocalCheckpoint) -> bool:
    if not path.name.endswith(str(chosen.step)) or manifest.damage(path):
        return False
    notes = manifest.notes((path / manifest.MANIFEST).read_bytes())
    return bool(notes["session"] == chosen.session)


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""
