"""JAX profiles of a few steps, on the configured hosts, stored beside TensorBoard's files."""

# mypy: disallow-untyped-calls=False

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import jax

from trainer.errors import reason
from trainer.hosts import timeouts
from trainer.hosts.job import Job
from trainer.observe.step_log import Pending
from trainer.telemetry.metrics import say
from trainer.telemetry.tensorboard import FOLDER


class Profiler:
    """Profiler of `observe.profile_steps` steps from `observe.profile_start` on, if this host is configured to."""

    def __init__(self, job: Job) -> None:
        observe = job.config.observe
        is_profiled = observe.profiles(job.host.process_id)
        self._job, self._first = job, observe.profile_start if is_profiled else 0
        self._end = self._first + observe.profile_steps
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def start_or_end(self, step: int, running: Pending | None) -> None:
        """Start or end the profile before `step`, if scheduled; `running` is the previous step, if it may still run."""
        if self._folder is None and step != self._first:
            return
        if self._folder is None or step >= self._end:
            if running is not None:
                with self._job.watchdog.waiting(f"step {running.step}", running.step):
                    running.end_time.result()  # so that the profile has complete steps
            if self._folder is None:
                with self._watch_wait("the start of its profile", step):
                    self._folder = tempfile.TemporaryDirectory(prefix="xpk-profile-")
                    jax.profiler.start_trace(self._folder.name)
            else:
                self.close()

    def step(self, step: int) -> contextlib.AbstractContextManager[Any]:
        """Return a context that marks the dispatch of `step` in the profile."""
        if self._folder is None:
            return contextlib.nullcontext()
        return jax.profiler.StepTraceAnnotation("train", step_num=step)

    def close(self) -> None:
        """End the profile in progress, if any, and store it."""
        if self._folder is None:
            return
        with self._watch_wait("the end of its profile", self._end):
            jax.profiler.stop_trace()
            self._store(Path(self._folder.name))
            self._folder.cleanup()
        self._folder = None

    def _store(self, folder: Path) -> None:
        """Write the profile in `folder` to the output; print a warning if that fails."""
        host = self._job.host
        place = self._job.out / FOLDER / "plugins" / "profile" / f"step-{self._first}-attempt-{host.attempt}"
        try:
            for file in sorted(folder.rglob("*")):
                suffix = next((end for end in (".xplane.pb", ".trace.json.gz") if file.name.endswith(end)), "")
                if suffix:
                    (place / f"s{host.slice_id}-h{host.worker_id}{suffix}").write(file.read_bytes())
            say(f"{host.name(host.process_id)}: profile from step {self._first} is in {place}")
        except OSError as error:
            say(f"warning: the profile cannot be written to {place}: {reason(error)}")

    def _watch_wait(self, subject: str, step: int) -> contextlib.AbstractContextManager[None]:
        """Watch a wait for the profiler, or for the storage of a profile."""
        min_seconds = timeouts.limits(self._job).storage()
        return self._job.watchdog.waiting(subject, step, is_own=lambda: True, min_seconds=min_seconds)
