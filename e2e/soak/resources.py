"""Growth of processes that live through many attempts."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from e2e.soak.processes import usage

CONTROL_PLANE = "control plane"  # role of the local cluster's daemon
TRAINER_ROLE = "trainer"
_ALLOWED = {"resident_bytes": 1 << 20, "descriptors": 4, "threads": 4, "processes": 4}  # growth over a complete series
_STORE_BYTES = 8 << 20  # of the control plane: SQLite's cache, 200 events, and the pods of five previous attempts
_TRAINER_BYTES = 16 << 20  # of a trainer, whose memory depends on the shares that it computes
_WARM_UP = 10  # samples of a trainer until its pools have all their threads and its buffers their size
_FEWEST = 10  # samples in an evaluated series
_MOST = 200  # points of a series that determine the slope


def growth(values: Sequence[float]) -> float:
    """Return the growth of a series from its first to its last value: its median slope (Theil-Sen) times its length.

    A few outliers, such as a sample during a restart, do not change it.
    """
    if len(values) < 2:
        return 0.0
    every = max(1, len(values) // _MOST)
    points = list(enumerate(values))[::every]
    slopes = [(late - early) / (j - i) for n, (i, early) in enumerate(points) for j, late in points[n + 1 :]]
    return statistics.median(slopes) * (len(values) - 1)


@dataclass(slots=True)
class Resources:
    """Samples of processes, one after each fault."""

    series: dict[tuple[str, int, str], list[float]] = field(default_factory=dict)  # by role, process and resource

    def sample(self, pids: dict[str, int], processes: int) -> None:
        """Sample processes by their roles, and record the number of all processes of the hosts."""
        for role, pid in pids.items():
            if measured := usage(pid):
                for name, value in asdict(measured).items():
                    self.series.setdefault((role, pid, name), []).append(value)
        self.series.setdefault(("hosts", 0, "processes"), []).append(processes)

    def grown(self) -> Iterator[str]:
        """Yield a line for each resource of a process that has grown."""
        for (role, pid, name), values in self.series.items():
            if role.startswith(TRAINER_ROLE):
                values = values[_WARM_UP:]
            allowed = _ALLOWED[name]
            if name == "resident_bytes":
                large = {CONTROL_PLANE: _STORE_BYTES, TRAINER_ROLE: _TRAINER_BYTES}
                allowed = next((size for kind, size in large.items() if role.startswith(kind)), allowed)
            if len(values) >= _FEWEST and (more := growth(values)) > allowed:
                series = f"{len(values)} samples, from {values[0]} to {values[-1]}"
                yield f"{name} of {role} ({pid}) has grown by {more:.0f} in {series}"

    def longest(self) -> list[dict[str, Any]]:
        """Return the longest series of each role and resource."""
        best: dict[tuple[str, str], list[float]] = {}
        for (role, _, name), values in self.series.items():
            if len(values) > len(best.get((role, name), ())):
                best[role, name] = values
        return [
            {
                **{"role": role, "resource": name, "samples": len(values), "growth": round(growth(values), 1)},
                **{"first": values[0], "median": statistics.median(values), "last": values[-1]},
            }
            for (role, name), values in sorted(best.items())
        ]
