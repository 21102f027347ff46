"""The record that a run keeps from one attempt to the next: its durations, failures, and the time in which it ran.

Process 0 reads the file in the output folder when an attempt begins, tells the other hosts, and writes it while the
attempt runs. Durations are of the same settings, code and hosts only. An attempt that has neither ended in order nor
been asked to stop has failed.

Of elastic slices, the leading one writes the record, and hands its tally over with the state, so that any slice may
lead. The slice that begins the run after the loss of all slices counts that as a failure. A hang of one slice reaches
the next attempt only if no other slice leads after it.
"""

import contextlib
import dataclasses
import hashlib
import json
import threading
import time
from typing import Any

from trainer.hosts.consistency import Traits
from trainer.hosts.job import Job
from xpk_shared.storage import Place

FILE = "measurements.json"
PERIOD_SECONDS = 30.0  # between two writes, about
_FLUSH_SECONDS = 5.0


@dataclasses.dataclass(slots=True)
class Tally:
    """Failures of a run, the seconds in which it ran, and what its restarts have read."""

    failures: int = 0
    run_seconds: float = 0.0
    local_restores: int = 0
    persistent_restores: int = 0


class RunRecord:
    """The record of a run, as used by one host of an attempt."""

    def __init__(self, job: Job, traits: Traits) -> None:
        self._job, self._place = job, job.out / FILE
        text = json.dumps([traits, job.host.processes], sort_keys=True)
        self._settings = hashlib.sha256(text.encode()).hexdigest()[:16]
        self._began = time.monotonic()
        self._former = Tally()  # of earlier attempts
        self._is_stopped = self._is_hung = False
        self._writing: threading.Thread | None = None
        self._write_at = 0.0  # monotonic time of the next write

    def share(self) -> None:
        """Read the record of earlier attempts on process 0, and adopt it on all hosts, all of which call this."""
        job = self._job
        if job.is_first:
            job.peers.announce("measurements", self._read())
        content = job.peers.await_("measurements")
        self._former = Tally(**content["tally"])
        job.measurements.trusts_former = not content["hung"]
        job.measurements.adopt(content["seconds"])
        if job.is_first:
            job.watchdog.on_hang = self._note_hang

    def begin(self) -> None:
        """Count the time from now on, on a slice that may have waited for its role in the run."""
        self._began = time.monotonic()

    def adopt(self, tally: Tally) -> None:
        """Continue the tally of the slice that leads, on a slice that joins."""
        self._former = tally
        self.begin()

    def tally(self) -> Tally:
        """Return the tally until now."""
        ran = time.monotonic() - self._began
        return dataclasses.replace(self._former, run_seconds=self._former.run_seconds + ran)

    def count_restore(self, source: str) -> None:
        """Count a restore from `source`, local or checkpoint."""
        self._former.local_restores += source == "local"
        self._former.persistent_restores += source == "checkpoint"

    def keep(self) -> None:
        """Start to write the record if some time has passed; call this once a step is finished, and often."""
        if time.monotonic() >= self._write_at:
            ran = time.monotonic() - self._began
            self._write_at = time.monotonic() + min(PERIOD_SECONDS, ran)
            self._write()

    def _write(self) -> None:
        """Start to write the record on the process that leads, unless it is still being written."""
        if not self._job.leads or self._is_hung:
            return
        if self._writing is None or not self._writing.is_alive():
            self._writing = threading.Thread(target=_write, args=(self._place, self._content()), daemon=True)
            self._writing.start()

    def stop(self) -> None:
        """Record that this attempt ends in order."""
        if self._writing is not None:
            self._writing.join(_FLUSH_SECONDS)
        self._is_stopped = True
        self._write()
        if self._writing is not None:
            self._writing.join(_FLUSH_SECONDS)

    def _note_hang(self) -> None:
        self._is_hung = True
        if self._job.leads:
            _write(self._place, self._content())

    def _content(self) -> dict[str, Any]:
        return {
            "time": round(time.time(), 3),
            "attempt": self._job.host.attempt,
            "settings": self._settings,
            "stopped": self._is_stopped,
            "hung": self._is_hung,
            "tally": dataclasses.asdict(self.tally()),
            "seconds": self._job.measurements.as_json(),
        }

    def _read(self) -> dict[str, Any]:
        """Return the former attempts' tally and durations; nothing of a file that cannot be read or is damaged."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            return former_record(json.loads(self._place.read()), self._settings, time.time())
        return {"tally": dataclasses.asdict(Tally()), "seconds": {}, "hung": False}


def former_record(content: dict[str, Any], settings: str, now: float) -> dict[str, Any]:
    """Return the tally, durations and hang of a record that is read at the start of an attempt.

    `now`: Unix seconds. The time since the last write of an attempt that has failed counts up to a period. Raises
    ValueError, TypeError, KeyError or AttributeError if the record is damaged.
    """
    tally = Tally(**content["tally"])
    for field in dataclasses.fields(Tally):
        value = getattr(tally, field.name)
        if not isinstance(value, int | float) or not 0 <= value < 1e12:
            raise ValueError(f"{field.name} is {value!r}")
    if not content["stopped"]:
        tally.failures += 1
        tally.run_seconds += min(max(0.0, now - float(content["time"])), PERIOD_SECONDS)
    is_same = content["settings"] == settings
    seconds = {kind: [float(value) for value in values] for kind, values in content["seconds"].items()}
    if any(not 0 <= value < 1e9 for values in seconds.values() for value in values):
        raise ValueError("a duration is out of range")
    return {"tally": dataclasses.asdict(tally), "seconds": seconds if is_same else {}, "hung": bool(content["hung"])}


def _write(place: Place, content: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        place.write(json.dumps(content).encode())
