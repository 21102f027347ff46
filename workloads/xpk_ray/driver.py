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
from xpk_ray.launcher import Launcher, Work, joined
from xpk_ray.slices import Slice, one_line, slices
from xpk_shared.storage import Place

_CALL_SECONDS = 2.0  # target duration of a call of several steps, and so the delay of a SIGTERM to the trainers
_VERDICT_SECONDS = 3.0  # from the first failure until all reports are in
_POLL_SECONDS = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """Cause of a failed attempt, and the resulting exit code."""

    code: int
    words: str


def training(arguments: Sequence[str], restarts: int) -> Work:
    """Return the work of training with the trainer's `arguments`, restarted at most `restarts` times in all.

    Raises FatalError for arguments that the trainer rejects.
    """
    warnings: list[str] = []
    config = train_config(arguments, warnings.append)

    def run(launcher: Launcher) -> int:
        for warning in warnings:  # here, as only the head runs this
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
        connect: Callable[[Launcher], Any] = joined,
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
        where = config.run.output_dir or self._host.output_dir or f"output/{config.name}"
        try:
            self._budget = open_budget(open_place(where), self._host.job_id, restarts)
        except PermissionError as error:  # permanent, unlike an outage
            raise FatalError(Problem(f"{where} cannot be used: {reason(error)}", "Use --set run.output_dir")) from error
        self._ray: Any = None
        self._slices: list[Slice] = []

    def run(self) -> int:
        """Train to the end; return the exit code of all hosts."""
        self._ray = self._connect(self._launcher)
        if self._launcher.stopping.is_set():
            return ExitCode.PREEMPTED
        self._budget.begin()
        if self._budget.is_overdrawn:
            return self._nothing_left()
        self._slices = self._reserve()
        while True:
            actors = self._make()
            outcome = self._attempt(actors)
            if not isinstance(outcome, Failure):
                return outcome
            say(f"driver: {outcome.words}")
            if self._is_asked_to_stop():
                return ExitCode.PREEMPTED
            if outcome.code in (ExitCode.FATAL, ExitCode.PREEMPTED):
                return outcome.code
            if not self._budget.replace():
                # Without replacements the JobSet's own count is the same, and more accurate.
                return self._nothing_left() if self._budget.replaced else ExitCode.CRASH
            for actor in actors:
                self._ray.kill(actor)
            say(f"driver: restarting all trainers on the same hosts (restarts: {self._budget})")

    def _nothing_left(self) -> int:
        say(f"driver: error: no restart is left: {self._budget}")
        return ExitCode.FATAL

    def _is_asked_to_stop(self) -> bool:
        if not self._launcher.stopping.is_set():
            return False
        self._budget.asked_to_stop()
        return True

    def _make(self) -> list[Any]:
        """Start an actor on every host, in the order of their process ids."""
        remote = self._ray.remote(max_restarts=0, max_task_retries=0)(Trainer)
        places = [one.options(host) for one in self._slices for host in range(one.hosts)]
        return [remote.options(**place).remote(shipped=self._launcher.ships_code) for place in places]

    def _attempt(self, actors: list[Any]) -> int | Failure:
        """Drive the actors until all have ended normally, which gives the exit code, or one fails."""
        try:
            coordinator = self._ray.get(actors[0].meeting_place.remote())
        except self._ray.exceptions.RayError as error:
            return Failure(ExitCode.CRASH, f"{self._host.name(0)}: {one_line(error)}")
        attempt = self._host.attempt + self._budget.replaced
        begun = [actor.begin.remote(self._config, attempt, coordinator) for actor in actors]
        reports = self._gather(begun, until_stop=True)
        steps = 1
        while not isinstance(reports, Failure):
            codes = {report.code for report in reports} - {None}
            if codes:
                return int(max(code for code in codes if code is not None))
            before, began = reports[0].step, time.monotonic()
            stop = self._is_asked_to_stop()
            reports = self._gather([actor.advance.remote(steps, stop=stop) for actor in actors])
            if not isinstance(reports, Failure):
                done, seconds = max(1, reports[0].step - before), time.monotonic() - began
                steps = max(1, min(2 * steps, int(_CALL_SECONDS * done / max(seconds, 1e-3))))
        return reports

    def _gather(self, calls: list[Any], *, until_stop: bool = False) -> list[Report] | Failure:
        """Wait for all actors' reports, or for the first failure and then briefly for the others' reports.

        `until_stop`: return at a stop request, as there is nothing to save yet.
        """
        reports: dict[int, Report] = {}
        died: dict[int, str] = {}
        waiting, deadline = list(calls), None
        while waiting:
            ready, waiting = self._ray.wait(waiting, num_returns=1, timeout=_POLL_SECONDS)
            if until_stop and self._is_asked_to_stop():
                return Failure(ExitCode.PREEMPTED, "asked to stop before the first step; there is nothing to save")
            if not ready and (deadline is None or time.monotonic() < deadline):
                continue
            if not ready:
                break
            process = calls.index(ready[0])
            try:
                reports[process] = self._ray.get(ready[0])
            except self._ray.exceptions.RayError as error:
                died[process] = one_line(error)
            failed = died or any(report.code not in _IN_ORDER for report in reports.values())
            deadline = time.monotonic() + _VERDICT_SECONDS if failed and deadline is None else deadline
        if deadline is None:
            return [reports[process] for process in range(len(calls))]
        return self._judge(reports, died)

    def _judge(self, reports: dict[int, Report], died: dict[int, str]) -> Failure:
        """Return the failure that caused the others."""
        for process, report in sorted(reports.items()):
            if report.code == ExitCode.FATAL and report.why:
                return Failure(ExitCode.FATAL, f"{self._host.name(process)}: {report.why}")
        for process, report in sorted(reports.items()):
            if report.code not in (*_IN_ORDER, ExitCode.PEER_LOST, ExitCode.FATAL):
                return Failure(ExitCode.CRASH, f"{self._host.name(process)}: {_why(report)}")
        # JAX aborts all others when process 0 is gone, so its death explains theirs.
        if died:
            first = 0 if 0 in died else next(iter(died))
            return Failure(ExitCode.CRASH, f"{self._host.name(first)}: its trainer died")
        ended = [
            (report.code != ExitCode.FATAL, process)
            for process, report in reports.items()
            if report.code not in _IN_ORDER
        ]
        only_lost, process = min(ended)
        words = f"{self._host.name(process)}: {_why(reports[process])}"
        return Failure(ExitCode.CRASH if only_lost else ExitCode.FATAL, words)


def _why(report: Report) -> str:
    """Return the reason why a trainer ended; causes outside its training are only in its host's log."""
    ended = "it hung" if report.code == ExitCode.HUNG else f"its trainer ended with {report.code}"
    return report.why or f"{ended}; see its log"


_IN_ORDER = (None, ExitCode.DONE, ExitCode.PREEMPTED, ExitCode.INTERRUPTED)
