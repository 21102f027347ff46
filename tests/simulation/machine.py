"""Hosts as processes of a machine, which behave like the bundled trainer under its supervisor."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from xpk.api.base import Obj
from xpk.local import objects as o
from xpk.local.process import Host
from xpk_shared.supervisor.names import PEER_LOST

if TYPE_CHECKING:
    from tests.simulation.world import World

State = Literal["absent", "prepared", "starting", "running", "ended", "lost"]
_ASKED = 143
_PATIENCE = 60.0  # of a host whose peer is lost, until it exits by itself


@dataclass(slots=True)
class Process:
    """One host. Its group are the hosts that start and restart together: of a JobSet, or of an elastic slice."""

    pod: Obj
    group: str
    state: State = "prepared"
    facts: Obj = field(default_factory=dict)
    deadline: float | None = None  # of its grace period, since it was asked to end

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"]["uid"])

    @property
    def jobset(self) -> str:
        return o.label(self.pod, f"{o.JOBSET}jobset-uid")

    @property
    def attempt(self) -> str:
        return attempt_of(self.pod)

    @property
    def place(self) -> tuple[str, str]:
        return o.label(self.pod, f"{o.JOBSET}job-index"), o.label(self.pod, o.INDEX)

    @property
    def node(self) -> str:
        return str(self.pod["spec"]["nodeName"])

    @property
    def pool(self) -> str:
        return self.node.rpartition("-")[0]

    @property
    def lives(self) -> bool:
        return self.state in ("starting", "running")


def slice_group(jobset: str, index: str | int) -> str:
    """Return the group of one elastic slice of a JobSet, which is given by its UID."""
    return f"{jobset}/{index}"


def attempt_of(pod: Obj) -> str:
    """Return the attempt to which a pod belongs: of its JobSet, and of its own Job."""
    return "/".join(o.label(pod, f"{o.JOBSET}{key}restart-attempt") for key in ("", "job-"))


@dataclass(slots=True)
class Program:
    """The program of a group of hosts: `work` seconds together, with checkpoints."""

    size: int  # hosts
    work: float
    interval: float  # of its checkpoints
    bad_code: int = 0  # with which every attempt ends early
    ignores_sigterm: bool = False
    done: float = 0.0
    began: float | None = None
    failures: set[str] = field(default_factory=set)  # attempts in which a host has failed
    asked: set[str] = field(default_factory=set)  # attempts in which a host was asked to end


class Machine:
    """All hosts that were ever started, by the UID of their pods, and the programs by group."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.processes: dict[str, Process] = {}
        self.programs: dict[str, Program] = {}
        self._living: dict[str, Process] = {}

    def group_of(self, pod: Obj) -> str:
        """Return the group to which a pod's host belongs."""
        jobset = o.label(pod, f"{o.JOBSET}jobset-uid")
        own = slice_group(jobset, o.label(pod, f"{o.JOBSET}job-index"))
        return own if own in self.programs else jobset

    def state(self, uid: str) -> State:
        """Return the state of a host, as `process.observe` does."""
        return self.processes[uid].state if uid in self.processes else "absent"

    def living(self, group: str | None = None) -> list[Process]:
        """Return the hosts that run, of all groups or one."""
        return [one for one in self._living.values() if group in (None, one.group)]

    def observe(self, pod: Obj, started: set[str]) -> Host:
        """Return what the daemon sees, which records the end of hosts that cannot."""
        one = self.processes.get(pod["metadata"]["uid"])
        if one is None:
            return Host()
        if one.state == "lost" or (one.state == "prepared" and (one.uid in started or o.is_terminating(pod))):
            self._record(one, 137, "ContainerStatusUnknown" if one.state == "lost" else "StartError")
        return Host(one.state, one.facts)

    def launch(self, pod: Obj) -> None:
        """Start a host."""
        uid = pod["metadata"]["uid"]
        one = self.processes.setdefault(uid, Process(copy.deepcopy(pod), self.group_of(pod)))
        if one.state != "prepared":
            return
        self._world.properties.on_launch(one)
        self._world.note("launch", pod["metadata"]["name"])
        one.state, self._living[uid] = "starting", one
        self._world.after(self._world.rng.uniform(0.05, 2.0), lambda: self._run(one))

    def _run(self, one: Process) -> None:
        if one.state != "starting":
            return
        one.state, one.facts = "running", {"pid": 1 + len(self.processes), "startedAt": o.now()}
        program = self.programs[one.group]
        peers = [other for other in self.living(one.group) if other.state == "running" and other.deadline is None]
        if len(peers) == program.size:
            self._begin(program, one.group)

    def _begin(self, program: Program, group: str) -> None:
        began = program.began = self._world.now
        if program.bad_code:
            victim = self._world.rng.choice([one.uid for one in self.living(group)])
            self._world.after(self._world.rng.uniform(0.1, 100.0), lambda: self.end(victim, program.bad_code))
        self._world.after(max(0.0, program.work - program.done), lambda: self._complete(program, group, began))

    def _complete(self, program: Program, group: str, began: float) -> bool:
        if program.began != began:
            return False
        program.began, program.done = None, program.work
        for one in self.living(group):
            self._later(one, self._world.rng.uniform(0.0, 2.0), 0)
        return False  # nothing that the daemon sees

    def _later(self, one: Process, seconds: float, code: int, **facts: str) -> None:
        """End a host after a while, unless it has ended before."""
        self._world.after(seconds, lambda: self._end(one, code, **facts))

    def _stop(self, group: str, *, saves: bool) -> None:
        """Stop the program of a group; without a save it continues from its newest checkpoint."""
        program = self.programs[group]
        if program.began is not None:
            gained = self._world.now - program.began
            program.done += gained if saves else gained // program.interval * program.interval
            program.began = None

    def end(self, uid: str, code: int) -> bool:
        """End a host by itself: it crashes, or it is killed. Return whether it has run."""
        one = self.processes.get(uid)
        if one is None or not one.lives:
            return False
        if code and one.deadline is None:
            self.programs[one.group].failures.add(one.attempt)
        self._end(one, code)
        if code:
            self._stop(one.group, saves=False)
            for peer in self.living(one.group):
                self._later(peer, _PATIENCE, PEER_LOST)
        return True

    def lose(self, uid: str) -> None:
        """Kill a host's supervisor: the host dies with it, and nothing is recorded."""
        one = self.processes.get(uid)
        if one is None or not one.lives:
            return
        self.programs[one.group].failures.add(one.attempt)
        one.state = "lost" if one.state == "running" else "prepared"
        del self._living[uid]
        self._stop(one.group, saves=False)

    def terminate(self, pod: Obj) -> bool:
        """Ask a host to end, and kill it after its grace period; return whether this was the first request."""
        one = self.processes.get(pod["metadata"]["uid"])
        if one is None or not one.lives:
            return False
        grace = pod["metadata"]["deletionGracePeriodSeconds"]
        is_first, deadline = one.deadline is None, self._world.now + grace
        program = self.programs[one.group]
        if is_first or (one.deadline or 0.0) > deadline:
            one.deadline = deadline
            self._later(one, max(0.0, grace), 137)
        if is_first:
            program.asked.add(one.attempt)
            self._stop(one.group, saves=True)
            if not program.ignores_sigterm:
                self._later(one, self._world.rng.uniform(0.05, 3.0), _ASKED, message="asked to end")
                for peer in self.living(one.group):
                    if peer.deadline is None:
                        self._later(peer, self._world.rng.uniform(0.05, 3.0), _ASKED, message="asked to end")
        return is_first

    def _end(self, one: Process, code: int, **facts: str) -> bool:
        if one.lives:
            self._world.note("end", one.pod["metadata"]["name"], code)
            self._record(one, code, "", **facts)
            return True
        return False

    def _record(self, one: Process, code: int, reason: str, **facts: str) -> None:
        began = one.facts.get("startedAt", o.now())
        one.state = "ended"
        self._living.pop(one.uid, None)
        one.facts = {
            **one.facts,
            "exitCode": code,
            "reason": reason,
            "startedAt": began,
            "finishedAt": o.now(),
            **facts,
        }
        if not reason:
            del one.facts["reason"]
