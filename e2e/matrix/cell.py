"""One fault in one run."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from e2e.harness import DrillError, Lab, Workload
from e2e.kind_cluster import XPK, KindLab
from e2e.matrix.fault import LOCAL, RAY, Fault, Holds
from e2e.matrix.programs import HOSTS, HOSTS_PER_SLICE, SLICES, Programs, place_of
from e2e.soak.injection import INTERVAL
from e2e.soak.processes import descendants
from e2e.soak.progress import Progress
from e2e.soak.report import differing_steps
from tests.waiting import until

SECONDS = 240.0  # for any wait: the machine may be busy
SETTLED_STEPS = 3  # steps after which a run has recovered
_POLL_SECONDS, _LOOK_SECONDS = 0.1, 10.0
_RESTARTS = 10


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a fault. `steps_lost` and `seconds` are None where nothing is lost or continues by itself."""

    holds: bool
    bit_equal: bool | None = None  # all losses are those of the undisturbed run; None without any
    steps_lost: int | None = None  # finished, and repeated after the fault
    seconds: float | None = None  # from the fault to the next finished step, or the longest pause without a restart
    restarts: int | None = None
    reason: str = ""  # of a refusal or a failure


@dataclass(slots=True)
class Cell:
    """A run, and what a fault does to it. `struck` is the time of the fault, `healed` that of its end."""

    fault: Fault
    programs: Programs
    program: str
    random: Random
    heals: ExitStack  # what ends a fault, whatever happens
    removals: ExitStack  # what is removed after the run
    artifacts: Path
    struck: float = 0.0
    healed: float = 0.0
    output_is_elsewhere: bool = False  # not below the cluster's own root, the only output that xpk removes
    limit_seconds: float = SECONDS  # for the recovery
    refusal: str = ""
    run: Workload = field(init=False)
    progress: Progress = field(init=False)
    output: Path = field(init=False)
    mirror: Callable[[], None] = field(default=lambda: None)  # copies output from elsewhere, before it is read

    @property
    def lab(self) -> Lab:
        """The place of its cluster."""
        return self.programs.lab

    @property
    def is_local(self) -> bool:
        """True on local hosts."""
        return self.programs.platform == LOCAL

    @property
    def name(self) -> str:
        """Name of its workload."""
        return f"{self.fault.name}-{self.program}"

    def create_arguments(self, *options: str, command: str = "") -> tuple[str, ...]:
        """Return the arguments of `xpk` that create the run, with another command if there is one."""
        self.output_is_elsewhere = "--output-root" in options
        chosen = ["--command", command] if command else self.programs.options(self.program)
        trainer = [] if command else self.programs.arguments(self.program)
        size = {"num_slices": SLICES, "max_restarts": _RESTARTS}
        return self.lab.create_arguments(self.name, **size, trainer=trainer, options=[*options, *chosen])

    def start(self, *options: str, command: str = "", output: Path | None = None) -> None:
        """Create the run; `output` is a copy of its output folder."""
        self.lab.xpk(*self.create_arguments(*options, command=command))
        self.follow(output)

    def follow(self, output: Path | None = None) -> None:
        """Follow the files of the run, from their beginning."""
        self.run = Workload(self.lab, self.name)
        self.output = output or Path(self.run.describe()["output_dir"])
        self.run.use_folder(self.output)
        self.progress = Progress(self.output, SLICES, HOSTS_PER_SLICE)

    def train(self, *options: str, output: Path | None = None) -> None:
        """Start the run and wait until it trains."""
        self.start(*options, output=output)
        self.await_training()

    def await_training(self) -> None:
        """Wait until the run is some steps past its first checkpoint."""
        self.until(lambda: self.progress.is_complete and self.progress.steps_of_attempt > INTERVAL + 1)

    def strike(self, act: Callable[[], object]) -> None:
        """Do what harms the run, and note the time."""
        self.progress.read()
        self.struck = time.time()
        act()

    def heal_after(self, seconds: float, act: Callable[[], object]) -> None:
        """End the fault after some seconds, also if the cell fails before."""
        self.heals.callback(act)
        self.wait(seconds)
        act()
        self.healed = time.time()

    def wait(self, seconds: float) -> None:
        """Read what the run writes for some seconds."""
        end = time.monotonic() + seconds

        def is_over() -> bool:
            self._read()
            return time.monotonic() > end

        until(is_over, seconds=seconds + SECONDS, every=_POLL_SECONDS)

    def any_host(self, *, but_first: bool = True) -> int:
        """Return a host that the seed chooses."""
        return self.random.randrange(1 if but_first else 0, HOSTS)

    def described(self, host: int) -> dict[str, Any]:
        """Return the description of a running host."""
        return self.run.host(*place_of(host))

    def processes(self, host: int) -> list[int]:
        """Return a host's supervisor and all processes below it, by their numbers on this machine."""
        described = self.described(host)
        if isinstance(self.lab, KindLab):
            return sorted(self.lab.pids(described).values())
        return [int(described["pid"]), *descendants(int(described["pid"]))]

    def process(self, host: int) -> int:
        """Return the process that trains on a host, by its number on this machine."""
        return self._process(host, self.run.describe()["hosts"])

    def send(self, number: signal.Signals, *hosts: int) -> None:
        """Send a signal to the processes that train on some hosts, at nearly the same time."""
        descriptions = self.run.describe()["hosts"]
        pids = [self._process(host, descriptions) for host in hosts]

        def act() -> None:
            for pid in pids:
                os.kill(pid, number)

        self.strike(act)

    def send_to(self, number: signal.Signals, host: int, descriptions: list[dict[str, Any]]) -> None:
        """Send a signal to the process that trains on a host, as an earlier description has it."""
        os.kill(self._process(host, descriptions), number)

    def until(self, condition: Callable[[], Any], seconds: float = SECONDS, every: float = _POLL_SECONDS) -> None:
        """Read the run's files until a condition holds. Raises DrillError if it ends before, or after a timeout."""
        looked = time.monotonic()

        def reached() -> Any:
            nonlocal looked
            self._read()
            if value := condition():
                return value
            if time.monotonic() > looked + _LOOK_SECONDS:
                looked = time.monotonic()
                described = self.run.describe()
                if described["phase"] in ("Failed", "Succeeded"):
                    raise DrillError(f"the run has ended: {described['phase']}, {described['reason']}")
            return None

        try:
            until(reached, seconds=seconds, every=every, report=lambda: self.run.describe()["reason"])
        except AssertionError as error:
            raise DrillError(str(error)) from error

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the events of all hosts with a name since the fault."""
        return [event for event in self.run.events(name) if event["time"] >= self.struck]

    def check(self) -> Outcome:
        """Wait until the run has recovered, or has failed as it should, and check what has to hold."""
        if self.fault.holds is Holds.REFUSED:
            return Outcome(bool(self.refusal), reason=self.refusal)
        restarts = self.fault.holds is not Holds.CONTINUES
        self.until(self._has_restarted if restarts else self._has_continued, self.limit_seconds)
        self.until(self._has_settled)
        described = self.run.describe()
        self.progress.read()
        lost, seconds = len(self.progress.steps) - len({line["step"] for line in self.progress.steps}), self._seconds()
        last = max(line["step"] for line in self.progress.steps)
        problems = list(self._problems(described, lost))
        if problems:
            self.collect()
        self.heals.close()  # the undisturbed run may follow
        self.end()
        reference = self.programs.losses(self.program, last)
        differing = differing_steps(self.progress.steps, reference)
        if differing:
            problems.append(
                f"{len(differing)} steps without the loss of the undisturbed run, the first is {differing[0]}"
            )
        return Outcome(not problems, not differing, lost, seconds, int(described["restarts"]), "; ".join(problems))

    def collect(self) -> None:
        """Keep the logs of a failed cell, unless it has kept them before."""
        folder = self.artifacts / self.name
        if not folder.exists():
            self.lab.collect(folder)

    def end(self) -> None:
        """End the run and remove its output."""
        gone = ["--yes", "--grace-period", "1", "--ignore-not-found"]
        if not self.output_is_elsewhere:
            gone.append("--with-output")
        self.lab.xpk("workload", "delete", self.name, "--cluster", self.lab.cluster, *gone)

    def fails_with(self, text: str) -> None:
        """Wait until the workload has failed, for a reason, or with a line of its logs, that contains a text."""
        found: dict[str, Any] = {}

        def has_failed() -> bool:
            found.update(self.run.describe())
            return found["phase"] in ("Failed", "Succeeded")

        until(has_failed, seconds=SECONDS, every=1.0)
        asked = ("workload", "logs", self.name, "--cluster", self.lab.cluster)
        said = [str(found["reason"]), *self.lab.xpk(*asked, show=False, capture=True).splitlines()]
        cause = next((line for line in said if text in line.lower()), "")
        if found["phase"] != "Failed" or not cause:
            raise DrillError(f"{found['phase']}, not failed with '{text}': {found['reason']}")
        self.refusal = cause.strip()

    def refuses(self, text: str, *options: str) -> None:
        """Create a workload that has to fail, or whose creation has to fail, for a reason that contains a text."""
        argv = [*XPK, *self.create_arguments(*options)]
        done = subprocess.run(argv, env=self.lab.environ, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            self.follow()
            self.fails_with(text)
            return
        self.refusal = next(line for line in done.stderr.splitlines() if line.startswith("error:"))
        if text not in done.stderr.lower():
            raise DrillError(f"expected '{text}': {self.refusal}")

    def _process(self, host: int, descriptions: list[dict[str, Any]]) -> int:
        """Return the process that trains on a host, by its number on this machine."""
        self.progress.read()
        (described,) = (one for one in descriptions if (one["slice"], one["host"]) == place_of(host))
        return self.lab.pid_here(described, self.progress.pid(host))

    def _read(self) -> None:
        self.mirror()
        self.progress.read()

    def _problems(self, described: dict[str, Any], lost: int) -> list[str]:
        """Return what does not hold, apart from losses."""
        problems = []
        holds, replaced = self.fault.holds, described["progress"]["replacements"] if self.program == RAY else 0
        restarts, counted = described["restarts"] + replaced, described["restarts_counted"]
        most = 2 * INTERVAL if holds is Holds.RESTARTS else 0  # one interval, and another if a save was running
        if lost > most:
            problems.append(f"{lost} steps were lost, expected at most {most}")
        if (restarts > 0) != (holds is not Holds.CONTINUES):
            problems.append(f"{restarts} restarts")
        if holds is Holds.SAVES and counted:
            problems.append(f"{counted} restarts were counted")
        return problems

    def _has_restarted(self) -> bool:
        return self.progress.stepped_after(self.struck) is not None and self.progress.is_complete

    def _has_continued(self) -> bool:
        return bool(self.progress.steps[-1]["time"] > max(self.struck, self.healed))

    def _has_settled(self) -> bool:
        """Return whether some steps were finished since the fault is over, by all hosts."""
        since = max(self.healed, self.progress.stepped_after(self.struck) or self.struck)
        return self.progress.is_complete and sum(line["time"] > since for line in self.progress.steps) >= SETTLED_STEPS

    def _seconds(self) -> float:
        """Return the seconds from the fault to the next step of another attempt, else the longest pause since."""
        stepped = self.progress.stepped_after(self.struck)
        if stepped is not None:
            return round(stepped - self.struck, 1)
        times = [self.struck, *(line["time"] for line in self.progress.steps if line["time"] > self.struck)]
        return round(float(max(late - early for early, late in pairwise(times))), 1)


def run_cell(fault: Fault, programs: Programs, program: str, seed: int, artifacts: Path) -> Outcome:
    """Inject a fault into a new run of a program, and return what came of it. Nothing of the run remains.

    Raises DrillError if the run did not get far enough for the fault, which is no result of it.
    """
    with ExitStack() as removals, ExitStack() as heals:
        cell = Cell(fault, programs, program, Random(f"{seed}/{fault.name}/{program}"), heals, removals, artifacts)
        try:
            fault.inject(cell)
            outcome = cell.check()
        except (DrillError, AssertionError, ProcessLookupError, OSError) as error:
            outcome = Outcome(False, reason=str(error).strip().splitlines()[0] if str(error).strip() else repr(error))
        if not outcome.holds:
            cell.collect()
        heals.close()  # a folder that cannot be written cannot be removed
        try:
            cell.end()
        except DrillError as error:
            outcome = Outcome(False, reason=str(error))
        if not outcome.holds and not cell.struck and fault.holds is not Holds.REFUSED:
            raise DrillError(f"{cell.name}: the fault was not injected: {outcome.reason}")
    return replace(outcome, reason=outcome.reason.replace(str(cell.lab.folder), "FOLDER"))


def send_if_alive(number: signal.Signals, pids: Iterable[int]) -> None:
    """Send a signal to processes of this machine, except those that have ended."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
