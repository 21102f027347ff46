"""Recovery drills on kind: two runs, disturbed in every way that their hosts and their nodes can fail.

After each disturbance the run goes on with the losses of the undisturbed run, bit for bit, with at most one
checkpoint interval lost, and with its restart counted only if something failed. The tests of a run go in order.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from e2e.drill import HOSTS, INTERVAL, SECONDS, STEPS, await_phase, start
from e2e.harness import DrillError, Workload
from e2e.kind_cluster import Place, docker
from tests.waiting import until
from xpk.jobs.report.goodput import Recovery, recoveries
from xpk.jobs.report.programs import read_folder

# Not the target times, which bench/recovery_kind measures: a loaded machine takes several times as long.
DEAD_NODE_SECONDS = 420.0
FENCED_NODE_SECONDS = 30.0  # from the end of the machine until containers of all hosts run; this is a requirement
GRACE_SECONDS = 3600  # longer than any wait, so that what ends has not waited for it, however slow the machine is
NODE_MEMORY = "/dev/shm"
LOCAL_INTERVAL = 2
# Like a program that waits in a collective: it does not react to signals.
DEAF = (
    '[ "$XPK_RESTART_ATTEMPT" = 1 ] && exit 0; [ "$MEGASCALE_SLICE_ID$TPU_WORKER_ID" = 11 ] && sleep 10 && exit 3; '
    "trap '' TERM; sleep 3600 & wait; wait"
)
RESTART_SECONDS = 240.0  # alone: 20 s, most of it for starting JAX on four hosts


@dataclass(slots=True)
class Drill:
    """The run, its expected results, its state when its hosts last started, and its number of restarts so far."""

    place: Place
    run: Workload
    losses: dict[int, str]
    described: dict[str, Any]
    restarts: int = 0
    counted: int = 0
    disturbed: float = 0.0  # time of the newest disturbance

    def disturb(
        self,
        act: Callable[[], object],
        *,
        counted: bool | None,
        lost: int = INTERVAL,
        uncounted_lost: int = 0,
        seconds: float = RESTART_SECONDS,
    ) -> Recovery:
        """Disturb the run in the middle of an interval, and check that it continues as expected.

        `counted` is None where it depends on a race; `uncounted_lost` steps may then be lost if it is not counted.
        """
        await_phase(self.run)
        before, at = len(self.run.steps), time.time()
        self.disturbed = at
        act()
        self.restarts += 1
        self.run.await_(lambda: len(self.begun()) == HOSTS, SECONDS)
        # A description takes seconds, in which the run continues; now it only starts JAX.
        described = self.described = self.run.describe()
        self.run.await_(lambda: bool(self.run.steps[-1]["time"] > self._all_began()), SECONDS)
        if counted is None:
            counted = described["restarts_counted"] > self.counted
            lost = lost if counted else uncounted_lost
        self.counted += counted
        assert (described["restarts"], described["restarts_counted"]) == (self.restarts, self.counted)
        assert all(self.losses[line["step"]] == line["loss_hex"] for line in self.run.steps[before:])
        (recovery,) = (one for one in recoveries(read_folder(self.run.folder), kill_time=at) if one.since == at)
        self._show(recovery)
        assert self._lost_steps() <= lost + (self.run.steps_beside_a_save(self._all_began()) if lost else 0)
        assert recovery.seconds < seconds
        return recovery

    def host(self, slice_id: int, host: int) -> dict[str, Any]:
        """Return one host of the newest attempt."""
        (entry,) = (one for one in self.described["hosts"] if (one["slice"], one["host"]) == (slice_id, host))
        return dict(entry)

    @property
    def pods(self) -> set[str]:
        """Return the pods of the newest attempt."""
        return {str(host["pod"]) for host in self.described["hosts"]}

    def pods_of(self, slice_id: int) -> set[str]:
        """Return the pods of a slice."""
        return {str(host["pod"]) for host in self.described["hosts"] if host["slice"] == slice_id}

    def node(self, slice_id: int) -> str:
        """Return the node of a slice's hosts."""
        (node,) = {host["node"] for host in self.described["hosts"] if host["slice"] == slice_id}
        return str(node)

    def kubectl(self, *arguments: str) -> None:
        """Run kubectl on the cluster. Raises DrillError if it fails."""
        if not self.place.kubectl(*arguments):
            raise DrillError(f"kubectl {' '.join(arguments)} failed")

    def freeze(self, node: str) -> None:
        """Stop everything on a node, as if its machine failed, without a machine state."""
        docker("pause", node)

    def end_machine(self, node: str) -> float:
        """Stop a node's machine; return the seconds until containers of all hosts run on other nodes."""
        begun = time.monotonic()
        docker("kill", node)
        until(lambda: self._running_elsewhere(node) == HOSTS, seconds=DEAD_NODE_SECONDS)
        return time.monotonic() - begun

    def _running_elsewhere(self, node: str) -> int:
        """Return the number of hosts with a running container that are not on a node."""
        of_run = ("-l", f"jobset.sigs.k8s.io/jobset-name={self.run.name}", "--field-selector", f"spec.nodeName!={node}")
        path = "jsonpath={.items[*].status.containerStatuses[*].state.running.startedAt}"
        return len(self.place.kubectl("get", "pods", *of_run, "-o", path).split())

    def begun(self) -> dict[tuple[int, int], float]:
        """Return the hosts whose trainer has started since the newest disturbance, with the times."""
        starts = [event for event in self.run.events("start") if event["time"] > self.disturbed]
        return {(event["slice"], event["host"]): event["time"] for event in starts}

    def _all_began(self) -> float:
        """Return the time at which the last trainer of the newest attempt started."""
        return max(self.begun().values())

    def _lost_steps(self) -> int:
        """Return the number of steps that the newest restart undid."""
        began = self._all_began()
        newest = [line["step"] for line in self.run.steps if line["time"] > began]
        reached = max(line["step"] for line in self.run.steps if line["time"] <= began)
        return int(reached - min(newest) + 1)

    def _show(self, recovery: Recovery) -> None:
        parts = ", ".join(f"{part.name} {part.seconds:.1f}" for part in recovery.parts if part.seconds is not None)
        self.run.lab.say(f"  {self._lost_steps()} steps lost, {recovery.seconds:.1f} s: {parts}")


