"""Synthetic runs with elastic slices: the trainer's files in a folder, with known times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.jobs.report.runs import START, RunWriter


class ElasticWriter(RunWriter):
    """Writes a run second by second. Slices start, end and join again by themselves."""

    def __init__(
        self, folder: Path, *, slices: int = 4, hosts: int = 1, min_slices: int = 1, now: float = START
    ) -> None:
        super().__init__(folder, slices=slices, hosts=hosts, now=now)
        self.min_slices, self.active = min_slices, list[int]()
        self.attempts = [0] * slices
        self.changes: list[str] = []
        self.step = 0

    def of(self, slice_id: int, name: str, **keys: Any) -> None:
        """Write an event of every host of a slice."""
        self.attempt = self.attempts[slice_id]
        for host in range(self.hosts):
            self.event(name, (slice_id, host), **keys)

    def start(self, slice_id: int, *, init: float = 2.0, compile_: float = 3.0) -> None:
        """Start a slice at `now`; it is prepared `init + compile_` later, while others train."""
        began = self.now
        self.of(slice_id, "start", pid=4711)
        self.now = began + init
        self.of(slice_id, "init", seconds=init, processes=self.hosts, devices=2)
        self.now = began + init + compile_
        self.of(slice_id, "compile", seconds=compile_, program="share", cached=self.attempts[slice_id] > 0)
        self.now = began

    def found(self, slice_id: int, step: int, *, seconds: float = 1.0) -> None:
        """Let a slice restore the state from a checkpoint, or make the first one."""
        self.now += seconds
        self.of(slice_id, "restore", step=step, seconds=seconds, source="checkpoint" if step else "init", read=True)
        self.step = step
        self.change([slice_id])

    def join(self, slice_id: int, *, seconds: float = 0.25) -> None:
        """Let a slice receive the state from another one."""
        self.now += seconds
        self.of(slice_id, "restore", step=self.step, seconds=seconds, source="peer", read=False)
        self.change(sorted([*self.active, slice_id]))

    def lose(self, slice_id: int) -> None:
        """Kill a slice."""
        self.change([number for number in self.active if number != slice_id])
        self.attempts[slice_id] += 1

    def change(self, active: list[int]) -> None:
        """Record the active slices."""
        self.active = active
        for number in active:
            self.of(number, "slices", step=self.step, slices=active)
        if active:
            line = {"time": self.now, "attempt": self.attempts[active[0]], "step": self.step, "slices": active}
            self.changes.append(json.dumps(line | {"num_slices": self.slices, "min_slices": self.min_slices}))

    def train_steps(self, count: int, *, step_seconds: float = 0.5) -> None:
        """Train on the active slices, led by the one with the lowest number."""
        self.attempt = self.attempts[self.active[0]]
        for step in range(self.step + 1, self.step + count + 1):
            self.now += step_seconds
            line = {"time": self.now, "attempt": self.attempt, "step": step, "loss": 2.0, "step_seconds": step_seconds}
            self.metrics.append(json.dumps(line))
            self.step = step

    def begin(self, step: int = 0) -> None:
        """Start all slices and let all join."""
        for number in range(self.slices):
            self.start(number)
        self.now += 5.0
        self.found(0, step)
        for number in range(1, self.slices):
            self.join(number)

    def finish(self) -> None:
        """End the run."""
        self.now += 0.5
        for number in self.active:
            self.of(number, "done", step=self.step)
        result = {"steps": self.step, "final_loss": 2.0}
        (self.folder / "result.json").write_text(json.dumps(result), encoding="utf-8")

    def write(self) -> Path:
        """Write all files."""
        (self.folder / "slices.jsonl").write_text("".join(f"{line}\n" for line in self.changes), encoding="utf-8")
        return super().write()


def two_losses(folder: Path) -> ElasticWriter:
    """100 steps on four slices; slice 1 is absent for 10 s, then slice 0, which leads, for 20 s."""
    run = ElasticWriter(folder)
    run.begin()
    run.train_steps(20)
    run.lose(1)
    run.start(1)
    run.train_steps(20)
    run.join(1, seconds=0.0)
    run.train_steps(20)
    run.lose(0)
    run.train_steps(10)
    run.start(0)
    run.train_steps(30)
    run.join(0, seconds=0.0)
    run.finish()
    return run
