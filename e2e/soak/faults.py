"""Kinds of faults, and the plan of a soak: fault N of a seed is always the same."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from random import Random

_STEPS = 10  # maximum number of steps that an attempt finishes before a fault
_DELAY_SECONDS = 0.3  # maximum time from such a step to the signal
_GAP_SECONDS = 0.5  # maximum time between two signals of one fault
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


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault. `pods_stay`: a restart in place is sufficient."""

    weight: int
    pods_stay: bool
    strikes: Callable[[Random, int], tuple[Strike, ...]]


def _trainer(number: signal.Signals, moment: Moment = Moment.RUNNING) -> Callable[[Random, int], tuple[Strike, ...]]:
    return lambda rng, hosts: (_strike(rng, Target.TRAINER, rng.randrange(hosts), number, moment),)


def _supervisor(number: signal.Signals) -> Callable[[Random, int], tuple[Strike, ...]]:
    return lambda rng, hosts: (_strike(rng, Target.SUPERVISOR, _any_host(rng, hosts), number),)


def _first(target: Target) -> Callable[[Random, int], tuple[Strike, ...]]:
    return lambda rng, _: (_strike(rng, target, 0, signal.SIGKILL),)


def _pair(
    first: tuple[Target, signal.Signals], second: tuple[Target, signal.Signals], moment: Moment = Moment.RUNNING
) -> Callable[[Random, int], tuple[Strike, ...]]:
    """Return the signals to two hosts; `moment` is that of the second one."""

    def strikes(rng: Random, hosts: int) -> tuple[Strike, ...]:
        one = _any_host(rng, hosts)
        other = rng.choice([host for host in range(hosts) if host != one])
        begun = _strike(rng, first[0], one, first[1])
        delay = rng.uniform(0, 1) if moment is Moment.STARTING else rng.choice((0.0, rng.uniform(0, _GAP_SECONDS)))
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


def plan(seed: int, hosts: int, first: int, count: int) -> Iterator[Fault]:
    """Yield `count` faults of a seed, starting with fault `first`; each depends only on the seed and its number."""
    for number in range(first, first + count):
        rng = Random(f"{seed}/{number}")
        pods_stay = (number - 1) % _BLOCK < _IN_PLACE
        kinds = [name for name, kind in KINDS.items() if kind.pods_stay or not pods_stay]
        (name,) = rng.choices(kinds, [KINDS[item].weight for item in kinds])
        yield Fault(number, name, KINDS[name].strikes(rng, hosts))
