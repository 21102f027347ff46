"""Faults, one after another, in a run on local slices."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from e2e.harness import DrillError, Lab, Workload
from e2e.soak.faults import HOSTS_PER_SLICE, Fault, Moment, Strike, Target
from e2e.soak.processes import descendants, lives, parent
from e2e.soak.progress import Progress
from e2e.soak.resources import CONTROL_PLANE, TRAINER_ROLE, Resources
from e2e.soak.slice_progress import SliceProgress
from xpk_shared.supervisor.restarts import SHORT_SECONDS

STEPS = 1_000_000  # more than a soak reaches: the learning rate depends on this number
INTERVAL = 5  # steps from one checkpoint to the next
TRAINER = [
    "--config", "tiny", "--set", f"run.steps={STEPS}", "--set", f"checkpoint.every={INTERVAL}",
    "--set", "run.eval_every=0", "--set", "run.log_every=1000", "--set", "data.max_bytes=400000",
    "--set", "data.global_batch=8", "--set", "model.seq_len=64", "--set", "model.layers=1",
    "--set", "model.embed=32", "--set", "model.heads=2", "--set", "model.head_dim=16", "--set", "model.mlp=64",
]  # fmt: skip
DISTURBED = [*TRAINER, "--set", "observe.hang_seconds=10"]  # the minimum at which a busy machine does not look frozen
TPU_TYPE = f"n2-standard-32-{HOSTS_PER_SLICE}"  # one emulated chip per host: its steps are the fastest
_POLL_SECONDS, _SAVE_POLL_SECONDS = 0.1, 0.005
_LIMIT_SECONDS = 240.0  # from a fault to the next finished step; stopped processes take twice 20 s and a grace period
_START_SECONDS = 60.0  # from a fault to the first trainer of the next attempt, for a second signal in it
_JOIN_SECONDS = 120.0  # from a fault to the next grant of a slice
_LOOK_SECONDS = 20.0  # between descriptions, each of which is a process


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Consequences of one fault."""

    fault: Fault
    seconds: float | None  # from its last signal to the next finished step of a later attempt, or of all slices
    in_place: bool
    attempts: int  # later attempts that slice 0 host 0 has started
    missed: int  # signals whose process had ended before
    step: int  # the newest
    lost_steps: int  # finished before the first signal, and undone
    stall_seconds: float | None = None  # longest pause of the steps of elastic slices, less a usual step
    reason: str = ""  # of a run that did not continue

    @property
    def survived(self) -> bool:
        """True if the run continued without help."""
        return not self.reason

    def undone_too_much(self, slices: int) -> str:
        """Return a line if elastic slices have lost finished steps that they must not lose, otherwise "".

        While a slice is active none is lost. If all are hit, the run resumes from the newest checkpoint, or from the
        previous one if a save was running.
        """
        most = 2 * INTERVAL if len(self.fault.slices) == slices else 0
        if self.lost_steps <= most:
            return ""
        name = f"fault {self.fault.number} ({self.fault.kind})"
        return f"{name}: {self.lost_steps} finished steps were lost, expected at most {most}"


