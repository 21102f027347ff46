"""Decisions of the leading slice, which all slices follow, and the record of the active slices."""

import threading
import time
from collections.abc import Mapping
from typing import Any

from trainer.checkpoint.intervals import IntervalTuner
from trainer.elastic.copies import differences
from trainer.elastic.reduction import Facts
from trainer.hosts.job import Job
from trainer.hosts.membership import HOLD, Membership, Peer
from trainer.setup import Run
from trainer.telemetry.metrics import JsonLines, say
from xpk_shared.slices.roster import READY, View

FILE = "slices.jsonl"  # in the output folder: the active slices, one line for each change
_WAIT_SECONDS = 0.2


class Decisions:
    """Facts of this slice, and the leading slice's decisions from those of all."""

    def __init__(self, job: Job, membership: Membership, tuner: IntervalTuner) -> None:
        self._job, self._membership, self._tuner = job, membership, tuner
        self._is_starting = False
        self.evaluates_at = -1  # step whose evaluation is to be measured before the next one
        self._recorded: set[Peer] = set()
        self._recording = threading.Lock()  # views come on another thread
        self._lines: JsonLines | None = None  # opened once this slice leads

    def facts(self, *, saves: bool, run: Run) -> Facts:
        """Return what the leading slice has to know of this one."""
        free, need = run.checkpoints.free_and_needed_bytes(run.programs.state) if saves else (None, 0)
        return {"stop": self._job.stop.requested, "disk_low": free is not None and free < need, "saved": False}

    def decide(self, facts: Mapping[int, Facts], *, at: int, grants: bool = True) -> dict[str, Any]:
        """Return the decisions at the end of a reduction; `grants` is False if no slice can receive the state after it.

        `at`: the step that is finished after the reduction.

        grant: slices that become active. stop: slices that stop, or "all" if too few would be left, even once lost ones
        have started again. departed: slices that have stopped on request and have not started again. active: the slices
        after that. hold: wait for slices before the next step. leader: this slice, which writes the files of this step
        and hands over its state. intervals: plan of the saves after step `at`, or None if they are fixed. term: of the
        view in which the newest step was made. evaluates: begin with the evaluation after the step from which the run
        resumes.
        """
        membership, host = self._membership, self._job.host
        with membership.changed:
            view, granted, active = membership.view, membership.granted, membership.active
            commit = membership.commit
        ready = [
            (number, entry.incarnation)
            for number, entry in sorted(view.slices.items())
            if entry.phase == READY and (number, entry.incarnation) not in granted
        ]
        stopping = sorted(number for number, known in facts.items() if known["stop"])
        left = [peer for peer in active if peer[0] not in stopping]
        departed = _departed(commit.flags, [peer for peer in active if peer not in left], view)
        may_return = left and not commit.flags.get("hold") and host.num_slices - len(departed) >= host.min_slices
        stops_all = bool(stopping) and len(left) < host.min_slices and not may_return
        grants &= not stops_all
        expected = len(view.slices) if self._is_starting else host.min_slices
        hold = not stops_all and (len(left) + len(ready) < expected or not membership.is_only_group)
        self._is_starting &= hold
        own, joining = facts[membership.own[0]], ready if grants else []
        return {
            "grant": [list(peer) for peer in joining],
            "stop": "all" if stops_all else stopping,
            "departed": [list(peer) for peer in departed],
            "active": [list(peer) for peer in [*left, *joining]],
            "hold": hold,
            "leader": list(membership.own),
            "disk_low": own["disk_low"],
            "saved": own["saved"],
            "intervals": self._tuner.decide(at),
            "term": view.term if at > commit.seq.step else commit.term,
            "evaluates": at == self.evaluates_at or (commit.seq[:2] == (at, HOLD) and commit.flags["evaluates"]),
            "data_ms": max(known.get("data_ms", 0) for known in facts.values()),
        }

    def repeat(self, facts: Mapping[int, Facts]) -> dict[str, Any]:
        """Return the newest decisions after a reduction between two steps, after which no slice stops, holds or joins.

        leader: the first active slice whose state is not known to differ. differ: arrays that differ between slices, if
        their checksums are among the facts.
        """
        with self._membership.changed:
            active, flags = self._membership.active, self._membership.commit.flags
        differ = differences({number: known["sums"] for number, known in facts.items() if "sums" in known})
        suspects = {number for _, slices, is_sure in differ if is_sure for number in slices}
        leader = next((peer for peer in active if peer[0] not in suspects), self._membership.own)
        return {**flags, "grant": [], "leader": list(leader), "differ": differ}

    def wait_for_all(self) -> None:
        """Hold the first step until all slices that are present are active, not only enough of them."""
        self._is_starting = True

    def wait_for_slices(self) -> None:
        """Wait a short time for a change of the slices."""
        with self._membership.changed:
            self._membership.changed.wait(_WAIT_SECONDS)

    def record(self, step: int, flags: Mapping[str, Any]) -> None:
        """Record the active slices after a step if they have changed; the leading slice writes them.

        They are those of the decision: this host's own view may have changed since, before another slice leads.
        A slice that was lost and has joined again within the step is recorded as both.
        """
        active = {(number, incarnation) for number, incarnation in flags["active"]}
        with self._recording:
            if active == self._recorded or flags["stop"] == "all":  # then slices end one by one, which is no loss
                return
            former, self._recorded = self._recorded, active
            leads = self._job.leads
            if former and not former <= active and not active <= former:
                self._write(step, former, former & active, leads=leads)
                former &= active
            self._write(step, former, active, leads=leads)

    def record_view(self, view: View) -> None:
        """Record lost slices if too few are present to finish a step: until that is done, no decision tells of them.

        The slice that led may be lost, too; the first one that is left writes.
        """
        membership, flags = self._membership, self._membership.commit.flags
        ends = view.is_done or flags.get("stop") == "all" or flags.get("saved")
        if ends or len(view.slices) >= self._job.host.min_slices:
            return
        with self._recording:
            former = self._recorded
            self._recorded = {peer for peer in former if view.has(*peer)}
            if self._recorded != former:
                leads = self._job.is_first and membership.active[:1] == [membership.own]
                self._write(membership.commit.seq.step, former, self._recorded, leads=leads)

    def _write(self, step: int, former: set[Peer], active: set[Peer], *, leads: bool) -> None:
        job, host = self._job, self._job.host
        numbers = sorted(number for number, _ in active)
        job.events.write("slices", step, slices=numbers)
        if not leads:
            return
        if self._lines is None:
            self._lines = JsonLines(job.out / FILE)
        fields = {"attempt": host.attempt, "step": step, "slices": numbers}
        sizes = {"num_slices": host.num_slices, "min_slices": host.min_slices}
        self._lines.write({"time": time.time()} | fields | sizes, at_once=True)
        for text, peers in (("lost", former - active), ("joined", active - former)):
            if peers and former:
                say(f"slice {', '.join(str(number) for number, _ in sorted(peers))} {text} after step {step}")
        if len(active) < host.num_slices or former:
            say(f"running on {len(active)} of {host.num_slices} slices")


def _departed(flags: Mapping[str, Any], stopping: list[Peer], view: View) -> list[Peer]:
    """Return the slices that stop or have stopped on request, without those that have started again."""
    former: list[Peer] = [(number, incarnation) for number, incarnation in flags.get("departed", ())]
    return [
        (number, incarnation)
        for number, incarnation in dict.fromkeys([*former, *stopping])
        if number not in view.slices or view.has(number, incarnation)
    ]
