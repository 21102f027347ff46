"""The training run of one slice of several elastic ones."""

# mypy: disallow-untyped-calls=False

import functools
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import jax
import numpy as np

from trainer import saves
from trainer.detection import DetectionLog
from trainer.elastic import copies, handover, patience
from trainer.elastic.decisions import Decisions
from trainer.elastic.detections import SharedDetections
from trainer.elastic.handover import Position
from trainer.elastic.reduction import Decide, Facts, Reductions, Result, Share
from trainer.elastic.shares import Gradients, ShareBatches, place
from trainer.elastic.slices import Slices, has_finished, leave_slices
from trainer.errors import ExitCode, FatalError, PeerAbsent, Problem
from trainer.evaluation import EvalSums, Evaluation, is_left, record, sum_batches
from trainer.hosts import timeouts
from trainer.hosts.job import Address, Job
from trainer.hosts.measurements import SAVE
from trainer.hosts.membership import (
    COMPARE,
    DONE,
    EVALUATE,
    FINISH,
    FOUNDER,
    HOLD,
    JOINER,
    TRAIN,
    Commit,
    Seq,
)
from trainer.observe.step_log import Pending
from trainer.resume import first_state, get_compiled
from trainer.schedule import ANY_SAVE, STEP_ENDING, Action, RunSchedule
from trainer.setup import Run, join, prepare_run
from trainer.step.programs import State
from trainer.telemetry import metrics
from trainer.train import write_result
from xpk_shared.slices.roster import ACTIVE, READY

_NOTHING = np.empty(0, np.float32)


def _no_share(replica: int) -> Share:
    return Share(_NOTHING, [])


def train(job: Job, coordinator_future: "Future[Address]") -> ExitCode:
    """Run this slice's part of `job.config` to the end, or to a stop; return the exit code."""
    assert job.slices is not None
    traits, record = join(job, coordinator_future)
    slices = Slices(job, job.slices)
    role = DONE if has_finished(job) else slices.enter(coordinator_future.result()[0])
    if role == DONE:
        return leave_slices(job, ExitCode.DONE)
    job.slices.is_leading = role == FOUNDER
    run = prepare_run(job, traits, record, has_started=role == JOINER)
    digest = hashlib.sha256(json.dumps([traits, run.checkpoints.notes], sort_keys=True).encode()).hexdigest()
    training = _Training(run, slices, digest)
    if role == JOINER:
        role = training.join()
    if role == DONE:
        return leave_slices(job, ExitCode.DONE)
    if role == FOUNDER:
        training.found()
    return training.loop()


