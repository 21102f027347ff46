"""Time limits of waits in seconds: as configured, or from what the run has measured (`auto`).

A measured limit is a multiple of the 99th percentile and never below its floor. That of steps is above the time for
which a request to a bucket is retried, because steps wait for data. So is that of saves and restores in a bucket: an
outage fails a save, after which training goes on, but does not end the run.

Until an attempt has finished `_OWN_STEPS` steps itself, its steps have the fixed limit, so that a run whose steps have
become slower is not ended. The attempt after a hang has the fixed limits, so that one that was too short does not end
attempt after attempt.
"""

import dataclasses
import statistics

from trainer.config import AUTO, Config
from trainer.hosts.measurements import (
    CHIPS,
    EVALUATION,
    JOIN,
    LOCAL_SAVE,
    SAVE,
    STEP,
    Measurements,
    compilation,
    restoration,
)
from xpk_shared.time_limits import time_limit

FACTOR = 5.0  # times the 99th percentile
# Until enough is measured:
STEP_START, SAVE_START, COMPILE_START, JOIN_START, CHIPS_START = 300.0, 1800.0, 7200.0, 300.0, 900.0
SAVE_FLOOR, COMPILE_FLOOR, JOIN_FLOOR, CHIPS_FLOOR = 300.0, 900.0, 60.0, 180.0
BUCKET_FLOOR = 2400.0  # TensorStore retries a request for up to 26 minutes, and the commit retries several
_IN_STORE = (SAVE, restoration("checkpoint"))
_STEPS, _OWN_STEPS, _BATCHES, _SAVES, _RESTORES, _JOINS = 100, 20, 20, 5, 3, 3  # durations that are enough
_RECENT = 20  # steps
_ENDING = 30.0  # for a slice that hangs to report it, to end, and to be missed by the others


@dataclasses.dataclass(frozen=True)
class TimeLimits:
    """Time limits of one host."""

    config: Config = dataclasses.field(default_factory=Config)
    measured: Measurements = dataclasses.field(default_factory=Measurements)
    is_elastic: bool = False  # True if a step takes several times as long once slices are lost
    in_bucket: bool = False  # True if checkpoints are saved in a bucket

    @property
    def is_on(self) -> bool:
        """False without a watchdog."""
        return self.config.observe.hang_seconds == AUTO or self.config.observe.hang_seconds > 0

    def step(self) -> float:
        """Return the limit of a step, or of waiting for its data."""
        observe, steps = self.config.observe, self.measured.seconds(STEP)
        own = self.measured.own(STEP)
        recent = steps[-min(own, _RECENT) :] if own else []
        of_median = observe.hang_factor * statistics.median(recent) if recent else 0.0
        if observe.hang_seconds != AUTO:
            return max(observe.hang_seconds, of_median)
        start = max(STEP_START, observe.min_hang_seconds, of_median)
        if own < _OWN_STEPS or not self.measured.trusts_former:
            return start
        floor = max(observe.min_hang_seconds, of_median if self.is_elastic else 0.0)
        return time_limit(steps, start=start, floor=floor, factor=FACTOR, enough=_STEPS)

    def others(self) -> float:
        """Return the limit of a wait for other slices, of which one may be ended for a hang and its work done again.

        One that has just joined still has the first limit of steps.
        """
        is_measured = self.config.observe.hang_seconds == AUTO
        return self.step() + max(self.step(), STEP_START if is_measured else 0.0) + _ENDING

    def evaluation(self) -> float:
        """Return the limit of a batch of an evaluation, if it is above that of a step."""
        observe, batches = self.config.observe, self.measured.seconds(EVALUATION)
        if observe.hang_seconds != AUTO:
            return 0.0
        floor = observe.min_hang_seconds
        if not self.measured.own(EVALUATION):
            batches = []
        return time_limit(batches, start=max(STEP_START, floor), floor=floor, factor=FACTOR, enough=_BATCHES)

    def storage(self, kind: str = "") -> float:
        """Return the limit of a wait for storage; `kind`: of a save or restore, whose duration is measured."""
        if self.config.checkpoint.hang_seconds != AUTO:
            return self.config.checkpoint.hang_seconds
        times = self.measured.seconds(kind) if self.measured.trusts_former else []
        enough = _SAVES if kind in (SAVE, LOCAL_SAVE) else _RESTORES
        floor = BUCKET_FLOOR if self.in_bucket and kind in _IN_STORE else SAVE_FLOOR
        return time_limit(times, start=max(SAVE_START, floor), floor=floor, factor=FACTOR, enough=enough)

    def compilation(self, program: str = "") -> float:
        """Return the limit of compiling a program."""
        if self.config.observe.compile_hang_seconds != AUTO:
            return self.config.observe.compile_hang_seconds
        times = self.measured.seconds(compilation(program)) if self.measured.trusts_former else []
        return time_limit(times, start=COMPILE_START, floor=COMPILE_FLOOR, factor=FACTOR)

    def join(self) -> float:
        """Return the limit of joining hosts that are connected."""
        times = self.measured.seconds(JOIN) if self.measured.trusts_former else []
        return time_limit(times, start=JOIN_START, floor=JOIN_FLOOR, factor=FACTOR, enough=_JOINS)

    def chips(self) -> float:
        """Return the limit of initializing the chips."""
        times = self.measured.seconds(CHIPS) if self.measured.trusts_former else []
        return time_limit(times, start=CHIPS_START, floor=CHIPS_FLOOR, factor=FACTOR, enough=_JOINS)
