"""The mAP of elastic slices: each slice writes the detections of its shares, and the leading one measures them all.

The files are evaluations/<step>/<share>.npz in the output folder, until the mAP is recorded. Detections depend on the
state and the share alone, so a share that another slice computes again has the same file. A share is written before it
is part of the sum of the evaluation, so the leading slice finds all of them. If it is lost before it has recorded a
mAP, the next one that leads finds the files, and so does the next attempt.
"""

import contextlib
import functools
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from trainer.data import batches
from trainer.detection import DetectionLog
from trainer.errors import StorageError, reason
from trainer.evaluation import Precisions
from trainer.hosts import timeouts
from trainer.setup import Run
from trainer.telemetry.metrics import say
from xpk_shared.storage import Place

_FOLDER = "evaluations"


class SharedDetections:
    """The detections of a run's evaluations, as one host of a slice writes and reads them."""

    def __init__(self, run: Run, rows: Callable[[int], slice]) -> None:
        """Prepare; `rows` returns the rows of a batch in a share."""
        self._run, self._rows, self._precisions = run, rows, Precisions(run)
        self._pool, self._pending = ThreadPoolExecutor(1, "mAP"), deque[Future[None]]()
        self._folder, self._shares, self._waits = run.job.out / _FOLDER, run.job.host.replicas, 0

    def write(self, step: int, share: int, log: DetectionLog) -> None:
        """Write the detections of a share on the first host; others have none. Raises StorageError."""
        job = self._run.job
        if not job.is_first:
            return
        what, limit = f"the write of its detections after step {step}", timeouts.limits(job).storage()
        with job.watchdog.waiting(what, step, is_own=lambda: True, min_seconds=limit):
            place = self._folder / str(step) / f"{share}.npz"
            try:
                place.write(log.pack())
            except OSError as error:
                raise StorageError(f"cannot write {place}: {reason(error)}") from error

    def measure(self, step: int) -> None:
        """Begin to measure the detections of all shares after the mAP before; the leading slice's hosts call this.

        Raises the error of an earlier one.
        """
        self._begin(lambda: [step])

    def measure_left(self, until: int) -> None:
        """Begin to measure the detections up to step `until` that another slice or attempt has not measured.

        The hosts of a slice that begins to lead call this. Raises the error of an earlier mAP.
        """
        self._begin(functools.partial(self._left, until))

    def wait(self) -> None:
        """Wait until every mAP is recorded that this slice measures; all of its hosts call this."""
        job = self._run.job
        limit = job.config.observe.data_hang_seconds  # no chip computes
        with job.watchdog.waiting("the mAP of the last evaluation", job.config.run.steps, min_seconds=limit):
            while self._pending:
                self._pending.popleft().result()
            self._waits += 1
            job.peers.barrier(f"detections {self._waits}")

    def _begin(self, steps: Callable[[], list[int]]) -> None:
        while self._pending and self._pending[0].done():
            self._pending.popleft().result()
        if self._run.job.is_first:
            self._pending.append(self._pool.submit(self._measure, steps))

    def _measure(self, steps: Callable[[], list[int]]) -> None:
        """Record the mAP of the evaluations after these steps, then remove their files."""
        for step in steps():
            folder = self._folder / str(step)
            if (log := self._read(folder)) is None:
                say(f"warning: no mAP of step {step}, unless another slice has recorded it: {folder} is incomplete")
                continue
            self._precisions.measure(log, step)
            with contextlib.suppress(OSError):  # the next leading slice would record the same once more
                folder.remove_tree("")

    def _left(self, until: int) -> list[int]:
        """Return the steps up to `until` of which all detections are stored. Raises StorageError."""
        try:
            files = [entry.name.partition("/") for entry in self._folder.walk(frozenset())]
        except OSError as error:
            raise StorageError(f"cannot list the detections in {self._folder}: {reason(error)}") from error
        shares = Counter(int(step) for step, _, name in files if step.isdecimal() and name.endswith(".npz"))
        return sorted(step for step, stored in shares.items() if step <= until and stored == self._shares)

    def _read(self, folder: Place) -> DetectionLog | None:
        """Return the detections of all images, None if some are missing. Raises StorageError."""
        try:
            logs = [DetectionLog.unpack((folder / f"{share}.npz").read()) for share in range(self._shares)]
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"cannot read the detections in {folder}: {reason(error)}") from error
        return DetectionLog.merge(logs, [self._numbers(share) for share in range(self._shares)])

    def _numbers(self, share: int) -> list[int]:
        """Return the numbers of a share's images, in the order in which they are evaluated."""
        run = self._run
        ids = batches.eval_ids(run.batch, run.records - run.held_out, run.held_out)
        ids_N = np.concatenate([ids_B[self._rows(share)] for ids_B in ids])
        return [int(number) for number in ids_N if number >= 0]
