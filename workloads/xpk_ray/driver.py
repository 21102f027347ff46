"""Driver of the bundled trainer: actors on all hosts, steps by remote calls, new actors after a failure.

It runs in the head's launcher. Attempt numbers increase with new actors as well as with restarts of the JobSet.
"""

# mypy: disallow-untyped-calls=False

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from trainer.config import Config, warn
from trainer.errors import ExitCode, FatalError, Problem, reason
from trainer.hosts.bootstrap import Host
from trainer.main import train_config
from trainer.storage import open_place
from trainer.telemetry.metrics import say
from xpk_ray.actor import Report, Trainer
from xpk_ray.budget import Budget
from xpk_ray.launcher import Launcher, Work, join_ray
from xpk_ray.slices import Slice, one_line, slices
from xpk_shared.storage import Place

_CALL_SECONDS = 2.0  # target duration of a call of several steps, and so the delay of a SIGTERM to the trainers
_REPORT_SECONDS = 3.0  # from the first failure until all reports have arrived
_POLL_SECONDS = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """Cause of a failed attempt, and the resulting exit code."""

    code: int
    message: str


def training(arguments: Sequence[str], restarts: int) -> Work:
    """Return the work of training with the trainer's `arguments`, with at most `restarts` restarts.

    Raises FatalError for arguments that the trainer rejects.
    """
    warnings: list[str] = []
    config = train_config(arguments, warnings.append)

    def run(launcher: Launcher) -> int:
        for warning in warnings:  # here, because only the head runs this
            warn(warning)
        return Driver(launcher, config, restarts).run()

    return run


