"""How often a job may begin anew: one budget for replacements of its actors and restarts of its JobSet.

Kubernetes counts the JobSet's restarts but knows nothing of replacements, and hosts cannot ask it. The driver counts
both in a file beside the metrics, `ray.json`. It counts a restart when it finds that a driver before it has begun
and was not asked to stop; where hosts end before a driver begins, the JobSet counts alone.
"""

import contextlib
import json
from typing import Any

from trainer.storage.base import Place

FILE = "ray.json"


class Budget:
    """What of `most` new beginnings a job has used."""

    def __init__(self, folder: Place, job: str, most: int) -> None:
        self._file, self._job, self._most = folder / FILE, job, most
        kept = self._read()
        self.replaced: int = kept.get("replaced", 0)
        self.restarts: int = kept.get("restarts", 0)
        self._running: bool = kept.get("running", False)

    @property
    def is_overdrawn(self) -> bool:
        """Whether the JobSet has restarted although nothing was left. Without replacements its own count decides."""
        return self.replaced > 0 and self.replaced + self.restarts > self._most

    def begin(self) -> None:
        """A driver begins: if the one before it was not asked to stop, the JobSet's restart counts."""
        self.restarts += self._running
        self._running = True
        self._write()

    def asked_to_stop(self) -> None:
        """This driver will end because it was asked to: the restart that follows does not count."""
        if self._running:
            self._running = False
            self._write()

    def replace(self) -> bool:
        """Take a replacement of all actors from what is left; return whether anything was."""
        if self.replaced + self.restarts >= self._most:
            return False
        self.replaced += 1
        self._write()
        return True

    def __str__(self) -> str:
        """Return what was used, for people to read."""
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
        with contextlib.suppress(OSError):  # should the head die, too, an attempt's number comes twice
            self._file.write(json.dumps(kept).encode())