class _Training:
    """The steps of one slice."""

    def __init__(self, run: Run, slices: Slices, traits: str) -> None:
        self._run, self._slices, self._membership, self._traits = run, slices, slices.membership, traits
        self._schedule = RunSchedule(run.job.config, evaluates=run.held_out > 0)
        self._batches, self._evaluation = ShareBatches(run), Evaluation(run)
        self._detections = SharedDetections(run, self._batches.rows)
        shares, seed = run.programs.shares, np.uint32(0)
        slices.reductions = Reductions(
            slices.membership, slices.connections, run.job.host.replicas, shares.vectors.dtype
        )
        self._reduce = slices.reductions
        self._tuner = run.tuner(self._schedule)
        self._decisions = Decisions(run.job, slices.membership, self._tuner)
        slices.membership.views.append(self._decisions.record_view)
        get = functools.partial(get_compiled, run)
        share = get("share", shares.share, run.programs.state, run.programs.blocks, seed)
        self._gradients = Gradients(run, share, self._batches, self._record_pending)
        number = np.float32(0)
        self._update = get("update", shares.update, run.programs.state, shares.vectors, number, number)
        run.replicas.compile(functools.partial(get_compiled, run))
        self._pending: Pending | None = None
        self._state: State = {}
        self._at = self._tokens = 0
        self._flags: dict[str, Any] = {}
        self._is_start = True

    def found(self) -> None:
        """Begin the run with the newest checkpoint, or with fresh parameters."""
        self._membership.is_leading = True
        self._run.record.begin()
        self._decisions.wait_for_all()
        state, self._at, self._tokens = first_state(self._run)
        self._state = state()
        if self._at and Action.EVALUATE in self._schedule.actions(self._at) and is_left(self._run, self._at):
            self._decisions.evaluates_at = self._at
        self._measure_left(self._at - (self._decisions.evaluates_at == self._at))
        self._membership.set_phase(ACTIVE)
        self._membership.grant_self()
        self._hold()

    def join(self) -> str:
        """Receive the state from an active slice; return the role of this slice, JOINER unless it has changed."""
        job, began = self._run.job, time.monotonic()
        limit = patience.of_joiner(job, evaluates=self._schedule.of(Action.EVALUATE).every > 0)
        self._slices.await_connections()
        self._membership.set_phase(READY)
        try:
            with job.watchdog.waiting("the state from another slice", 0, min_seconds=limit):
                received = self._slices.receiver.wait(self._run.programs.state, lambda: self._reduce.has_pieces)
        except handover.HandoverLost as error:
            raise PeerAbsent(f"lost {error} while it sent the state") from error
        if received is None:
            return self._membership.role
        self._state, position = received
        if position.traits != self._traits:
            message = (
                f"slice {job.host.slice_id} has other settings, data, code or library versions than the running slices"
            )
            raise FatalError(Problem(message, "Start all slices from one image, with one command"))
        self._at, self._tokens, self._is_start = position.step, position.tokens, position.is_start
        self._reduce.adopt(position.commit)
        self._membership.adopt(position.granted, position.commit)
        self._run.record.adopt(position.tally)
        self._membership.set_phase(ACTIVE)
        self._take(position.commit.flags)
        job.events.write("restore", self._at, time.monotonic() - began, source="peer", read=False)
        metrics.say(f"slice {job.host.slice_id}: joins after step {self._at}")
        self._hold()
        return JOINER

    def loop(self) -> ExitCode:
        """Train to the last step, or to a stop."""
        last = self._run.job.config.run.steps
        while True:
            if self._is_start and self._flags["evaluates"]:
                self._evaluate()
            elif not self._is_start and not self._end_step():
                return self._stop()
            if self._at >= last:
                return self._finish()
            self._is_start = False
            self._step()

    def _step(self) -> None:
        """Train one step: add the gradients of all shares, and update the state from their sum."""
        job, step, dispatched = self._run.job, self._at, time.monotonic()
        self._batches.waited_seconds = 0.0
        saves_next = Action.SAVE in self._schedule.actions(step + 1)
        self._run.profiler.start_or_end(step + 1, self._pending)
        compute = functools.partial(self._gradients, self._state, step)

        def facts() -> dict[str, Any]:
            waited = {"data_ms": int(1000 * self._batches.waited_seconds)}
            with job.watchdog.waiting("its disk", step + 1, is_own=lambda: True):
                return self._decisions.facts(saves=saves_next, run=self._run) | waited

        decide = functools.partial(self._decisions.decide, at=step + 1)
        with self._run.profiler.step(step + 1):
            result = self._exchange(Seq(step + 1, TRAIN), compute, facts, decide)
            self._record_pending()
            with job.watchdog.waiting(f"step {step + 1}", step + 1):
                self._state, out = self._apply(result)
        self._at, self._tokens = step + 1, self._tokens + self._run.step_items
        out["flags"] = np.array([result.flags["disk_low"], result.flags["data_ms"]], np.int32)
        actions = self._schedule.actions(self._at)
        if actions & Action.CHECK_REPLICAS:
            out["differ"] = self._run.replicas.begin(self._at, self._state)
        if actions & ANY_SAVE:
            out["broken"] = saves.check_finite(self._run, self._at, self._state)
        self._pending = self._run.progress.watch(self._at, out, dispatched)
        self._take(result.flags)
        self._batches.keep(self._membership.orders(Seq(self._at, TRAIN)))
        self._hand_over(result.flags)
        self._hold()

    def _apply(self, result: Result) -> tuple[State, dict[str, Any]]:
        flat_DN = place(result.vector, self._run.programs.shares.vectors)
        loss, weight = (np.float32(value) for value in result.scalars)
        state, out = self._update(self._state, flat_DN, loss, weight)
        return state, out

    def _end_step(self) -> bool:
        """Do what is due after the step; return False if this slice stops."""
        run, at, actions, stop = self._run, self._at, self._schedule.actions(self._at), self._flags.get("stop", [])
        stops_all = stop == "all"
        is_compared = bool(actions & Action.CHECK_REPLICAS) or (stops_all and run.replicas.every > 0)
        if actions & (STEP_ENDING | Action.CHECK_REPLICAS) or stop:
            self._record_pending()
            saves.warm_up(run)
        if actions & Action.COMPARE_HOSTS:
            run.stragglers.compare(at)
        if is_compared:
            if self._stops and not stops_all:  # alone: the others compare and save, once it has left
                return False
            self._compare_states()
            actions |= Action.CHECK_REPLICAS
        if stops_all:
            self._until_saved(functools.partial(self._save_final, actions))
            return False
        if self._leads and actions & Action.SAVE:
            self._save(is_final=at == run.job.config.run.steps)
        if self._stops:
            return False
        if actions & Action.EVALUATE:
            self._evaluate()
        return True

    @property
    def _leads(self) -> bool:
        """True if this slice leads, as the newest commit says, so that all of its hosts agree."""
        return self._flags.get("leader") == list(self._membership.own)

    @property
    def _stops(self) -> bool:
        """True if this slice stops, alone or with all others."""
        stop = self._flags.get("stop", [])
        return stop == "all" or self._run.job.host.slice_id in stop

    def _save(self, *, is_final: bool) -> None:
        self._run.checkpoints.take_over()
        if self._run.checkpoints.last == self._at:  # saved by the slice that led, and has left since
            return
        disk_low = bool(self._flags["disk_low"])
        saves.save(self._run, self._at, self._state, tokens=self._tokens, disk_low=disk_low, is_final=is_final)

    def _save_final(self, checked: Action = Action.NONE) -> None:
        self._run.checkpoints.take_over()
        saves.save_final(self._run, self._at, self._state, tokens=self._tokens, checked=checked)

    def _until_saved(self, save: Callable[[], None]) -> None:
        """Let the leading slice save the state; if it is lost before, the next one that leads. All wait for it."""
        is_saved, nth = False, 0
        while not self._flags.get("saved"):
            if self._leads and not is_saved:
                save()
                is_saved = True
            result = self._decide(Seq(self._at, FINISH, nth), saved=is_saved)
            self._take(result.flags)
            nth += 1

    def _compare_states(self) -> None:
        """Compare the states of all slices. Raises CorruptError if this slice's may be wrong."""
        run, at = self._run, self._at
        with run.job.watchdog.waiting(f"the checksums after step {at}", at):
            sums = run.replicas.array_checksums(at, self._state)
        result = self._share(Seq(at, COMPARE), sums=sums)
        copies.require(run, result.flags["differ"], at)
        self._follow(result.flags["leader"])

    def _evaluate(self) -> float:
        """Evaluate the state; each share is a part of every batch of held-out records."""
        run, at, began, program = self._run, self._at, time.monotonic(), self._evaluation.program

        def compute(replica: int) -> Share:
            rows, log = self._batches.rows(replica), DetectionLog() if program.detect else None
            sums = sum_batches(run, program, self._state, rows, step=at, log=log)
            if log is not None:
                self._detections.write(at, replica, log)
            return Share(_NOTHING, sums.scalars)

        result = self._share(Seq(at, EVALUATE), compute)
        loss = record(run, EvalSums.of(result.scalars), step=at, seconds=time.monotonic() - began)
        if program.detect and self._leads:
            self._detections.measure(at)
        return loss

    def _measure_left(self, until: int) -> None:
        """Measure the detections up to step `until` that a former leading slice has not measured."""
        if self._run.programs.detect:
            self._detections.measure_left(until)

    def _hold(self) -> None:
        """Wait until enough slices are active, unless this slice stops."""
        newest = self._membership.commit.seq
        nth = newest.nth + 1 if newest[:2] == (self._at, HOLD) else 0
        while not self._stops and ((self._is_start and not self._flags) or self._flags.get("hold")):
            self._decisions.wait_for_slices()
            result = self._decide(Seq(self._at, HOLD, nth), grants=True)
            self._take(result.flags)
            self._hand_over(result.flags)
            nth += 1

    def _decide(self, seq: Seq, *, grants: bool = False, **facts: Any) -> Result:
        """Let the leading slice decide between two steps."""
        known = self._decisions.facts(saves=False, run=self._run) | facts
        decide = functools.partial(self._decisions.decide, at=self._at, grants=grants)
        return self._exchange(seq, _no_share, lambda: known, decide)

    def _share(self, seq: Seq, compute: Callable[[int], Share] = _no_share, **facts: Any) -> Result:
        """Share results between two steps; the decisions stay."""
        return self._exchange(seq, compute, lambda: facts, self._decisions.repeat)

    def _exchange(
        self, seq: Seq, compute: Callable[[int], Share], read_facts: Callable[[], Facts], decide: Decide
    ) -> Result:
        """Add the shares of all slices; the wait for the others ends later than those for this slice's own work."""
        run, what = self._run, f"step {seq.step}" if seq.phase == TRAIN else f"their work after step {seq.step}"
        may_save = Action.SAVE in self._schedule.actions(self._at) or bool(self._flags.get("stop"))
        min_seconds = patience.of_others(run, seq, may_save=may_save)
        with run.job.watchdog.waiting(f"the other slices and {what}", seq.step, min_seconds=min_seconds):
            return self._reduce(seq, compute, read_facts, decide)

    def _take(self, flags: Mapping[str, Any]) -> None:
        """Act on the decisions of the leading slice."""
        self._flags = dict(flags)
        self._follow(flags["leader"])
        self._decisions.record(self._at, flags)
        self._tuner.adopt(flags.get("intervals"), self._at)

    def _follow(self, leader: list[Any]) -> None:
        """Follow the slice that leads from now on."""
        self._flags["leader"], has_led = leader, self._membership.is_leading
        self._membership.is_leading = self._leads
        if self._leads and not has_led:
            self._measure_left(self._at - 1)  # the evaluation after this step is yet to come

    def _hand_over(self, flags: Mapping[str, Any]) -> None:
        """Send the state to the slices that join, if this slice is the one that leads."""
        joining = [(number, incarnation) for number, incarnation in flags.get("grant", ())]
        if not joining or not self._leads:
            return
        membership = self._membership
        commit = Commit(membership.commit.seq, dict(flags))
        others = self._is_start, self._traits, self._run.record.tally()
        position = Position(self._at, self._tokens, commit, membership.granted, *others)
        with self._run.job.watchdog.waiting("the handover of the state", self._at):
            jax.block_until_ready(self._state)
            handover.send(membership, self._slices.connections, joining, self._state, position)

    def _record_pending(self) -> None:
        """Record the step before, while the chips compute the next one."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            waiting = self._run.job.watchdog.waiting(f"step {pending.step}", pending.step)
            with saves.finishing_saves(self._run), waiting:
                flags = self._run.progress.finish(pending)
                self._run.job.stop.arm()
                self._run.replicas.check_result(pending.step, flags.differ)
            self._run.stragglers.record_step(flags.seconds)
            self._run.record.keep()

    def _stop(self) -> ExitCode:
        job = self._run.job
        self._run.profiler.close()
        with timeouts.storage(
            job, "the save in progress before this slice leaves", self._at, self._run.checkpoints, SAVE
        ):
            self._run.checkpoints.wait()
        self._detections.wait()
        if self._flags.get("saved"):  # else the other slices go on
            self._run.record.stop()
        job.events.write("preempt", self._at)
        metrics.say(f"slice {job.host.slice_id}: stopped after step {self._at}")
        code = job.stop.code if job.stop.requested else ExitCode.PREEMPTED
        return leave_slices(job, code)

    def _finish(self) -> ExitCode:
        """End the run: the leading slice saves, evaluates and writes the result; the others wait for it."""
        run = self._run
        eval_loss = self._evaluate() if run.held_out else None

        def save() -> None:
            self._save_final()
            self._measure_left(self._at)
            self._detections.wait()
            write_result(run, self._at, tokens=self._tokens, eval_loss=eval_loss)

        self._until_saved(save)
        self._detections.wait()
        run.profiler.close()
        run.record.stop()
        run.job.events.write("done", self._at, data_bytes=run.read.bytes if run.read else 0)
        code = leave_slices(run.job, ExitCode.DONE)
        if run.job.leads:
            metrics.say(f"done: {self._at} steps, results in {run.job.out}")
        return code
