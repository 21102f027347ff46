"""Random events of a simulated cluster: users, administrators, and everything that fails."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from tests.local.cases import elastic, jobset, node
from tests.simulation.machine import Program, attempt_of, slice_group
from tests.simulation.queues import CHIPS, resource_of
from tests.simulation.world import World
from xpk.api.base import Obj
from xpk.local import objects as o
from xpk.model.errors import XpkError

HOUR = 3600.0
_PRIORITIES = ("low", "medium", "high")
_WORKLOADS = 6  # at most, at a time
_CODES = (1, 42, 75, 137, 143)
_MANY_RESTARTS = 20  # more than faults need; a program that always fails uses all of them, which takes most of the time


class Life:
    """Random events of a world, with `calm` hours between two of a kind on average."""

    def __init__(self, world: World, *, calm: float) -> None:
        self.world = world
        self._numbers, self._ends = itertools.count(), False
        self._lost: list[str] = []  # nodes
        for action, weight in (
            (self._submit, 2.0), (self._kill_host, 1.0), (self._lose_supervisor, 0.5), (self._delete, 0.2),
            (self._evict_pod, 0.4), (self._deactivate, 0.2), (self._activate, 0.3), (self._lose_node, 0.3),
            (self._return_node, 0.5), (self._taint_node, 0.2), (self._change_quota, 0.1), (self._set_clock, 0.05),
            (self._crash_daemon, 0.3),
        ):  # fmt: skip
            self._repeat(action, calm * HOUR / weight)

    def _repeat(self, action: Callable[[], None], mean: float) -> None:
        def act() -> None:
            if self._ends:
                return
            try:
                action()
            except XpkError as error:
                self.world.note("refused", str(error))
            self.world.after(self.world.rng.expovariate(1 / mean), act)

        self.world.after(self.world.rng.expovariate(1 / mean), act)

    def end(self) -> None:
        """End all faults, bring back all nodes and wait for the remaining workloads."""
        world = self.world
        self._ends, world.crash_share = True, 0.0

        def recover() -> None:
            world.start_daemon()
            for queue in self._objects("ClusterQueue"):
                self._set_quota(queue["metadata"]["name"], world.chips)
            for pool, host in itertools.product(range(world.slices), range(world.hosts)):
                world.api.apply(node(pool, host))
                world.api.patch("Node", node(pool, host)["metadata"]["name"], {"spec": {"taints": None}})
            for workload in self._objects("Workload"):
                world.api.patch("Workload", workload["metadata"]["name"], {"spec": {"active": True}})

        world.after(0.0, recover)
        work = sum(program.work for program in world.machine.programs.values())
        world.run(world.now + 3 * work + 100 * HOUR)
        for one in self._objects("JobSet"):
            if not one["status"].get("terminalState"):
                world.properties.fail(f"{one['metadata']['name']} does not end: {one['status']}")
        world.properties.require(not world.machine.living(), "hosts run although all workloads have ended")

    def _objects(self, kind: str) -> list[Obj]:
        with self.world.transaction() as tx:
            return [dict(obj) for obj in tx.list(kind)]

    def _choose(self, objects: list[Obj]) -> Obj | None:
        return self.world.rng.choice(objects) if objects else None

    def _submit(self) -> None:
        rng, world = self.world.rng, self.world
        if len(self._objects("JobSet")) >= _WORKLOADS:
            return
        name = f"w{next(self._numbers)}"
        slices = min(world.slices, rng.choice((1, 1, 1, 2, 9)))
        hosts = rng.randint(1, world.hosts)  # of each slice
        obj = jobset(
            name, "true", slices=slices, hosts=hosts, priority=rng.choice(_PRIORITIES),
            max_restarts=rng.choice((0, 1, 3, _MANY_RESTARTS)), ttl=rng.choice((0, 60, 10_000)),
            grace=rng.choice((0, 5, 30)), strategy=rng.choice(("BlockingRecreate", "Recreate")),
        )  # fmt: skip
        queue = self._choose(self._objects("LocalQueue"))
        assert queue
        obj["metadata"]["labels"][o.QUEUE_LABEL] = queue["metadata"]["name"]
        is_elastic = slices > 1 and rng.random() < 0.5
        uid = world.api.create(elastic(obj) if is_elastic else obj)["metadata"]["uid"]
        work, interval = rng.expovariate(1 / (6 * HOUR)), rng.choice((60.0, 900.0))
        bad_code = rng.choice((1, 42, 143)) if rng.random() < 0.1 else 0
        for group in [slice_group(uid, index) for index in range(slices)] if is_elastic else [uid]:
            world.machine.programs[group] = Program(
                size=hosts if is_elastic else slices * hosts, work=work, interval=interval, bad_code=bad_code,
                ignores_sigterm=rng.random() < 0.05,
            )  # fmt: skip
        world.note("submit", name, slices)

    def _kill_host(self) -> None:
        living = self.world.machine.living()
        if living:
            one = self.world.rng.choice(living)
            code = self.world.rng.choice(_CODES)
            self.world.machine.end(one.uid, code)

    def _lose_supervisor(self) -> None:
        living = self.world.machine.living()
        if living:
            self.world.machine.lose(self.world.rng.choice(living).uid)

    def _delete(self) -> None:
        if one := self._choose(self._objects("JobSet")):
            self.world.api.delete("JobSet", one["metadata"]["name"], grace_seconds=self.world.rng.choice((None, 0, 1)))

    def _evict_pod(self) -> None:
        if one := self._choose(self._objects("Pod")):
            self._disrupt([one])
            self.world.api.evict(one["metadata"]["name"])

    def _disrupt(self, pods: list[Obj]) -> None:
        """Note the attempts of which a host is about to be disrupted, perhaps before it starts."""
        for pod in pods:
            self.world.machine.programs[self.world.machine.group_of(pod)].asked.add(attempt_of(pod))

    def _choose_node(self) -> str | None:
        """Return a node, whose hosts are about to be disrupted."""
        one = self._choose(self._objects("Node"))
        if one is None:
            return None
        name = str(one["metadata"]["name"])
        self._disrupt([pod for pod in self._objects("Pod") if pod["spec"].get("nodeName") == name])
        return name

    def _deactivate(self) -> None:
        self._set_active(False)

    def _activate(self) -> None:
        self._set_active(True)

    def _set_active(self, active: bool) -> None:
        if one := self._choose(self._objects("Workload")):
            self.world.api.patch("Workload", one["metadata"]["name"], {"spec": {"active": active}})

    def _lose_node(self) -> None:
        if name := self._choose_node():
            self._lost.append(name)
            self.world.api.delete("Node", name, "")

    def _return_node(self) -> None:
        if self._lost:
            pool, host = self._lost.pop().split("-")[-2:]
            self.world.api.apply(node(int(pool), int(host)))
            return
        for one in self._objects("Node"):
            if o.is_fenced(one):
                self.world.api.patch("Node", one["metadata"]["name"], {"spec": {"taints": None}}, "")
                return

    def _taint_node(self) -> None:
        if name := self._choose_node():
            taint = {"key": "broken", "effect": "NoExecute"}
            self.world.api.patch("Node", name, {"spec": {"taints": [taint]}}, "")

    def _change_quota(self) -> None:
        if queue := self._choose(self._objects("ClusterQueue")):
            hosts = self.world.rng.randrange(self.world.slices + 1) * self.world.hosts
            self._set_quota(queue["metadata"]["name"], hosts * CHIPS)

    def _set_quota(self, name: str, chips: int) -> None:
        with self.world.transaction() as tx:
            queue = tx.get("ClusterQueue", "", name)
            assert queue
            resource_of(queue)["nominalQuota"] = chips
            tx.put(queue)

    def _set_clock(self) -> None:
        self.world.clock.shift = self.world.rng.uniform(-HOUR, HOUR)

    def _crash_daemon(self) -> None:
        world = self.world
        if world.daemon_runs:
            world.daemon_runs = False
            world.after(world.rng.choice((0.1, 1.0, 60.0, 600.0)), world.start_daemon)
