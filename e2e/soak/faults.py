"""Kinds of faults, and the plan of a soak: fault N of a seed is always the same."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random

HOSTS_PER_SLICE = 2
_STEPS = 10  # maximum number of steps that an attempt finishes before a fault
_DELAY_SECONDS = 0.3  # maximum time from such a step to the signal
_GAP_SECONDS = 0.5  # maximum time between two signals of one fault
_START_SECONDS, _JOIN_SECONDS = 4.0, 0.1  # maximum time from a slice's first start, or its grant, to a signal
_BLOCK, _IN_PLACE = 50, 25  # the first faults of each block keep the pods, so that supervisors survive many attempts


class Target(StrEnum):
    """The process of a host that receives a signal."""

    TRAINER = "trainer"
    SUPERVISOR = "supervisor"


class Moment(StrEnum):
    """The time of a signal."""

    RUNNING = "running"  # while the attempt trains
    SAVING = "saving"  # after a save has begun
    STARTING = "starting"  # in the attempt after the previous signal, once its first trainer has started
    JOINING = "joining"  # once a slice that was lost is about to receive the state from an active one


@dataclass(frozen=True, slots=True)
class Strike:
    """One signal to one process. `host` counts over the whole job; `delay_seconds` begins at the moment.

    The running attempt has finished `steps` steps by then, and is not a short one.
    """

    target: Target
    host: int
    signal: signal.Signals
    moment: Moment
    delay_seconds: float
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of the plan."""

    number: int
    kind: str
    strikes: tuple[Strike, ...]

    @property
    def slices(self) -> set[int]:
        """Numbers of the slices that it hits."""
        return {strike.host // HOSTS_PER_SLICE for strike in self.strikes}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault, only in plans that name it if its weight is 0. `pods_stay`: a restart in place is sufficient."""

    weight: int
    pods_stay: bool
    strikes: Callable[[Random, int], tuple[Strike, ...]]


def _trainer(number: signal.Signals, moment: Moment = Moment.RUNNING) -> Callable[[Random, int], tuple[Strike, ...]]:
    return lambda rng, hosts: (_strike(rng, Target.TRAINER, rng.randrange(hosts), number, moment),)


def _supervisor(number: signal.Signals) -> Callable[[Random, int], tuple[Strike, ...]]:
    return lambda rng, hosts: (_strike(rng, Target.SUPERVISOR, _any_host(rng, hosts), number),)


def _first(target: Target, number: signal.Signals = signal.SIGKILL) -> Callable[[Random, int], tuple[Strike, ...]]:
    return lambda rng, _: (_strike(rng, target, 0, number),)


def _pair(
    first: tuple[Target, signal.Signals],
    second: tuple[Target, signal.Signals],
    moment: Moment = Moment.RUNNING,
    *,
    start_seconds: float = 1.0,
    in_one_slice: bool | None = None,
) -> Callable[[Random, int], tuple[Strike, ...]]:
    """Return the signals to two hosts; `moment` is that of the second one.

    With Moment.STARTING it is sent within `start_seconds`. `in_one_slice` is None if any two hosts may be hit.
    """

    def strikes(rng: Random, hosts: int) -> tuple[Strike, ...]:
        one = _any_host(rng, hosts)
        others = [host for host in range(hosts) if host != one]
        if in_one_slice is not None:
            others = [h for h in others if (h // HOSTS_PER_SLICE == one // HOSTS_PER_SLICE) == in_one_slice]
        other = rng.choice(others)
        begun = _strike(rng, first[0], one, first[1])
        if moment is Moment.STARTING:
            delay = rng.uniform(0, start_seconds)
        elif moment is Moment.JOINING:
            delay = rng.uniform(0, _JOIN_SECONDS)
        else:
            delay = rng.choice((0.0, rng.uniform(0, _GAP_SECONDS)))
        return begun, Strike(second[0], other, second[1], moment, round(delay, 3))

    return strikes


def _whole_host(number: signal.Signals) -> Callable[[Random, int], tuple[Strike, ...]]:
    def strikes(rng: Random, hosts: int) -> tuple[Strike, ...]:
        begun = _strike(rng, Target.SUPERVISOR, _any_host(rng, hosts), number)
        return begun, Strike(Target.TRAINER, begun.host, number, Moment.RUNNING, 0.0)

    return strikes


def _any_host(rng: Random, hosts: int) -> int:
    """Return a host, often the first one, which decides for all."""
    return rng.choice((0, *rng.choices(range(hosts), k=3)))


def _strike(rng: Random, target: Target, host: int, number: signal.Signals, moment: Moment = Moment.RUNNING) -> Strike:
    is_saving = moment is Moment.SAVING
    delay = round(rng.uniform(0, 0.1 if is_saving else _DELAY_SECONDS), 3)
    return Strike(target, host, number, moment, delay, 0 if is_saving else rng.randint(1, _STEPS))


_KILLED_TRAINER = Target.TRAINER, signal.SIGKILL
_KILLED_SUPERVISOR = Target.SUPERVISOR, signal.SIGKILL
_ASKED_HOST = Target.SUPERVISOR, signal.SIGTERM
_STOPPED_SUPERVISOR = Target.SUPERVISOR, signal.SIGSTOP

KINDS = {
    "kill-trainer": Kind(6, True, _trainer(signal.SIGKILL)),
    "kill-coordinator": Kind(3, True, _first(Target.TRAINER)),
    "kill-two-trainers": Kind(4, True, _pair(_KILLED_TRAINER, _KILLED_TRAINER)),
    "kill-in-restart": Kind(4, True, _pair(_KILLED_TRAINER, _KILLED_TRAINER, Moment.STARTING)),
    "kill-in-save": Kind(4, True, _trainer(signal.SIGKILL, Moment.SAVING)),
    "terminate-trainer": Kind(3, True, _trainer(signal.SIGTERM)),
    "stop-trainer": Kind(1, True, _trainer(signal.SIGSTOP)),
    "kill-supervisor": Kind(3, False, _supervisor(signal.SIGKILL)),
    "kill-first-supervisor": Kind(2, False, _first(Target.SUPERVISOR)),
    "kill-trainer-and-supervisor": Kind(2, False, _pair(_KILLED_TRAINER, _KILLED_SUPERVISOR)),
    "kill-supervisor-in-restart": Kind(2, False, _pair(_KILLED_TRAINER, _KILLED_SUPERVISOR, Moment.STARTING)),
    "terminate-host": Kind(3, False, _supervisor(signal.SIGTERM)),
    "terminate-host-and-kill-trainer": Kind(2, False, _pair(_ASKED_HOST, _KILLED_TRAINER)),
    "terminate-host-in-restart": Kind(1, False, _pair(_KILLED_TRAINER, _ASKED_HOST, Moment.STARTING)),
    "stop-supervisor-and-kill-trainer": Kind(1, False, _pair(_STOPPED_SUPERVISOR, _KILLED_TRAINER)),
    "stop-host": Kind(1, False, _whole_host(signal.SIGSTOP)),
}


# Every slice is restarted alone. No fault hits more than two slices.
ELASTIC_KINDS = {
    "kill-trainer": KINDS["kill-trainer"],
    "kill-coordinator": KINDS["kill-coordinator"],
    "kill-two-slices": Kind(3, True, _pair(_KILLED_TRAINER, _KILLED_TRAINER, in_one_slice=False)),
    "kill-two-trainers": Kind(2, True, _pair(_KILLED_TRAINER, _KILLED_TRAINER, in_one_slice=True)),
    "kill-in-restart": Kind(
        3, True, _pair(_KILLED_TRAINER, _KILLED_TRAINER, Moment.STARTING, start_seconds=_START_SECONDS)
    ),
    "kill-in-join": Kind(4, True, _pair(_KILLED_TRAINER, _KILLED_TRAINER, Moment.JOINING)),
    "kill-in-save": KINDS["kill-in-save"],
    "terminate-trainer": KINDS["terminate-trainer"],
    "stop-trainer": Kind(3, True, _trainer(signal.SIGSTOP)),
    "kill-supervisor": KINDS["kill-supervisor"],
    "kill-registry": Kind(3, False, _first(Target.SUPERVISOR)),
    "kill-supervisors-of-two-slices": Kind(2, False, _pair(_KILLED_SUPERVISOR, _KILLED_SUPERVISOR, in_one_slice=False)),
    "kill-trainer-and-supervisor": KINDS["kill-trainer-and-supervisor"],
    "kill-supervisor-in-restart": KINDS["kill-supervisor-in-restart"],
    "kill-supervisor-in-join": Kind(2, False, _pair(_KILLED_TRAINER, _KILLED_SUPERVISOR, Moment.JOINING)),
    "terminate-host": KINDS["terminate-host"],
    "terminate-host-and-kill-trainer": KINDS["terminate-host-and-kill-trainer"],
    "terminate-host-in-restart": KINDS["terminate-host-in-restart"],
    # Only its own slice needs a supervisor.
    "stop-supervisor-and-kill-trainer": Kind(1, False, _pair(_STOPPED_SUPERVISOR, _KILLED_TRAINER, in_one_slice=True)),
    "stop-host": KINDS["stop-host"],
    "stop-registry": Kind(0, False, _first(Target.SUPERVISOR, signal.SIGSTOP)),
}


def plan(seed: int, hosts: int, first: int, count: int, all_kinds: Mapping[str, Kind] = KINDS) -> Iterator[Fault]:
    """Yield `count` faults of a seed, starting with fault `first`; each depends only on the seed and its number."""
    for number in range(first, first + count):
        rng = Random(f"{seed}/{number}")
        pods_stay = (number - 1) % _BLOCK < _IN_PLACE
        kinds = [name for name, kind in all_kinds.items() if kind.pods_stay or not pods_stay]
        kinds = kinds or list(all_kinds)  # none of the chosen ones keeps the pods
        (name,) = rng.choices(kinds, [all_kinds[item].weight for item in kinds])
        yield Fault(number, name, all_kinds[name].strikes(rng, hosts))