@dataclass(slots=True)
class Soak:
    """One disturbed run; `outcomes` and `resources` are of all faults so far."""

    lab: Lab
    slices: int
    max_restarts: int
    artifacts: Path
    min_slices: int | None = None  # of elastic slices
    name: str = "soak"
    outcomes: list[Outcome] = field(default_factory=list)
    resources: Resources = field(default_factory=Resources)
    progress: Progress = field(init=False)
    run: Workload = field(init=False)
    _supervisors: dict[int, int] = field(default_factory=dict)

    def start(self, options: Sequence[str] = ()) -> None:
        """Start the run and wait until all of its hosts train."""
        size = {"num_slices": self.slices, "max_restarts": self.max_restarts}
        all_options = [*elastic_options(self.min_slices), *options]
        self.run = self.lab.create_workload(self.name, **size, trainer=DISTURBED, options=all_options)
        if not options:
            kind = SliceProgress if self.min_slices else Progress
            self.progress = kind(self.run.folder, self.slices, HOSTS_PER_SLICE)
        self._await(self._is_running, _LIMIT_SECONDS)

    def inject(self, fault: Fault) -> Outcome:
        """Inject a fault and wait until the run continues; start it again if it does not."""
        reason = ""
        before, attempts, missed = dict(self._supervisors), len(self.progress.starts[0]), 0
        struck = first = time.time()
        reached, times = 0, dict[int, float]()
        try:
            for strike in fault.strikes:
                struck_at = self._strike(strike, struck)
                if struck_at:
                    times[strike.host] = struck_at
                missed += not struck_at
                struck = time.time()
                reached = reached or self.progress.steps[-1]["step"]
                first = min(times.values(), default=first)
            self._await(lambda: not times or self.progress.is_past(times), _LIMIT_SECONDS)
            self._await(self._is_running, _LIMIT_SECONDS)
        except DrillError as error:
            reason = str(error)
            self.lab.collect(self.artifacts / f"fault-{fault.number}")
            self._start_again()
        stepped = self.progress.stepped_after(struck) or self.progress.stepped_after(first)
        outcome = Outcome(
            fault=fault,
            seconds=None if reason or stepped is None else round(stepped - struck, 3),
            in_place=before == self._supervisors,
            attempts=len(self.progress.starts[0]) - attempts,
            missed=missed,
            step=self.progress.steps[-1]["step"],
            lost_steps=self.progress.undone(reached, first),
            stall_seconds=self.progress.stall(first),
            reason=reason,
        )
        if self.min_slices and outcome.undone_too_much(self.slices):
            self.lab.collect(self.artifacts / f"fault-{fault.number}")
        self.outcomes.append(outcome)
        self._sample()
        return outcome

    def stop(self) -> None:
        """End the run; its output stays."""
        gone = ("--yes", "--grace-period", "1", "--ignore-not-found")
        self.lab.xpk("workload", "delete", self.name, "--cluster", self.lab.cluster, *gone)
        self.progress.read()

    def _start_again(self) -> None:
        """Replace a run that does not continue by one that resumes from its output."""
        self.stop()
        self.start(("--resume",))

    def _strike(self, strike: Strike, struck: float) -> float | None:
        """Send a signal at its moment; return its time in Unix seconds, None if the process has ended before."""
        if strike.moment is Moment.STARTING:
            self._await(lambda: self.progress.started_after(struck) is not None, _START_SECONDS)
        elif strike.moment is Moment.JOINING:
            self._await(lambda: self.progress.joined_after(struck) is not None, _JOIN_SECONDS, _SAVE_POLL_SECONDS)
        elif strike.moment is Moment.SAVING:
            self._await(lambda: self._has_run(strike.steps), _LIMIT_SECONDS)
            saves = len(self.progress.saves_begun)
            self._await(lambda: len(self.progress.saves_begun) > saves, _LIMIT_SECONDS, _SAVE_POLL_SECONDS)
        elif strike.steps:
            self._await(lambda: self._has_run(strike.steps), _LIMIT_SECONDS)
        time.sleep(strike.delay_seconds)
        self.progress.read()
        pid, supervisor = self.progress.pid(strike.host), self._supervisors[strike.host]
        is_own = parent(pid) == supervisor
        if strike.target is Target.SUPERVISOR:
            pid, is_own = supervisor, parent(supervisor) != 0
        at = time.time()
        try:
            if is_own:  # no other process has reused its number
                os.kill(pid, strike.signal)
        except ProcessLookupError:
            return None
        return at if is_own else None

    def _has_run(self, steps: int) -> bool:
        """Return whether the newest attempt has finished so many steps, and ends too late to cause a pause."""
        age = time.time() - max(starts[-1].time for starts in self.progress.starts.values())
        return self.progress.steps_of_attempt >= steps and age >= SHORT_SECONDS

    def _is_running(self) -> bool:
        """Return whether all trainers run and have finished a step together; then record their supervisors."""
        progress = self.progress
        if not progress.is_complete:
            return False
        supervisors = {host: parent(progress.pid(host)) for host in progress.starts}
        if not all(supervisors.values()) or not all(lives(progress.pid(host)) for host in progress.starts):
            return False
        self._supervisors = supervisors
        return True

    def _await(self, until: Callable[[], bool], seconds: float, every: float = _POLL_SECONDS) -> None:
        """Read until `until()` is true. Raises DrillError after a timeout, or if the run has ended."""
        deadline, looked = time.monotonic() + seconds, time.monotonic()
        while True:
            self.progress.read()
            if until():
                return
            if time.monotonic() > deadline:
                raise DrillError(f"no progress within {seconds:.0f} s: {self._state()}")
            if time.monotonic() > looked + _LOOK_SECONDS:
                looked = time.monotonic()
                if (state := self._state()).startswith(("Failed", "Succeeded")):
                    raise DrillError(f"the run has ended: {state}")
            time.sleep(every)

    def _state(self) -> str:
        described = self.run.describe()
        return f"{described['phase']}, {described['reason']}"

    def _sample(self) -> None:
        """Sample the processes that live longer than one attempt."""
        daemon = self.lab.folder / "state" / "clusters" / self.lab.cluster / "daemon.lock"
        pids, processes = {CONTROL_PLANE: int(daemon.read_text(encoding="ascii") or 0)}, 0
        for host, supervisor in self._supervisors.items():
            shim = parent(supervisor)
            pids |= {f"supervisor {host}": supervisor, f"shim {host}": shim}
            if self.min_slices:
                pids[f"{TRAINER_ROLE} {host}"] = self.progress.pid(host)
            processes += len(descendants(parent(shim)))
        self.resources.sample(pids, processes)


def elastic_options(min_slices: int | None) -> list[str]:
    """Return the options of a workload with elastic slices; none without them."""
    return ["--min-slices", str(min_slices)] if min_slices else []


def reference_losses(
    lab: Lab,
    name: str,
    slices: int,
    steps: int,
    seconds: float,
    *,
    min_slices: int | None = None,
    trainer: Sequence[str] = TRAINER,
    options: Sequence[str] = (),
) -> dict[int, str]:
    """Return the loss of every step of an undisturbed run on the same slices, in hexadecimal."""
    options = [*elastic_options(min_slices), *options]
    run = lab.create_workload(name, num_slices=slices, max_restarts=0, trainer=[*trainer], options=options)
    run.await_(lambda: bool(run.steps) and run.steps[-1]["step"] >= steps, seconds)
    lab.xpk("workload", "delete", run.name, "--cluster", lab.cluster, "--yes", "--grace-period", "1")
    if run.lost_steps:
        raise DrillError("the undisturbed run was disturbed")
    return run.losses
