"""Elastic slices on kind: a slice that is lost restarts alone, while the other one trains.

The run loses no step, whichever of its processes are killed. The tests go in order. That its losses are those of an
undisturbed run, bit for bit, is left to `make e2e-all`: local runs show the same (e2e/soak, tests/trainer/elastic).
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from e2e.drill import SECONDS, start
from e2e.harness import Workload
from e2e.kind_cluster import Place
from xpk.jobs.output.slices import FILE, SlicesChange, read_changes

STEPS = 400  # more than an idle machine trains while the slices are away
OPTIONS = ("--min-slices", "1")
SETTINGS = (f"run.steps={STEPS}", f"run.eval_every={STEPS // 2}")
ALL = {0, 1}


@dataclass(slots=True)
class Drill:
    """The run."""

    place: Place
    run: Workload

    def pods(self, slice_id: int) -> set[str]:
        """Return the identities of a slice's pods, which change when the pods are created again."""
        prefix = "jobset.sigs.k8s.io"
        labels = f"{prefix}/jobset-name={self.run.name},{prefix}/job-index={slice_id}"
        return set(self.place.kubectl("get", "pods", "-l", labels, "-o", "jsonpath={.items[*].metadata.uid}").split())

    def await_ready(self) -> None:
        """Wait until all slices train."""
        self.run.await_(lambda: bool(self.run.steps) and self._changes(0.0)[-1].slices == ALL, SECONDS)

    def await_loss(self, slice_id: int, since: float) -> None:
        """Wait until the run has continued without a slice."""
        self.run.await_(lambda: bool(self._without(slice_id, since)), SECONDS)
        loss = self._without(slice_id, since)[0]
        self.run.await_(lambda: self.run.steps[-1]["step"] > loss.step, SECONDS)
        following = next(line for line in self.run.steps if line["step"] > loss.step)
        self._say(f"slice {slice_id} lost after step {loss.step}; the next one", following["time"] - since)

    def await_return(self, slice_id: int, since: float) -> None:
        """Wait until the run trains on all slices again; check that no step was lost."""

        def has_returned() -> bool:
            return bool(self._without(slice_id, since)) and self._changes(since)[-1].slices == ALL

        self.run.await_(has_returned, SECONDS)
        self._say(f"slice {slice_id} joined", self._changes(since)[-1].time - since)
        assert self.run.lost_steps == 0

    def restarts(self) -> tuple[int, int, int]:
        """Return the number of restarts, of those that are counted, and of those in place."""
        described = self.run.describe()
        return described["restarts"], described["restarts_counted"], described["restarts_in_place"]

    def _without(self, slice_id: int, since: float) -> list[SlicesChange]:
        return [change for change in self._changes(since) if slice_id not in change.slices]

    def _changes(self, since: float) -> list[SlicesChange]:
        file = self.run.folder / FILE
        return [change for change in read_changes(file.read_bytes()) if change.time > since]

    def _say(self, what: str, seconds: float) -> None:
        self.run.lab.say(f"  {what} {seconds:.1f} s after the signal")


@pytest.fixture(scope="module")
def drill(place: Place) -> Iterator[Drill]:
    """The run whose slices are lost."""
    run = start(place, "elastic", max_restarts=3, options=OPTIONS, settings=SETTINGS)
    try:
        yield Drill(place, run)
    finally:
        place.wake()
        place.end("elastic")


def test_a_killed_trainer_restarts_its_slice_in_the_same_pods(drill: Drill) -> None:
    drill.await_ready()
    before = drill.pods(0), drill.pods(1)
    killed = drill.run.end_program(1, 1)
    drill.await_loss(1, killed)
    drill.await_return(1, killed)
    assert (drill.pods(0), drill.pods(1)) == before
    assert drill.restarts() == (1, 1, 1)


def test_the_run_continues_while_a_lost_slice_waits_for_nodes(drill: Drill) -> None:
    place, before, old = drill.place, drill.pods(0), drill.pods(1)
    for node in place.kubectl("get", "nodes", "-o", "name").split():
        place.kubectl("cordon", node)
    killed = drill.run.end_host(1, 0, signal.SIGKILL)
    drill.await_loss(1, killed)
    status = drill.run.describe()["progress"]["slices"]
    assert (status["active"], [one["slice"] for one in status["inactive"]]) == ([0], [1])
    place.wake()
    drill.await_return(1, killed)
    assert drill.pods(0) == before and not drill.pods(1) & old
    assert drill.restarts() == (2, 2, 1)


def test_the_slice_with_the_registry_is_lost(drill: Drill) -> None:
    old, before = drill.pods(0), drill.pods(1)
    killed = drill.run.end_host(0, 0, signal.SIGKILL)
    drill.await_loss(0, killed)
    drill.await_return(0, killed)
    assert not drill.pods(0) & old and drill.pods(1) == before
    assert drill.restarts() == (3, 3, 1)


@pytest.mark.extended  # no step had been lost when the last slice returned
def test_the_run_completes_without_a_lost_step(drill: Drill) -> None:
    drill.run.wait(SECONDS)
    assert sorted(drill.run.losses) == list(range(1, STEPS + 1)) and drill.run.lost_steps == 0
    jobset: dict[str, Any] = json.loads(drill.place.kubectl("get", "jobset", drill.run.name, "-o", "json"))
    (slices,) = jobset["status"]["replicatedJobsStatus"]
    assert (jobset["status"]["terminalState"], jobset["status"].get("restarts", 0)) == ("Completed", 0)
    assert slices["jobRestarts"] == slices["jobRestartsCountTowardsMax"] == [1, 1]
    assert {host["exit_code"] for host in drill.run.describe()["hosts"]} == {0}


@pytest.mark.extended
def test_the_losses_equal_those_of_an_undisturbed_run(drill: Drill) -> None:
    run = start(drill.place, "calm", max_restarts=0, options=OPTIONS, settings=SETTINGS)
    run.wait(SECONDS)
    assert run.lost_steps == 0 and run.losses == drill.run.losses
