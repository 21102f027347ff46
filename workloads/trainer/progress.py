"""What becomes of a finished step's numbers: metrics.jsonl, events, a log line, and the hosts' flags."""

# mypy: disallow-untyped-calls=False

import dataclasses
import math
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from trainer import metrics
from trainer.errors import FatalError, Problem
from trainer.job import Job


@dataclasses.dataclass(frozen=True, slots=True)
class Flags:
    """What at least one host said with its flags of a step; every host reads the same."""

    stop: bool = False
    disk_low: bool = False


@dataclasses.dataclass(slots=True)
class Pending:
    """A step that was dispatched and may not be finished."""

    step: int
    out: Any
    dispatched: float
    ended: "Future[float]"


class Progress:
    """Fetches the numbers of steps in order and records them."""

    def __init__(self, job: Job, batch: int, chips: int) -> None:
        self._job, self._chips = job, chips
        self._tokens = batch * job.config.model.seq_len
        self._lines = metrics.JsonLines(job.out / "metrics.jsonl") if job.is_first else None
        self._peak = metrics.peak_flops(dict(os.environ))
        self._finished_at = 0.0
        self._steps = 0
        self._watcher = ThreadPoolExecutor(1, "step-end")
        self.loss = math.nan

    def began(self, step: int, out: Any, dispatched: float) -> Pending:
        """Watch a step that was just dispatched; `dispatched` is the time before that.

        Its end is seen on a thread: dispatching a step may block until the one before it has ended, or
        longer, and a time taken by the caller after that would give the one's seconds to the other.
        """
        return Pending(step, out, dispatched, self._watcher.submit(_ended, out["loss"]))

    def finish(self, pending: Pending) -> Flags:
        """Wait for a step, record it and return its flags. Raises FatalError if the loss is not finite."""
        out = jax.device_get(pending.out)
        ended = pending.ended.result()
        seconds = max(ended - max(self._finished_at, pending.dispatched), 1e-6)
        self._finished_at = ended
        self.loss = float(out["loss"])
        self._steps += 1
        self._job.stop.arm()
        self._record(pending.step, out, seconds)
        if not math.isfinite(self.loss):
            message = f"the loss of step {pending.step} is {self.loss}"
            raise FatalError(Problem(message, "A restart would repeat it bit for bit; try a lower optim.lr"))
        stop, disk_low = (bool(flag) for flag in np.asarray(out["flags"]))
        return Flags(stop, disk_low)

    def evaluated(self, step: int, loss: float, tokens: int, seconds: float) -> None:
        """Record an evaluation."""
        self._job.events.write("eval", step, seconds, eval_loss=loss)
        if self._lines is not None:
            head = {"time": time.time(), "attempt": self._job.host.attempt, "step": step}
            self._lines.write(head | {"eval_loss": loss, "eval_tokens": tokens})
            metrics.say(f"eval {step:6d}   loss {loss:.4f}   tokens {tokens:,}")

    def _record(self, step: int, out: dict[str, Any], seconds: float) -> None:
        every = self._job.config.run.log_every
        if self._steps == 1 or step % every == 0:
            self._job.events.write("step", step, seconds)
        if self._lines is None:
            return
        speed = self._tokens / seconds
        record = {
            "time": time.time(),
            "attempt": self._job.host.attempt,
            "step": step,
            "loss": self.loss,
            "loss_hex": self.loss.hex(),
            "grad_norm": float(out["grad_norm"]),
            "learning_rate": float(out["learning_rate"]),
            "step_seconds": round(seconds, 4),
            "tokens_per_second": round(speed, 1),
            "mfu": metrics.mfu(self._job.config.model, speed, self._chips, self._peak),
        }
        self._lines.write(record)
        if self._steps == 1 or step % every == 0 or step == self._job.config.run.steps:
            mfu = "" if record["mfu"] is None else f"   mfu {record['mfu']:.1%}"
            metrics.say(f"step {step:6d}   loss {self.loss:.4f}   {speed:9,.0f} tok/s   {seconds:7.3f} s{mfu}")


def _ended(loss: Any) -> float:
    """Wait for a number of a step and return when it came; all of a step's come together."""
    jax.block_until_ready(loss)
    return time.monotonic()