@contextmanager
def drilled(
    place: Place, calm: Workload, name: str, max_restarts: int, options: tuple[str, ...] = (), *settings: str
) -> Iterator[Drill]:
    """Yield a run that trains; nodes are restored afterwards."""
    run = start(place, name, max_restarts=max_restarts, options=options, settings=settings)
    try:
        run.await_(lambda: bool(run.steps), SECONDS)
        yield Drill(place, run, calm.losses, run.describe())
    finally:
        place.wake()
        place.end(name)


@pytest.fixture(scope="module")
def drill(place: Place, calm: Workload) -> Iterator[Drill]:
    """The run whose hosts fail."""
    with drilled(place, calm, "hosts-end", 3, ("--read-only-root", "--network-policy")) as made:
        yield made


@pytest.fixture(scope="module")
def moving(place: Place, calm: Workload) -> Iterator[Drill]:
    """The run whose nodes fail; its hosts also keep checkpoints in the memory of their nodes."""
    place.end("hosts-end")  # after a failed test it still holds the slices
    settings = (f"checkpoint.local_every={LOCAL_INTERVAL}", f"checkpoint.local_path={NODE_MEMORY}")
    with drilled(place, calm, "nodes-end", 2, ("--node-folder", NODE_MEMORY), *settings) as made:
        yield made


def ends_like_the_undisturbed_run(drill: Drill) -> None:
    """Wait for the end and compare the complete result."""
    drill.run.wait(SECONDS)
    assert drill.run.losses == drill.losses and len(drill.losses) == STEPS
    described = drill.run.describe()
    assert (described["restarts"], described["restarts_counted"]) == (drill.restarts, drill.counted)
    assert len({event["attempt"] for event in drill.run.events("done")}) == 1


def has_moved(drill: Drill, node: str) -> None:
    """Check that no host is left on a node, and that the state came from the memory of the others' nodes."""
    restored = {event["source"] for event in drill.run.events("restore") if event["time"] > drill.disturbed}
    assert restored == {"local"}
    assert node not in (drill.node(0), drill.node(1))


# CI kills the coordinator's container instead, in another test below.
@pytest.mark.parametrize(
    ("slice_id", "host"), [(1, 1), pytest.param(0, 0, marks=pytest.mark.extended)], ids=["a-host", "the-coordinator"]
)
def test_a_killed_trainer_is_restarted_in_the_same_pods(drill: Drill, slice_id: int, host: int) -> None:
    before, in_place = drill.pods, drill.described["restarts_in_place"]
    drill.disturb(lambda: drill.run.end_program(slice_id, host), counted=True)
    assert drill.pods == before and drill.described["restarts_in_place"] == in_place + 1


