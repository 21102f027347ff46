"""Synthetic runs: the trainer's files in a folder, with known times."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

START = 1_800_000_000.0


@dataclass(slots=True)
class RunWriter:
    """Writes a run second by second; `now` is in Unix seconds."""

    folder: Path
    slices: int = 2
    hosts: int = 2
    now: float = START
    attempt: int = 0
    metrics: list[str] = field(default_factory=list)
    events: dict[tuple[int, int], list[str]] = field(default_factory=dict)

    def everyone(self) -> list[tuple[int, int]]:
        return [(slice_id, host) for slice_id in range(self.slices) for host in range(self.hosts)]

    def event(self, name: str, who: tuple[int, int], *, seconds: float | None = None, **keys: Any) -> None:
        line = {
            "time": self.now,
            "event": name,
            "slice": who[0],
            "host": who[1],
            "attempt": self.attempt,
            "step": keys.pop("step", None),
            "seconds": seconds,
            **keys,
        }
        self.events.setdefault(who, []).append(json.dumps(line))

    def all(self, name: str, *, seconds: float | None = None, **keys: Any) -> None:
        for who in self.everyone():
            self.event(name, who, seconds=seconds, **keys)

    def bring_up(self, restored: int, *, init: float = 2.0, restore: float = 1.0, compile_: float = 3.0) -> None:
        """Start all hosts at `now` until a step is compiled."""
        self.all("start", pid=4711)
        self.now += init
        self.all("init", seconds=init, processes=self.slices * self.hosts, devices=16)
        self.all("data", seconds=0.0, records=1000)
        self.now += restore
        source = "checkpoint" if restored else "init"
        self.all("restore", step=restored, seconds=restore, source=source, read=True)
        self.now += compile_
        self.all("compile", seconds=compile_, cached=self.attempt > 0)

    def steps(self, first: int, last: int, *, step_seconds: float = 0.5, log_every: int = 10) -> None:
        for step in range(first, last + 1):
            self.now += step_seconds
            noise = random.Random(step).gauss(0, 0.06)
            line: dict[str, Any] = {
                "time": self.now,
                "attempt": self.attempt,
                "step": step,
                "loss": 2.0 + 3.5 * math.exp(-step / 40) + noise,
                "step_seconds": step_seconds,
                "learning_rate": 0.001 * min(1.0, step / 20),
                "grad_norm": 1.5 + noise,
                "tokens_per_second": 4096 / step_seconds,
                "mfu": None,
            }
            if step == first or step % log_every == 0:
                line["memory"] = {"chip_gib": None, "host_gib": 0.5}
            self.metrics.append(json.dumps(line))
            if step == first or step % log_every == 0:
                self.all("step", step=step)

    def train(self, restored: int, last: int, *, step_seconds: float = 0.5) -> None:
        """Start all hosts at a step, and train to another one."""
        self.bring_up(restored)
        self.steps(restored + 1, last, step_seconds=step_seconds)

    def save(self, step: int, *, seconds: float = 0.2) -> None:
        self.now += seconds
        self.all("save_begin", step=step, seconds=seconds)
        self.all("save", step=step, seconds=seconds)

    def evaluate(self, step: int, *, seconds: float = 0.5) -> None:
        self.now += seconds
        loss = 2.1 + 3.5 * math.exp(-step / 40)
        line = {"time": self.now, "attempt": self.attempt, "step": step, "eval_loss": loss, "eval_tokens": 65536}
        self.metrics.append(json.dumps(line))
        self.all("eval", step=step, seconds=seconds, eval_loss=loss)

    def kill(self, dead: tuple[int, int], *, noticed: float = 1.0, down: float = 2.0) -> None:
        """Kill one host now; the others detect it after `noticed`; the next attempt starts `down` later."""
        self.now += noticed
        for who in self.everyone():
            if who != dead:
                self.event("peer_lost", who, peer=dead[0] * self.hosts + dead[1])
        self.now += down
        self.attempt += 1

    def suspend(self, step: int, *, away: float = 12.0) -> None:
        """Let all hosts save and end; they start again `away` later, with the same attempt number."""
        self.save(step)
        self.all("preempt", step=step)
        self.now += away

    def done(self, step: int) -> None:
        self.now += 0.5
        self.all("done", step=step)
        self.result = {"steps": step, "final_loss": 2.0}
        (self.folder / "result.json").write_text(json.dumps(self.result), encoding="utf-8")

    result: dict[str, Any] = field(default_factory=dict)

    def write(self) -> Path:
        (self.folder / "events").mkdir(exist_ok=True, parents=True)
        (self.folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in self.metrics), encoding="utf-8")
        for (slice_id, host), lines in self.events.items():
            path = self.folder / "events" / f"s{slice_id}-h{host}.jsonl"
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return self.folder


def one_kill(folder: Path, *, slices: int = 2, hosts: int = 2, step_seconds: float = 0.4, scale: int = 1) -> Path:
    """150 steps x `scale`; slice 1 host 1 is killed after step 68, and the newest checkpoint is of step 50."""
    run = RunWriter(folder, slices=slices, hosts=hosts)
    run.bring_up(0, init=3.1, compile_=4.5)
    run.steps(1, 25 * scale, step_seconds=step_seconds)
    run.save(25 * scale)
    run.steps(25 * scale + 1, 50 * scale, step_seconds=step_seconds)
    run.save(50 * scale)
    run.evaluate(50 * scale)
    run.steps(50 * scale + 1, 68 * scale, step_seconds=step_seconds)
    run.kill((1, slices and hosts - 1), noticed=0.4, down=1.4)
    run.bring_up(50 * scale, init=2.8, restore=0.9, compile_=1.2)
    for begin in (50, 75, 100, 125):
        run.steps(begin * scale + 1, (begin + 25) * scale, step_seconds=step_seconds)
        run.save((begin + 25) * scale)
        if begin in (75, 125):
            run.evaluate((begin + 25) * scale)
    run.done(150 * scale)
    return run.write()
