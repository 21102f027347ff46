"""Hosts of a simulated job: connections between them, and their loop of choosing, training and saving."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tests.simulation.checkpoints.schedule import Crashed, current
from trainer.checkpoint.local import LocalTier
from trainer.checkpoint.manager import Checkpoints
from trainer.checkpoint.shards import Pieces
from trainer.errors import FatalError, StorageError
from trainer.hosts.bootstrap import Host
from trainer.hosts.job import Job
from trainer.hosts.peers import Peers
from trainer.storage import open_place
from trainer.telemetry.metrics import Events

if TYPE_CHECKING:
    from tests.simulation.checkpoints.world import World

_SAVE_EVERY = 2  # steps; a local save is made after each


class Attempt:
    """One attempt of the job: its hosts, and what they tell each other."""

    def __init__(self, world: World, number: int, nodes: list[Path]) -> None:
        self.world, self.number, self.nodes = world, number, nodes
        self.is_lost = False  # a host has died, so the others end as soon as they wait for it
        self.reports: dict[str, dict[int, Any]] = {}
        self.announced: list[dict[str, Any]] = [{} for _ in nodes]
        self.began = world.schedule.steps
        self.is_alone = not world.is_running  # no host of an earlier attempt runs, nor has since its begin
        self.expected = world.properties.newest_save  # step from which it must resume at least
        self.expected_local = world.properties.newest_local_save
        self.tasks = [world.schedule.start(f"{number}/{n}", self._host(n)) for n in range(len(nodes))]

    @property
    def is_running(self) -> bool:
        """Return whether a host still runs."""
        return any(not task.has_ended for task in self.tasks)

    def _host(self, process: int) -> Callable[[], None]:
        def run() -> None:
            try:
                _check_alive()
                _Host(self, process).run()
                _check_alive()
            except (FatalError, StorageError, OSError):
                assert self.world.is_faulty, "a host ends without a cause"
            finally:
                self.is_lost = True  # its connections close

        return run


def _check_alive() -> None:
    if task := current():
        task.check_alive()


class _Peers:
    """`trainer.hosts.peers.Peers` without a network: a message arrives at once, and a lost host ends the others."""

    def __init__(self, attempt: Attempt, process_id: int) -> None:
        self._attempt, self.process_id, self.processes = attempt, process_id, len(attempt.nodes)

    def report(self, key: str, value: Any) -> None:
        _check_alive()
        self._attempt.reports.setdefault(key, {})[self.process_id] = value

    def collect(self, key: str) -> list[Any]:
        reports = self._attempt.reports
        self._wait(lambda: len(reports.get(key, ())) == self.processes)
        values = reports.pop(key)
        return [values[process] for process in range(self.processes)]

    def announce(self, key: str, value: Any) -> None:
        _check_alive()
        for announced in self._attempt.announced:
            announced[key] = value

    def await_(self, key: str) -> Any:
        own = self._attempt.announced[self.process_id]
        self._wait(lambda: key in own)
        return own.pop(key)

    def _wait(self, has_come: Callable[[], bool]) -> None:
        task = current()
        assert task
        while not has_come():
            if self._attempt.is_lost:
                raise Crashed
            task.pause(lambda: has_come() or self._attempt.is_lost)


class _Checkpoints(Checkpoints):
    """Checkpoints whose arrays are small files of this simulation."""

    def _finalize(self, step: int) -> None:
        """Do nothing: no index of arrays has to be merged."""

    def write(self, step: int, content: bytes) -> None:
        """Write this host's part where `save` lets Orbax write it."""
        place = open_place(self._store.staging_path(step, self._attempt_id))
        assert place.path
        with (place.path / f"host-{self._peers.process_id}").open("wb", buffering=0) as file:
            file.write(content[:5])
            if task := current():
                task.pause()
            file.write(content[5:])


class _Write:
    """A write in the background, as Orbax returns it."""

    def __init__(self, action: Callable[[], None]) -> None:
        self.result = action


class _Events:
    """The events of one host, which tell what it has saved."""

    def __init__(self, attempt: Attempt, process: int) -> None:
        self._attempt, self._process, self.attempt = attempt, process, attempt.number

    def write(self, name: str, step: int, *_: object, **__: object) -> None:
        """Note a save."""
        _check_alive()
        properties = self._attempt.world.properties
        if name == "local_save":
            properties.on_local_save(self._attempt, self._process, step)
        elif name == "save" and self._process == 0:
            properties.on_save(self._attempt, step)
        elif name == "save_failed":
            assert self._attempt.world.is_faulty, "a save fails without a cause"


class _Host:
    """One host of an attempt."""

    def __init__(self, attempt: Attempt, process: int) -> None:
        world = self._world = attempt.world
        self._attempt, self._process = attempt, process
        slice_id, worker_id = divmod(process, world.hosts)
        host = Host(num_slices=world.slices, hosts_per_slice=world.hosts, slice_id=slice_id, worker_id=worker_id)
        peers, events = cast(Peers, _Peers(attempt, process)), cast(Events, _Events(attempt, process))
        out = open_place(world.root / "out")
        tier = SimpleNamespace(local_every=1, local_path=str(attempt.nodes[process]))
        config = SimpleNamespace(checkpoint=tier)
        job = SimpleNamespace(config=config, out=out, events=events, peers=peers, host=host)
        self._tier = LocalTier(cast(Job, job), {})
        self._checkpoints = _Checkpoints(out / "checkpoints", world.keep, {}, peers, events)

    def run(self) -> None:
        """Choose a checkpoint as the trainer does, then save after each step."""
        world = self._world
        devices = np.array([SimpleNamespace(process_index=n) for n in range(len(self._attempt.nodes))], dtype=object)
        mesh = SimpleNamespace(devices=devices.reshape(world.slices, world.hosts))
        local = self._tier.choose(cast(Any, mesh), cast(Any, {}))
        newest = self._checkpoints.choose(newer_than=local.step if local else -1)
        if self._process == 0:
            world.properties.on_choice(self._attempt, local, newest[0] if newest else None)
        start = newest[0] if newest else local.step if local else 0
        self._tier.settle(start)
        for step in range(start + 1, start + 1 + world.steps):
            self._save_locally(step)
            if step % _SAVE_EVERY == 0:
                self._save(step)

    def _save(self, step: int) -> None:
        if self._process == 0:
            self._world.properties.on_save_begin(self._attempt, step)
        content = saved_content(step, self._attempt.number, self._process)
        write = _Write(lambda: self._checkpoints.write(step, content))
        self._checkpoints._commit(step, [write], "", (0.0, 0.0), {})

    def _save_locally(self, step: int) -> None:
        data = np.frombuffer(saved_content(step, self._attempt.number, self._process), np.uint8)
        pieces = {"state": Pieces(data.shape, "uint8", {((0, data.size),): data})}
        notes = {"run": self._tier._run, "session": self._tier._session}
        self._tier._commit(step, pieces, notes, 0.0, 0.0)


def saved_content(step: int, attempt: int, process: int) -> bytes:
    """Return what a host saves."""
    return f"step {step} of attempt {attempt} on host {process}".encode()
