"""Decisions around the replacement of slices: single ones, and random lives of a job whose messages take any time."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from xpk_shared.supervisor.host import Host
from xpk_shared.supervisor.replacement_coordinator import NEVER, ReplacingCoordinator
from xpk_shared.supervisor.restarts import End

LIVES, FAULTS = 80, 12


def place(number: int, hosts: int, replaced: int = 0, size: int = 2) -> Host:
    """Return a host of a job with `size` hosts in each slice."""
    return Host(number, hosts, size, "", 0, "j", 0, "", max_restarts=1000, slice_attempt=replaced)


def deciding(hosts: int = 4, replaced: int = 0) -> ReplacingCoordinator:
    """Return the decisions of a first host whose slice was replaced this often, at 0.0."""
    return ReplacingCoordinator(place(0, hosts, replaced), 0.0)


def stopped(coordinator: ReplacingCoordinator, *numbers: int, restarts: int = 0, now: float = 10.0) -> None:
    """Report the ends of commands that were stopped."""
    for number in numbers:
        coordinator.take(End(number, 143, was_stopped=True), restarts, now)


def decided(coordinator: ReplacingCoordinator, now: float, absent: tuple[int, ...] = ()) -> dict[str, Any] | None:
    """Return the next order that is no message about a host that is gone."""
    order = coordinator.decide(now, absent)
    while order and "gone" in order:
        order = coordinator.decide(now, absent)
    return order


def test_a_frozen_host_ends_all_others_so_that_all_slices_get_new_pods() -> None:
    coordinator = deciding(6)
    coordinator.join(3, 0, 0, runs=True)
    coordinator.lose(3)
    assert coordinator.decide(10.0, ()) == {"gone": 3, "generation": 0}
    stop = {"stop": 0, "number": 3, "code": 0, "replaces": True, "saves": False}
    assert coordinator.decide(10.0, (5,)) == stop
    stopped(coordinator, 0, 1)
    assert coordinator.decide(40.0, (5,)) is None, "30 s"
    stopped(coordinator, 4)
    assert coordinator.decide(50.0, ()) is None, "host 5 has only just connected"
    assert coordinator.decide(80.0, ()) is None
    assert coordinator.decide(80.1, ()) == {"final": 5, "silent": True}
    assert coordinator.decide(999.0, ()) is None


def test_a_pause_that_is_interrupted_ends_with_a_restart_that_counts() -> None:
    coordinator = deciding()
    for restarts in range(2):
        now = 1.0 + restarts
        coordinator.take(End(1, 7, was_stopped=False), restarts, now)
        coordinator.decide(now, ())
        stopped(coordinator, 0, 2, 3, restarts=restarts)
        order = coordinator.decide(now, ())
    assert order == {"pause": 2.0, "short_attempts": 2}
    coordinator.lose(3)
    assert decided(coordinator, 9.0) is None, "the pause is over, but hosts are missing"
    for number in (2, 3):
        coordinator.join(number, NEVER, 1, runs=False)
    assert decided(coordinator, 9.0) == {"start": 2, "replaced": True}
    assert coordinator.cause == End(1, 7, was_stopped=False)


def test_hosts_that_were_asked_to_end_are_awaited_before_all_others_are_stopped() -> None:
    coordinator = deciding()
    coordinator.ask(3)
    coordinator.take(End(0, 143, was_stopped=False), 0, 5.0)
    assert coordinator.decide(5.0, ()) is None, "the others may be saving"
    coordinator.leave(3)
    assert decided(coordinator, 6.0) == {"stop": 0, "number": 3, "code": 0, "replaces": True, "saves": True}
    coordinator = deciding()
    assert coordinator.decide(100.0, ()) is None
    coordinator.ask(3)
    coordinator.take(End(0, 1, was_stopped=False), 0, 105.0)
    assert coordinator.decide(159.9, ()) is None, "the grace period, and 30 s"
    assert coordinator.decide(160.1, ()) == {"final": 3, "silent": True}, "it does not end"
    coordinator = deciding()
    coordinator.ask(3)
    for number in range(4):
        coordinator.take(End(number, 0, was_stopped=False), 0, 5.0)
    assert coordinator.decide(5.0, ()) == {"done": True}


def test_a_success_is_told_to_hosts_that_join_later() -> None:
    coordinator = deciding()
    for number in range(4):
        coordinator.take(End(number, 0, was_stopped=False), 0, 5.0)
    assert coordinator.decide(5.0, ()) == {"done": True}
    coordinator.leave(1)
    coordinator.lose(3)
    coordinator.leave(2)
    assert decided(coordinator, 6.0) is None and not coordinator.is_over
    coordinator.join(3, NEVER, 1, runs=False)
    assert decided(coordinator, 7.0) == {"done": True}
    coordinator.leave(3)
    assert coordinator.is_over


def test_a_host_that_left_and_was_replaced_learns_of_the_success_too() -> None:
    coordinator = deciding()
    coordinator.ask(3)
    coordinator.leave(3)
    decided(coordinator, 1.0)
    stopped(coordinator, 0, 1)
    for number in (2, 3):
        coordinator.join(number, NEVER, 1, runs=False)
    assert decided(coordinator, 2.0) == {"start": 1, "replaced": True}
    for number in range(4):
        coordinator.take(End(number, 0, was_stopped=False), 1, 3.0)
    assert decided(coordinator, 3.0) == {"done": True}
    for number in (1, 2):
        coordinator.leave(number)
    assert not coordinator.is_over
    coordinator.leave(3)
    assert coordinator.is_over


@pytest.mark.parametrize("last", [0, 1])
def test_a_success_outlives_the_first_order_of_other_hosts(last: int) -> None:
    coordinator = deciding(4, replaced=1)
    for number in (2, 3):
        coordinator.join(number, 0, 0, runs=True)
    coordinator.take(End(2, 0, was_stopped=False), 0, 1.0)
    coordinator.join(1, NEVER, 1, runs=False)
    assert coordinator.decide(2.0, ()) == {"start": 0}
    for number in (3, 1 - last, last):
        assert coordinator.decide(3.0, ()) is None
        coordinator.take(End(number, 0, was_stopped=False), 0, 3.0)
    assert coordinator.decide(4.0, ()) == {"done": True}


def test_hosts_that_may_save_have_their_grace_period_before_they_count_as_frozen() -> None:
    coordinator = deciding()
    coordinator.ask(3)
    coordinator.leave(3)
    assert (decided(coordinator, 100.0) or {}).get("saves") is True
    stopped(coordinator, 0)
    assert decided(coordinator, 100.0) is None
    assert decided(coordinator, 159.9) is None
    assert decided(coordinator, 160.1) == {"final": 1, "silent": True}


def test_a_new_pod_tells_that_the_earlier_ones_of_its_slice_are_gone() -> None:
    """The connection of a dead node may end long after its slice has new pods."""
    coordinator = deciding()
    for number in (2, 3):
        coordinator.join(number, 0, 0, runs=True)
    coordinator.lose(3)
    for number in (0, 1, 2):
        decided(coordinator, 1.0)
        stopped(coordinator, number)
    coordinator.join(3, NEVER, 1, runs=False)
    assert decided(coordinator, 2.0) is None, "its neighbor has no new pod yet"
    coordinator = deciding()
    for number in (2, 3):
        coordinator.join(number, 0, 0, runs=True)
    coordinator.join(3, NEVER, 1, runs=False)
    assert coordinator.decide(1.0, ()) == {"gone": 2, "generation": 0}
    assert (coordinator.decide(1.0, ()) or {}).get("stop") == 0


def test_a_new_pod_that_joins_a_later_attempt_stops_all_others() -> None:
    coordinator = deciding()
    coordinator.take(End(1, 7, was_stopped=False), 0, 1.0)
    coordinator.decide(1.0, ())
    stopped(coordinator, 0, 2, 3)
    assert (coordinator.decide(2.0, ()) or {}).get("start") == 1
    assert coordinator.cause == End(1, 7, was_stopped=False)
    coordinator.join(3, NEVER, 1, runs=False)
    assert decided(coordinator, 4.0) == {"stop": 1, "number": 3, "code": 0, "replaces": True, "saves": False}
    stopped(coordinator, 0, 1, 2, restarts=1)
    coordinator.join(2, NEVER, 1, runs=False)
    assert decided(coordinator, 5.0) == {"start": 2, "replaced": True}
    assert coordinator.cause is None, "Kubernetes names it"


def test_hosts_that_still_run_are_stopped_if_others_have_noticed_the_loss_of_the_first_host() -> None:
    coordinator = deciding(6, replaced=1)
    for number in (2, 3):
        coordinator.join(number, 0, 0, runs=True)
    for number in (4, 5):
        coordinator.join(number, 0, 0, runs=False)
    coordinator.join(1, NEVER, 1, runs=False)
    stop = {"stop": 0, "number": 0, "code": 0, "replaces": True, "saves": False}
    assert coordinator.decide(1.0, ()) == stop
    assert coordinator.decide(1.0, ()) is None
    stopped(coordinator, 2, 3)
    assert coordinator.decide(2.0, ()) == {"start": 1, "replaced": True}


def test_a_host_that_joins_the_first_attempt_late_starts_with_it() -> None:
    coordinator = deciding()
    coordinator.join(3, NEVER, 1, runs=False)
    assert decided(coordinator, 1.0) == {"start": 0}
    assert decided(coordinator, 2.0) is None


def test_the_others_learn_which_pod_of_a_host_is_gone() -> None:
    coordinator = deciding()
    coordinator.join(3, NEVER, 2, runs=False)
    coordinator.lose(3)
    assert {"gone": 3, "generation": 2} in [coordinator.decide(1.0, ()) for _ in range(3)]


def test_attempts_begin_with_the_first_one_if_all_pods_are_new() -> None:
    coordinator = deciding(4, replaced=1)
    for number in (1, 2, 3):
        coordinator.join(number, NEVER, 1, runs=False)
    assert decided(coordinator, 1.0) == {"start": 0, "replaced": True}
    coordinator = deciding(4, replaced=1)
    coordinator.join(2, 0, 0, runs=True)
    coordinator.lose(2)
    for number in (1, 2, 3):
        coordinator.join(number, NEVER, 1, runs=False)
    assert decided(coordinator, 1.0) is not None, "the order to stop, which nobody needs"
    assert decided(coordinator, 2.0) == {"start": 0, "replaced": True}


def test_hosts_that_run_the_first_attempt_start_with_the_second_after_a_loss() -> None:
    coordinator = deciding(6, replaced=1)
    for number in (2, 3, 4, 5):
        coordinator.join(number, 0, 0, runs=True)
    coordinator.lose(5)
    assert (decided(coordinator, 1.0) or {}).get("stop") == 0
    stopped(coordinator, 2, 3)
    for number in (1, 4, 5):
        coordinator.join(number, NEVER, 1, runs=False)
    assert decided(coordinator, 2.0) == {"start": 1, "replaced": True}


class Pod:
    """A host of the model: its command, and its connection to the first host."""

    def __init__(self, number: int, generation: int) -> None:
        self.number, self.generation = number, generation
        self.restarts, self.running = (NEVER, False) if generation else (0, True)
        self.is_told, self.is_cut = False, False  # to stop; that the first host is gone
        self.up: deque[Callable[[ReplacingCoordinator], None]] = deque()
        self.down: deque[dict[str, Any]] = deque()
        self.connect()

    def connect(self) -> None:
        """Connect to the first host."""
        runs = self.running
        self.is_cut, self.has_joined, self.down = False, runs or not self.number, deque()

        def join(coordinator: ReplacingCoordinator) -> None:
            coordinator.join(self.number, self.restarts, self.generation, runs=runs)
            self.has_joined = True

        self.up = deque([join] if self.number else ())


class Job:
    """A job in which hosts crash, are lost and are asked to end. Every message takes any time, in order."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.now, self.size, self.slices = rng, 0.0, rng.choice((1, 2)), rng.choice((2, 3, 4))
        self.hosts, self.replaced = self.size * self.slices, [0] * self.slices
        self.pods: dict[int, Pod] = {}
        self.lost: set[int] = set()  # slices that Kubernetes will replace
        self.unseen: set[int] = set()  # lost hosts whose connections the first host has not seen end yet
        for slice_id in range(self.slices):
            self.boot(slice_id)

    def numbers_of(self, slice_id: int) -> range:
        """Return the numbers of a slice's hosts."""
        return range(self.size * slice_id, self.size * (slice_id + 1))

    def boot(self, slice_id: int) -> None:
        """Create the pods of a slice."""
        for number in self.numbers_of(slice_id):
            self.pods[number] = Pod(number, self.replaced[slice_id])
        if slice_id == 0:
            self.coordinator = ReplacingCoordinator(place(0, self.hosts, self.replaced[0], self.size), self.now)

    def remove(self, number: int) -> None:
        """Let a host die; the others learn of it later."""
        del self.pods[number]
        self.lost.add(number // self.size)
        if number == 0:
            for pod in self.pods.values():
                pod.is_cut = True
            self.unseen = set()
        elif 0 in self.pods:
            self.unseen.add(number)

    def end(self, pod: Pod, code: int) -> None:
        """Let the command of a host end."""
        end, restarts = End(pod.number, code, was_stopped=pod.is_told), pod.restarts
        pod.running = False
        pod.up.append(lambda coordinator: coordinator.take(end, restarts, self.now))

    def obey(self, pod: Pod, order: dict[str, Any]) -> None:
        """Carry out an order of the first host."""
        assert "final" not in order, "no host is frozen"
        if order.get("stop") == pod.restarts and pod.running:
            pod.is_told = True
        elif "start" in order and order["start"] != pod.restarts and pod.number // self.size not in self.lost:
            assert not pod.running and order["start"] > pod.restarts
            pod.restarts, pod.running, pod.is_told = order["start"], True, False
            running = {other.restarts for other in self.pods.values() if other.running}
            assert running == {pod.restarts}, "two attempts overlap"

    def step(self, *, faults: bool) -> None:
        """Let one thing happen."""
        self.now += self.rng.random() * 0.01
        pod = self.rng.choice([*self.pods.values()]) if self.pods else None
        kind = self.rng.choice(("up", "down", "decide", "stop", "cut", "replace", "fault"))
        if kind == "replace" and self.lost:
            self.replace(self.rng.choice([*self.lost]))
        elif pod is None:
            return
        elif kind == "up" and self.unseen and 0 in self.pods and self.rng.random() < 0.3:
            number = self.rng.choice([*self.unseen])
            self.unseen.remove(number)
            self.coordinator.lose(number)
        elif kind == "up" and pod.up and 0 in self.pods and not (pod.is_cut or pod.number in self.unseen):
            pod.up.popleft()(self.coordinator)
        elif kind == "down" and pod.down:
            self.obey(pod, pod.down.popleft())
        elif kind == "decide" and 0 in self.pods and (order := self.coordinator.decide(self.now, ())):
            for other in self.pods.values():
                if other.has_joined and not other.is_cut:
                    other.down.append(order)
        elif kind == "stop" and pod.running and pod.is_told:
            self.end(pod, 143)
        elif kind == "cut" and pod.is_cut and pod.number // self.size not in self.lost:
            if pod.running:
                pod.is_told = True
            elif 0 in self.pods:
                pod.connect()
        elif kind == "fault" and faults:
            self.fail(pod)

    def fail(self, pod: Pod) -> None:
        """Let a command crash, or a host be lost."""
        if self.rng.random() < 0.5 and pod.running:
            self.end(pod, 1)
        elif self.rng.random() < 0.5:
            self.remove(pod.number)

    def replace(self, slice_id: int) -> None:
        """Delete what is left of a slice and create its pods, as JobSet does."""
        for number in self.numbers_of(slice_id):
            if number in self.pods:
                self.remove(number)
        self.lost.discard(slice_id)
        self.replaced[slice_id] += 1
        self.boot(slice_id)

    @property
    def is_well(self) -> bool:
        """True if all hosts run the same attempt, and no message is in transit."""
        pods = self.pods.values()
        return len(pods) == self.hosts and all(pod.running and not pod.is_told and not pod.down for pod in pods)


@pytest.mark.parametrize("seed", range(3))
def test_all_hosts_run_one_attempt_again_after_any_losses(seed: int) -> None:
    for life in range(LIVES):
        job = Job(random.Random(f"{seed}/{life}"))
        for _ in range(FAULTS):
            for _ in range(job.rng.randrange(400)):
                job.step(faults=False)
            for _ in range(job.rng.randrange(30)):
                job.step(faults=True)
        steps = 0
        while not job.is_well or job.rng.random() < 0.99:
            job.step(faults=False)
            job.now += 0.01  # pauses end
            steps += 1
            assert steps < 20_000, f"life {seed}/{life} does not recover"
        assert len({pod.restarts for pod in job.pods.values()}) == 1
