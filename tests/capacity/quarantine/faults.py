"""Kinds of faults for the simulation: what fails in an attempt of a workload, and how its hosts report it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from xpk.model.evidence import EvidenceKind

Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Report:
    """Observation of a host in an attempt: its end, or a report of its trainer or its node."""

    place: Place
    code: int | None = 1
    cause: str = ""
    observed: EvidenceKind | None = None  # not a failure: slow chips, or a condition of the node


# Returns the reports of an attempt. `bad`: where hosts on bad nodes are; `size`: slices and hosts of a slice.
Attempt = Callable[[random.Random, list[Place], tuple[int, int], int], list[Report]]


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault. `bad_hosts`: number of hosts at fault; 0 if the program is, or nobody."""

    name: str
    attempt: Attempt
    bad_hosts: int = 1
    slices: int = 8
    is_decidable: bool = True


def _ends(code: int | None, words: str = "ended with an error") -> Attempt:
    """Every attempt ends because the bad host ends in this way; of several bad hosts, any one."""
    return lambda r, bad, size, number: [Report(r.choice(bad), code, words)] if bad else []


def _reports(kind: EvidenceKind, then: Attempt) -> Attempt:
    return lambda r, bad, size, number: [
        *(Report(place, observed=kind) for place in bad), *then(r, bad, size, number)
    ]  # fmt: skip


def _any_host(r: random.Random, size: tuple[int, int]) -> Place:
    return r.randrange(size[0]), r.randrange(size[1])


def _anywhere(code: int | None, words: str = "ended with an error") -> Attempt:
    """Every attempt ends because any host ends in this way."""
    return lambda r, bad, size, number: [Report(_any_host(r, size), code, words)]


def _at(place: Place, code: int) -> Attempt:
    return lambda r, bad, size, number: [Report(place, code, "ended with an error")]


def _every(period: int, attempt: Attempt, otherwise: Attempt) -> Attempt:
    return lambda r, bad, size, number: (otherwise if number % period else attempt)(r, bad, size, number)


def _one_of(*attempts: Attempt) -> Attempt:
    return lambda r, bad, size, number: r.choice(attempts)(r, bad, size, number)


PREEMPTED = _anywhere(143, "was evicted")
KILLED = _anywhere(137, "ended with exit code 137 (SIGKILL)")
SEGV = _ends(139, "ended with exit code 139 (SIGSEGV)")
HUNG = _ends(76, "ended with exit code 76 (hung)")

OF_HOSTS = (
    Fault("SIGSEGV in every attempt", SEGV),
    Fault("SIGBUS in every attempt", _ends(135)),
    Fault("SIGILL in every attempt", _ends(132)),
    Fault("SIGABRT in every attempt", _ends(134)),
    Fault("SIGFPE in every attempt", _ends(136)),
    Fault("hangs while it waits for its own data", HUNG),
    Fault("process is frozen", _ends(None, "did not answer")),
    Fault("copies of the state differ, most agree", _ends(77)),
    Fault("chips are in use by another process", _ends(1, "open(/dev/accel0): Device or resource busy")),
    Fault("accelerator fails to initialize", _ends(1, "RuntimeError: TPU initialization failed: no answer")),
    Fault("chip is missing", _ends(1, "expected 4 chips, chip 2 not found")),
    Fault("uncorrectable memory error", _ends(1, "INTERNAL: Uncorrectable HBM error on core 1")),
    Fault("Xid of a GPU", _ends(134, "NVRM: Xid 79, GPU has fallen off the bus")),
    Fault("slow chips, between preemptions", _reports(EvidenceKind.CHIPS, PREEMPTED)),
    Fault("kernel deadlock, reported by the node", _reports(EvidenceKind.PROBLEM, HUNG)),
    Fault("read-only filesystem, reported by the node", _reports(EvidenceKind.PROBLEM, _ends(1))),
    Fault("container runtime restarts often, and hosts hang", _reports(EvidenceKind.WARNING, HUNG)),
    Fault("SIGSEGV or a hang", _one_of(SEGV, HUNG)),
    Fault("SIGSEGV in every third attempt, else preemption", _every(3, SEGV, PREEMPTED)),
    Fault("SIGSEGV in every second attempt, else an OOM kill", _every(2, SEGV, KILLED)),
    Fault("SIGSEGV; any host has one in every fourth attempt", _every(4, _anywhere(139), SEGV)),
    Fault("hang on a workload of two slices", HUNG, slices=2),
    Fault("SIGSEGV of two hosts in turn", SEGV, bad_hosts=2),
)
OF_PROGRAMS = (
    Fault("program: SIGSEGV on any host", _anywhere(139), bad_hosts=0),
    Fault("program: SIGSEGV always on the first host", _at((0, 0), 139), bad_hosts=0),
    Fault("program: deadlock, any host reports it first", _anywhere(76), bad_hosts=0),
    Fault("program: out of memory on any host", KILLED, bad_hosts=0),
    Fault("program: exception on any host", _anywhere(1), bad_hosts=0),
    Fault("program: exception always on the first host", _at((0, 0), 1), bad_hosts=0),
    Fault("spot slices are preempted", PREEMPTED, bad_hosts=0),
    Fault("two copies of the state differ", _one_of(_ends(77), _anywhere(77)), slices=2, is_decidable=False),
)
FAULTS = (*OF_HOSTS, *OF_PROGRAMS)
BY_NAME: Mapping[str, Fault] = {fault.name: fault for fault in FAULTS}
