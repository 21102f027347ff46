"""Progress of a run, from its files.

Attempts are ordered by time: their numbers may repeat and decrease. An attempt's number is the JobSet's count of
restarts, plus the restarts in place since. Therefore a restart by the JobSet may begin an attempt with the number of an
earlier one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.harness import Lines


@dataclass(frozen=True, slots=True)
class Start:
    """Start of a host's trainer."""

    time: float
    pid: int
    attempt: int


class Progress:
    """Starts, begun saves and finished steps of a run, read as its files grow."""

    def __init__(self, folder: Path, slices: int, hosts_per_slice: int) -> None:
        self.starts: dict[int, list[Start]] = {number: [] for number in range(slices * hosts_per_slice)}
        self.saves_begun: list[float] = []  # on the first host
        self.steps: list[dict[str, Any]] = []
        self._files = [
            Lines(folder / f"events/s{n // hosts_per_slice}-h{n % hosts_per_slice}.jsonl") for n in self.starts
        ]
        self._metrics = Lines(folder / "metrics.jsonl")

    def read(self) -> None:
        """Read the lines that were added."""
        for host, file in enumerate(self._files):
            for line in file.read():
                self._take(host, line)
        self.steps += [line for line in self._metrics.read() if "loss_hex" in line]

    def _take(self, host: int, event: dict[str, Any]) -> None:
        """Take an event of a host."""
        if event.get("event") == "start":
            self.starts[host].append(Start(event["time"], event["pid"], event["attempt"]))
        elif event.get("event") == "save_begin" and host == 0:
            self.saves_begun.append(event["time"])

    @property
    def is_complete(self) -> bool:
        """True if all hosts have started the same attempt and finished a step in it."""
        newest = [starts[-1] for starts in self.starts.values() if starts]
        if len(newest) < len(self.starts) or len({start.attempt for start in newest}) > 1:
            return False
        return bool(self.steps) and bool(self.steps[-1]["time"] >= max(start.time for start in newest))

    def is_past(self, strikes: Mapping[int, float]) -> bool:
        """Return whether the run has continued after signals; `strikes` has their times by host."""
        return self.stepped_after(min(strikes.values())) is not None

    def stall(self, time: float) -> float | None:
        """Return the longest pause of the steps after a time in seconds; None if all slices always pause together."""
        return None

    def joined_after(self, time: float) -> float | None:
        """Return when a slice was first granted after a time; None if no slice joins a run."""
        return None

    @property
    def steps_of_attempt(self) -> int:
        """Number of steps that the newest attempt has finished."""
        begun = self.starts[0][-1].time if self.starts[0] else 0.0
        return sum(line["time"] > begun for line in self.steps[-100:])

    def undone(self, step: int, time: float) -> int:
        """Return the number of steps up to `step` that attempts that began after a time have repeated."""
        begun = [start.time for start in self.starts[0] if start.time > time]
        again = {line["step"] for line in self.steps[-1000:] if begun and line["time"] > begun[0]}
        return step - min(again) + 1 if again and min(again) <= step else 0

    def pid(self, host: int) -> int:
        """Return the number of the host's newest trainer process, 0 before the first."""
        return self.starts[host][-1].pid if self.starts[host] else 0

    def started_after(self, time: float) -> float | None:
        """Return the time of the first start of any trainer after a time."""
        return min(
            (start.time for starts in self.starts.values() for start in starts if start.time > time), default=None
        )

    def stepped_after(self, time: float) -> float | None:
        """Return the end of the first step of an attempt that began after a time."""
        begun = [start.time for start in self.starts[0] if start.time > time]
        ended = (line["time"] for line in self.steps[-1000:] if begun and line["time"] > begun[0])
        return next(ended, None)