@pytest.mark.parametrize("slice_id", [0, pytest.param(1, marks=pytest.mark.extended)])
def test_a_hosts_pod_is_deleted_and_only_its_slice_is_replaced(drill: Drill, slice_id: int) -> None:
    pod, kept, replaced = drill.host(slice_id, 0)["pod"], drill.pods_of(1 - slice_id), drill.pods_of(slice_id)
    drill.disturb(lambda: drill.kubectl("delete", "pod", pod, "--wait=false"), counted=False, lost=0)
    assert drill.pods_of(1 - slice_id) == kept and not drill.pods_of(slice_id) & replaced


@pytest.mark.extended
def test_a_hosts_pod_is_deleted_by_force(drill: Drill) -> None:
    pod = drill.host(0, 1)["pod"]
    drill.disturb(lambda: drill.kubectl("delete", "pod", pod, "--force", "--grace-period=0"), counted=None)


def test_the_coordinators_container_is_killed(drill: Drill) -> None:
    host, before = drill.host(0, 0), drill.pods
    drill.disturb(lambda: drill.run.lab.kill(host, signal.SIGKILL), counted=True)
    assert not drill.pods & before


def test_the_final_state_equals_that_of_an_undisturbed_run(drill: Drill) -> None:
    ends_like_the_undisturbed_run(drill)


@pytest.mark.extended
def test_a_node_is_drained(moving: Drill) -> None:
    node = moving.node(1)
    moving.disturb(lambda: moving.kubectl("drain", node, "--ignore-daemonsets"), counted=False, lost=0)
    assert node not in (moving.node(0), moving.node(1))
    moving.kubectl("uncordon", node)


@pytest.mark.extended
def test_a_node_freezes_and_its_slice_moves_to_the_spare(moving: Drill) -> None:
    node = moving.node(1)
    # The slice that stayed has the state in its nodes' memory, and sends it to the one that moved.
    # It is counted if a host of the slice ends before Kubernetes marks it as disrupted.
    lost, seconds = 3 * LOCAL_INTERVAL, DEAD_NODE_SECONDS
    moving.disturb(lambda: moving.freeze(node), counted=None, lost=lost, uncounted_lost=lost, seconds=seconds)
    has_moved(moving, node)
    docker("unpause", node)  # its hosts resume, find that the others have continued without them, and exit


def test_a_dead_node_is_fenced_and_its_slice_moves_to_the_spare(moving: Drill) -> None:
    node, seconds, lost = moving.node(1), list[float](), 3 * LOCAL_INTERVAL
    with moving.place.fencing() as log:
        # It is counted if a peer reports the loss before the node is fenced.
        moving.disturb(lambda: seconds.append(moving.end_machine(node)), counted=None, lost=lost, uncounted_lost=lost)
        moving.run.lab.say(f"  all hosts ran {seconds[0]:.1f} s after the end of the machine; counted {moving.counted}")
        assert f"fenced {node}" in log.read_text()
        has_moved(moving, node)
        ends_like_the_undisturbed_run(moving)
        docker("start", node)
        until(lambda: f"released {node}" in log.read_text(), seconds=120, report=log.read_text)
    assert seconds[0] <= FENCED_NODE_SECONDS


def test_commands_without_peers_do_not_wait_for_their_grace_period(place: Place) -> None:
    name, at = "deaf", ("--cluster", place.cluster)
    place.end("nodes-end")  # after a failed test it still holds the slices
    size = ("--num-slices", "2", "--max-restarts", "1", "--termination-grace-period-seconds", str(GRACE_SECONDS))
    place.xpk("workload", "create", name, *at, *size, "--command", DEAF)
    try:
        place.xpk("workload", "wait", name, *at, "--timeout", f"{SECONDS:.0f}s")
        status = Workload(place.lab, name).describe()
        assert (status["phase"], status["restarts"], status["restarts_counted"]) == ("Succeeded", 1, 1)
        (restart,) = status["restart_history"]
        assert (restart["host"], restart["exit_code"]) == (1, 3), (
            "the first failed host is named, not those lost with it"
        )
    finally:
        place.end(name)
