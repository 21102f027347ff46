"""The bundled trainer as a Ray actor: one per host, advanced by the driver.

After a failure the driver replaces all actors, because `jax.distributed` cannot be initialized twice in a process.
"""

import contextlib
import dataclasses
import os
import random
import threading
from collections.abc import Sequence

from trainer.config import Config
from trainer.errors import ExitCode, FatalError
from trainer.hosts import job as jobs
from trainer.hosts.bootstrap import Host, bracketed, read_host, resolve
from trainer.telemetry import metrics
from xpk_shared.links.connection import listen
from xpk_shared.links.errors import AddressError

# Beyond those of Ray's workers, and below 32768, where Linux takes the ports of outgoing connections from: one of these
# could get the port before JAX listens, which then ends the process with SIGSEGV.
_PORTS = range(20_000, 32_000, 2)


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """Progress of an actor: the number of trained steps; at its end, its exit code and the cause."""

    step: int
    code: int | None = None
    cause: str = ""


class Trainer:
    """The trainer of one host. Training runs on a thread, so that a lost peer is detected during a collective."""

    def __init__(self, *, is_shipped: bool) -> None:
        self._changed = threading.Condition()
        self._report = Report(0)
        self._allowed_steps = 0  # steps that may be started
        self._is_ready = False
        self._job: jobs.Job | None = None
        if not is_shipped:  # otherwise Ray has started this process in the folder of the shipped code
            os.chdir(os.environ["XPK_RAY_FOLDER"])
        _write_as_host(os.environ["XPK_RAY_HOST_PID"])

    def choose_coordinator(self) -> str:
        """Return host:port for `jax.distributed`; the next port is for the trainer's own connections."""
        name = read_host(os.environ).coordinator.rpartition(":")[0]
        address = resolve(f"{name}:0", 1.0, metrics.say)[0]
        return bracketed(address, two_free_ports(address))

    def begin(self, config: Config, attempt: int, coordinator: str) -> Report:
        """Join the other hosts and prepare everything; return once the first step can start, or training has ended."""
        host = dataclasses.replace(read_host(os.environ), attempt=attempt, coordinator=coordinator)
        threading.Thread(target=self._run, args=(config, host), name="training", daemon=True).start()
        with self._changed:
            self._changed.wait_for(lambda: self._is_ready or self._report.code is not None)
            return self._report

    def advance(self, steps: int, *, stop: bool = False) -> Report:
        """Train `steps` more steps; with `stop`, save and end after the last one that any host has started."""
        if stop and self._job is not None:
            self._job.stop.request()
        with self._changed:
            self._allowed_steps += steps
            self._changed.notify_all()
            target_step = self._allowed_steps
            self._changed.wait_for(lambda: self._report.code is not None or self._report.step >= target_step)
            return self._report

    def _run(self, config: Config, host: Host) -> None:
        try:
            self._end(self._train(config, host))
        except BaseException as error:
            if self._job is None:
                self._end(early_exit_code(error), cause=str(error))
            else:
                code = jobs.report_error(self._job, error)
                self._end(code, cause=" ".join(str(error).split())[:300] or type(error).__name__)

    def _train(self, config: Config, host: Host) -> int:
        self._job = jobs.open_job(config, host, self._end)
        coordinator_future = jobs.meet(self._job)
        from trainer.train import steps  # imports JAX while the hosts connect

        training = steps(self._job, coordinator_future)
        while True:
            try:
                self._await_driver(next(training))
            except StopIteration as ended:
                return int(ended.value)

    def _await_driver(self, step: int) -> None:
        """Report progress, and wait until the driver requests the next step."""
        with self._changed:
            if not self._is_ready:
                self._is_ready, self._allowed_steps = True, step
            self._report = dataclasses.replace(self._report, step=step)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._allowed_steps > step)

    def _end(self, code: int, seconds: float = jobs.FLUSH_SECONDS, cause: str = "") -> None:
        """Report the end of this actor to the driver; only the first call has an effect."""
        metrics.flush(seconds)
        with self._changed:
            if self._report.code is None:
                self._report = dataclasses.replace(self._report, code=int(code), cause=cause)
            self._changed.notify_all()


def early_exit_code(error: BaseException) -> ExitCode:
    """Return the exit code for an error before the records are open, which is that of the trainer without Ray."""
    return error.exit_code if isinstance(error, FatalError) else ExitCode.CRASH


def two_free_ports(address: str, ports: Sequence[int] = _PORTS) -> int:
    """Return one of the ports that is free like the next one. Raises OSError if there is none."""
    for port in random.Random().sample(ports, len(ports)):  # noqa: S311  # no secret depends on it
        with contextlib.suppress(AddressError), listen(address, port), listen(address, port + 1):
            return port
    raise OSError(f"no two free ports at {address}")


def _write_as_host(pid: str) -> None:
    """Redirect this process's output to the host's own log, instead of a file of Ray's."""
    for number in (1, 2):
        with contextlib.suppress(OSError):  # if the host's output cannot be opened, the output stays in Ray's file
            descriptor = os.open(f"/proc/{pid}/fd/{number}", os.O_WRONLY | os.O_APPEND)
            os.dup2(descriptor, number)
            os.close(descriptor)