class Driver:
    """Attempts of a training job: actors on all hosts, until they end or no restart is left."""

    def __init__(
        self,
        launcher: Launcher,
        config: Config,
        restarts: int,
        *,
        connect: Callable[[Launcher], Any] = join_ray,
        reserve: Callable[[], list[Slice]] = slices,
        open_budget: Callable[[Place, str, int], Budget] = Budget,
    ) -> None:
        output_dir = config.run.output_dir
        if output_dir and "://" not in output_dir and launcher.ships_code:  # actors start in another folder
            output_dir = os.path.abspath(os.path.expanduser(output_dir))
            config = dataclasses.replace(config, run=dataclasses.replace(config.run, output_dir=output_dir))
        self._launcher, self._config = launcher, config
        self._connect, self._reserve = connect, reserve
        self._host: Host = launcher.host
        output = config.run.output_dir or self._host.output_dir or f"output/{config.name}"
        try:
            self._budget = open_budget(open_place(output), self._host.job_id, restarts)
        except PermissionError as error:  # permanent, unlike an outage
            raise FatalError(
                Problem(f"{output} cannot be used: {reason(error)}", "Use --set run.output_dir")
            ) from error
        self._ray: Any = None
        self._slices: list[Slice] = []

    def run(self) -> int:
        """Train to the end; return the exit code of all hosts."""
        self._ray = self._connect(self._launcher)
        if self._launcher.stopping.is_set():
            return ExitCode.PREEMPTED
        self._budget.begin()
        if self._budget.is_exceeded:
            return self._report_exhausted()
        self._slices = self._reserve()
        while True:
            actors = self._start_actors()
            outcome = self._run_attempt(actors)
            if not isinstance(outcome, Failure):
                return outcome
            say(f"driver: {outcome.message}")
            if self._is_asked_to_stop():
                return ExitCode.PREEMPTED
            if outcome.code == ExitCode.MOVED:
                self._budget.record_stop_request()  # not counted by the JobSet either
            if outcome.code in (ExitCode.FATAL, ExitCode.MOVED, ExitCode.PREEMPTED):
                return outcome.code
            if not self._budget.replace():
                # Without replacements the JobSet's own count is the same, and more accurate.
                return self._report_exhausted() if self._budget.replaced else ExitCode.CRASH
            for actor in actors:
                self._ray.kill(actor)
            say(f"driver: restarting all trainers on the same hosts (restarts: {self._budget})")

    def _report_exhausted(self) -> int:
        say(f"driver: error: no restarts left: {self._budget}")
        return ExitCode.FATAL

    def _is_asked_to_stop(self) -> bool:
        if not self._launcher.stopping.is_set():
            return False
        self._budget.record_stop_request()
        return True

    def _start_actors(self) -> list[Any]:
        """Start an actor on every host, in the order of their process ids."""
        remote = self._ray.remote(max_restarts=0, max_task_retries=0)(Trainer)
        options = [slice_.options(host) for slice_ in self._slices for host in range(slice_.hosts)]
        return [
            remote.options(**actor_options).remote(is_shipped=self._launcher.ships_code) for actor_options in options
        ]

    def _run_attempt(self, actors: list[Any]) -> int | Failure:
        """Drive the actors until all have ended normally, which gives the exit code, or one fails."""
        try:
            coordinator = self._ray.get(actors[0].choose_coordinator.remote())
        except self._ray.exceptions.RayError as error:
            return Failure(ExitCode.CRASH, f"{self._host.name(0)}: {one_line(error)}")
        attempt = self._host.attempt + self._budget.replaced
        calls = [actor.begin.remote(self._config, attempt, coordinator) for actor in actors]
        reports = self._gather(calls, until_stop=True)
        steps = 1
        while not isinstance(reports, Failure):
            codes = {report.code for report in reports} - {None}
            if codes:
                return int(max(code for code in codes if code is not None))
            previous_step, began = reports[0].step, time.monotonic()
            stop = self._is_asked_to_stop()
            reports = self._gather([actor.advance.remote(steps, stop=stop) for actor in actors])
            if not isinstance(reports, Failure):
                done, seconds = max(1, reports[0].step - previous_step), time.monotonic() - began
                steps = max(1, min(2 * steps, int(_CALL_SECONDS * done / max(seconds, 1e-3))))
        return reports

    def _gather(self, calls: list[Any], *, until_stop: bool = False) -> list[Report] | Failure:
        """Wait for all actors' reports, or for the first failure and then briefly for the others' reports.

        With `until_stop`, return at a stop request, because there is nothing to save yet.
        """
        reports: dict[int, Report] = {}
        errors: dict[int, str] = {}
        pending, deadline = list(calls), None
        while pending:
            ready, pending = self._ray.wait(pending, num_returns=1, timeout=_POLL_SECONDS)
            if until_stop and self._is_asked_to_stop():
                return Failure(ExitCode.PREEMPTED, "received a stop request before the first step; nothing to save")
            if not ready and (deadline is None or time.monotonic() < deadline):
                continue
            if not ready:
                break
            process = calls.index(ready[0])
            try:
                reports[process] = self._ray.get(ready[0])
            except self._ray.exceptions.RayError as error:
                errors[process] = one_line(error)
            failed = errors or any(report.code not in _NORMAL_CODES for report in reports.values())
            deadline = time.monotonic() + _REPORT_SECONDS if failed and deadline is None else deadline
        if deadline is None:
            return [reports[process] for process in range(len(calls))]
        return self._find_cause(reports, errors)

    def _find_cause(self, reports: dict[int, Report], errors: dict[int, str]) -> Failure:
        """Return the failure that caused the others."""
        for process, report in sorted(reports.items()):
            if report.code == ExitCode.MOVED:
                return Failure(ExitCode.MOVED, f"{self._host.name(process)}: {_cause(report)}")
        for process, report in sorted(reports.items()):
            if report.code == ExitCode.FATAL and report.cause:
                return Failure(ExitCode.FATAL, f"{self._host.name(process)}: {report.cause}")
        for process, report in sorted(reports.items()):
            if report.code not in (*_NORMAL_CODES, ExitCode.PEER_LOST, ExitCode.FATAL):
                return Failure(ExitCode.CRASH, f"{self._host.name(process)}: {_cause(report)}")
        # JAX aborts all others when process 0 is gone, so its death explains theirs.
        if errors:
            first = 0 if 0 in errors else next(iter(errors))
            return Failure(ExitCode.CRASH, f"{self._host.name(first)}: its trainer died")
        ended = [
            (report.code != ExitCode.FATAL, process)
            for process, report in reports.items()
            if report.code not in _NORMAL_CODES
        ]
        is_lost_peer, process = min(ended)
        message = f"{self._host.name(process)}: {_cause(reports[process])}"
        return Failure(ExitCode.CRASH if is_lost_peer else ExitCode.FATAL, message)


def _cause(report: Report) -> str:
    """Return the cause of a trainer's end; causes outside its training are only in its host's log."""
    ended = "its trainer hung" if report.code == ExitCode.HUNG else f"its trainer exited with {report.code}"
    return report.cause or f"{ended}; see its log"


_NORMAL_CODES = (None, ExitCode.DONE, ExitCode.PREEMPTED, ExitCode.INTERRUPTED)
