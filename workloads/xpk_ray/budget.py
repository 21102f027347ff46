"""Restart budget of a job, shared by replacements of its actors and restarts of its JobSet.

Kubernetes counts the JobSet's restarts but not replacements, and hosts cannot query it. The driver counts both in a
file beside the metrics, `ray.json`. It counts a restart when an earlier driver has started and was not asked to stop;
if hosts end before a driver starts, only the JobSet counts.
"""

import contextlib
import json
from typing import Any

from xpk_shared.storage import Place

FILE = "ray.json"


class Budget:
    """Used part of a job's budget of `most` replacements and restarts."""

    def __init__(self, folder: Place, job: str, most: int) -> None:
        self._file, self._job, self._most = folder / FILE, job, most
        kept = self._read()
        self.replaced: int = kept.get("replaced", 0)
        self.restarts: int = kept.get("restarts", 0)
        self._running: bool = kept.get("running", False)

    @property
    def is_overdrawn(self) -> bool:
        """True if the JobSet has restarted with nothing left. Without replacements its own count decides."""
        return self.replaced > 0 and self.replaced + self.restarts > self._most

    def begin(self) -> None:
        """Count a JobSet restart, unless the previous driver was asked to stop."""
        self.restarts += self._running
        self._running = True
        self._write()

    def asked_to_stop(self) -> None:
        """Record that this driver ends because it was asked to, so that the next restart does not count."""
        if self._running:
            self._running = False
            self._write()

    def replace(self) -> bool:
        """Use one replacement of all actors; return False if nothing is left."""
        if self.replaced + self.restarts >= self._most:
            return False
        self.replaced += 1
        self._write()
        return True

    def __str__(self) -> str:
        """Return the used part, for people."""
        return f"{self.replaced} by new trainers and {self.restarts} by the JobSet, of {self._most}"

    def _read(self) -> dict[str, Any]:
        if not self._file.is_file():
            return {}
        try:
            kept = json.loads(self._file.read())
        except ValueError:
            return {}
        return kept if isinstance(kept, dict) and kept.get("job") == self._job else {}

    def _write(self) -> None:
        kept = {"job": self._job, "replaced": self.replaced, "restarts": self.restarts, "running": self._running}
        with contextlib.suppress(OSError):  # if the head dies, too, an attempt's number is repeated
            self._file.write(json.dumps(kept).encode())
