"""Restart budget of a job, shared by replacements of its actors and restarts of its JobSet.

Kubernetes counts the JobSet's restarts but not replacements, and hosts cannot query it. The driver counts both in
`ray.json` in the output folder. It counts a restart if an earlier driver has started and was not asked to stop; if
hosts end before a driver starts, only the JobSet counts the restart.
"""

import contextlib
import json
from typing import Any

from xpk_shared.storage import Place

FILE = "ray.json"


class Budget:
    """Used part of a job's budget of `limit` replacements and restarts."""

    def __init__(self, folder: Place, job: str, limit: int) -> None:
        self._file, self._job, self._limit = folder / FILE, job, limit
        record = self._read()
        self.replaced: int = record.get("replaced", 0)
        self.restarts: int = record.get("restarts", 0)
        self._running: bool = record.get("running", False)

    @property
    def is_exceeded(self) -> bool:
        """True if the JobSet has restarted beyond the budget. Without replacements its own count decides."""
        return self.replaced > 0 and self.replaced + self.restarts > self._limit

    def begin(self) -> None:
        """Count a JobSet restart, unless the previous driver was asked to stop."""
        self.restarts += self._running
        self._running = True
        self._write()

    def record_stop_request(self) -> None:
        """Record that this driver ends because it was asked to, so that the next restart does not count."""
        if self._running:
            self._running = False
            self._write()

    def replace(self) -> bool:
        """Use one replacement of all actors; return False if the budget is used up."""
        if self.replaced + self.restarts >= self._limit:
            return False
        self.replaced += 1
        self._write()
        return True

    def __str__(self) -> str:
        """Return the used part as text."""
        return f"{self.replaced} by new trainers and {self.restarts} by the JobSet, of {self._limit}"

    def _read(self) -> dict[str, Any]:
        if not self._file.is_file():
            return {}
        try:
            record = json.loads(self._file.read())
        except ValueError:
            return {}
        return record if isinstance(record, dict) and record.get("job") == self._job else {}

    def _write(self) -> None:
        record = {"job": self._job, "replaced": self.replaced, "restarts": self.restarts, "running": self._running}
        with contextlib.suppress(OSError):  # if the head dies too, the number of an attempt is repeated
            self._file.write(json.dumps(record).encode())
