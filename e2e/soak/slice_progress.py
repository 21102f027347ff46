"""Progress of a run with elastic slices, each of which has attempts of its own."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from e2e.harness import Lines
from e2e.soak.progress import Progress

_RECENT = 50  # steps before a fault that determine the usual time of a step


class SliceProgress(Progress):
    """As Progress, for a run whose steps go on while slices restart."""

    def __init__(self, folder: Path, slices: int, hosts_per_slice: int) -> None:
        super().__init__(folder, slices, hosts_per_slice)
        self.changes: list[dict[str, Any]] = []  # lines of slices.jsonl
        self._all, self._hosts_per_slice = list(range(slices)), hosts_per_slice
        self._known: dict[int, tuple[float, list[int]]] = {}  # by host: the active slices that it knows, since when
        self._slices = Lines(folder / "slices.jsonl")

    def read(self) -> None:
        """Read the lines that were added."""
        super().read()
        self.changes += self._slices.read()

    def _take(self, host: int, event: dict[str, Any]) -> None:
        if event.get("event") == "slices":
            self._known[host] = event["time"], event["slices"]
        elif event.get("event") == "save_begin":  # on the first host of the slice that leads
            self.saves_begun.append(event["time"])
        else:
            super()._take(host, event)

    @property
    def is_complete(self) -> bool:
        """True if all hosts know that all slices are active, and a step has ended since."""
        return self._completed_at is not None

    @property
    def _completed_at(self) -> float | None:
        """End of the first step since all slices are active."""
        if not self.changes or self.changes[-1]["slices"] != self._all or not all(self.starts.values()):
            return None
        for host, starts in self.starts.items():
            since, slices = self._known.get(host, (0.0, []))
            if since < starts[-1].time or slices != self._all:
                return None
        begun = max(since for since, _ in self._known.values())
        return min((line["time"] for line in self.steps[-1000:] if line["time"] > begun), default=None)

    def is_past(self, strikes: Mapping[int, float]) -> bool:
        """Return whether all slices that were hit have restarted, and all slices are active."""
        for host, starts in self.starts.items():
            same_slice = [at for other, at in strikes.items() if self._is_same_slice(host, other)]
            if same_slice and starts[-1].time < max(same_slice):
                return False
        return self.is_complete

    def _is_same_slice(self, host: int, other: int) -> bool:
        return host // self._hosts_per_slice == other // self._hosts_per_slice

    @property
    def steps_of_attempt(self) -> int:
        """Number of steps since all slices are active."""
        begun = self._completed_at
        return sum(line["time"] >= begun for line in self.steps[-100:]) if begun else 0

    def undone(self, step: int, time: float) -> int:
        """Return the number of finished steps from which the run went back after a time, also those after `step`."""
        pairs = pairwise(self.steps[-1000:])
        return sum(max(0, former["step"] - line["step"] + 1) for former, line in pairs if line["time"] > time)

    def stepped_after(self, time: float) -> float | None:
        """Return the end of the first step after a time with all slices active."""
        done = self._completed_at
        return done if done is not None and done > time else None

    def stall(self, time: float) -> float | None:
        """Return the longest pause of the steps, from a time until all slices are active, less a usual step."""
        times = sorted(line["time"] for line in self.steps[-1000:])
        usual = [late - early for early, late in pairwise([at for at in times if at <= time][-_RECENT:])]
        end = self.stepped_after(time)
        after = [at for at in times if time < at and (end is None or at <= end)]
        pauses = [late - early for early, late in pairwise([time, *after])]
        return round(max(0.0, max(pauses) - statistics.median(usual)), 3) if pauses and usual else None

    def joined_after(self, time: float) -> float | None:
        """Return when a slice was first granted after a time."""
        for former, change in pairwise(self.changes):
            if change["time"] > time and set(change["slices"]) - set(former["slices"]):
                return float(change["time"])
        return None
