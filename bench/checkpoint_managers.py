"""Our checkpoints against `orbax.checkpoint.CheckpointManager`: cost, and what is left after a kill or damage.

    PYTHONPATH=workloads python -m bench.checkpoint_managers [--repeat 5] [--kills 10]
    eval "$(e2e/environment/up)" && PYTHONPATH=workloads python -m bench.checkpoint_managers --bucket

Every case runs on two emulated chips, in turn for both. With --bucket, checkpoints are in fake-gcs-server. Writes
bench/results/checkpoint-managers-<date>.json. docs/adr/0008-checkpoint-manager.md has the conclusions.
"""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bench.restore import store

RESULTS = Path(__file__).parent / "results"
ARRAYS, ROWS = 12, 1024  # of 4 MiB each: 48 MiB
KEPT = 3


class Manager(Protocol):
    """Both managers' common interface."""

    def save(self, step: int, state: Any) -> None:
        """Save a state; return once it is committed."""

    def newest(self) -> int | None:
        """Return the step from which a restarted run resumes."""

    def restore(self, step: int, like: Any) -> Any:
        """Return the state of a step, with the sharding of another state."""


class Ours:
    """The trainer's checkpoints in a run with one host."""

    def __init__(self, place: str, attempt: int = 0) -> None:
        from trainer.checkpoint.manager import Checkpoints
        from trainer.hosts.peers import Peers
        from trainer.storage import open_place
        from trainer.telemetry.metrics import Events, JsonLines

        folder = Path(tempfile.mkdtemp())
        events = Events(JsonLines(open_place(folder / "events.jsonl")), 0, 0, attempt, time.monotonic())
        peers = Peers(0, 1, on_lost=lambda host: None, on_message=lambda what, by: None)
        self._checkpoints = Checkpoints(open_place(place), KEPT, {}, peers, events)
        self._chosen = self._checkpoints.choose()

    def save(self, step: int, state: Any) -> None:
        """See Manager.save."""
        self._checkpoints.save(step, state)
        if failure := self._checkpoints.wait():
            raise OSError(failure)

    def newest(self) -> int | None:
        """See Manager.newest."""
        return self._chosen[0] if self._chosen else None

    def restore(self, step: int, like: Any) -> Any:
        """See Manager.restore."""
        import jax

        assert self._chosen and self._chosen[0] == step
        mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(1, -1), ("dp", "x"))
        compile_ = lambda name, program, *arguments: (program.lower(*arguments).compile(), False)  # noqa: E731
        state, _ = self._checkpoints.restore(*self._chosen, mesh, like, compile_)()
        return state


class Orbax:
    """Orbax's manager with the usual options of a training run."""

    def __init__(self, place: str, attempt: int = 0) -> None:
        import orbax.checkpoint as ocp  # type: ignore[import-untyped]
        from etils import epath  # type: ignore[import-untyped]

        if place.startswith("gs://"):
            from trainer.checkpoint.stores.orbax_files import register
            from trainer.storage import open_place

            register()
            open_place(place)
        self._args = ocp.args
        options = ocp.CheckpointManagerOptions(max_to_keep=KEPT, cleanup_tmp_directories=True)
        self._manager = ocp.CheckpointManager(epath.Path(place), options=options)

    def save(self, step: int, state: Any) -> None:
        """See Manager.save."""
        self._manager.save(step, args=self._args.StandardSave(state))
        self._manager.wait_until_finished()
        self._manager.check_for_errors()

    def newest(self) -> int | None:
        """See Manager.newest."""
        step: int | None = self._manager.latest_step()
        return step

    def restore(self, step: int, like: Any) -> Any:
        """See Manager.restore."""
        return self._manager.restore(step, args=self._args.StandardRestore(like))


MANAGERS: dict[str, Callable[..., Manager]] = {"ours": Ours, "orbax": Orbax}


def state_of(seed: int) -> Any:
    """Return a state in which every bit depends on a seed, sharded over the chips."""
    import jax

    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(1, -1), ("dp", "x"))
    placed = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    numbers = np.random.default_rng(seed)
    return {f"w{n}": jax.device_put(numbers.random((ROWS, ROWS), np.float32), placed) for n in range(ARRAYS)}


def abstract(state: Any) -> Any:
    """Return shapes, types and shardings of a state."""
    import jax

    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state)


def is_seed(state: Any, seed: int) -> bool:
    """Return whether a state equals that of a seed bit by bit."""
    expected = state_of(seed)
    return all(np.asarray(state[name]).tobytes() == np.asarray(expected[name]).tobytes() for name in expected)


def timed(name: str, place: str) -> dict[str, float]:
    """Save two checkpoints and restore the newest in a fresh manager; return seconds of the second save and of that."""
    manager, state = MANAGERS[name](place), state_of(1)
    manager.save(1, state)
    watch = time.monotonic()
    manager.save(2, state)
    saved = time.monotonic()
    again = MANAGERS[name](place, 1)
    step = again.newest()
    assert step == 2
    restored = again.restore(step, abstract(state))
    ended = time.monotonic()
    assert is_seed(restored, 1)
    return {"save_seconds": saved - watch, "choose_and_restore_seconds": ended - saved}


def resumed(name: str, place: str) -> str:
    """Return the result of a restarted run: the step from which it resumes, or its error."""
    try:
        manager = MANAGERS[name](place, 1)
        step = manager.newest()
        if step is None:
            return "begins anew"
        state = manager.restore(step, abstract(state_of(step)))
    except Exception as error:
        return f"ends with {type(error).__name__}"
    return f"step {step}" if is_seed(state, step) else f"step {step} with other values"


def damaged(name: str, place: str, damage: str) -> str:
    """Save two checkpoints, damage the newest on its disk; return the result of a restarted run."""
    manager = MANAGERS[name](place)
    for step in (1, 2):
        manager.save(step, state_of(step))
    file = max((path for path in Path(place, "2").rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    if damage == "missing":
        file.unlink()
    else:
        with file.open("r+b") as content:
            middle = file.stat().st_size // 2
            content.seek(middle)
            if damage == "truncated":
                content.truncate()
            else:
                byte = content.read(1)
                content.seek(middle)
                content.write(bytes([byte[0] ^ 1]))
    return resumed(name, place)


def overtaken(name: str, place: str) -> str:
    """Let an earlier attempt save a step that its successor has saved; return the attempt whose state is kept."""
    earlier = MANAGERS[name](place)
    later = MANAGERS[name](place, 1)
    later.save(2, state_of(2))
    with suppress(Exception):  # rejected, as expected
        earlier.save(2, state_of(7))
    outcome = resumed(name, place)
    return {"step 2": "the successor's", "step 2 with other values": "the earlier attempt's"}.get(outcome, outcome)


def killed(name: str, place: str, seconds: float) -> str:
    """Kill a process in the middle of its second save; return the result of a restarted run."""
    child = subprocess.Popen([sys.executable, "-m", "bench.checkpoint_managers", "--save", name, place], stdout=-1)
    assert child.stdout and child.stdout.readline() == b"first\n"
    time.sleep(seconds)
    child.send_signal(signal.SIGKILL)
    child.wait()
    return resumed(name, place)


def save_twice(name: str, place: str) -> None:
    """Save step 1, print a line, and save step 2."""
    manager, state = MANAGERS[name](place), state_of(2)
    manager.save(1, state_of(1))
    print("first", flush=True)
    manager.save(2, state)


@contextmanager
def places(in_bucket: bool) -> Iterator[Callable[[], str]]:
    """Yield a function that returns a new folder, on the disk or in a bucket."""
    with tempfile.TemporaryDirectory() as folder:
        if in_bucket:
            with store():
                yield lambda: f"gs://restore/{random.getrandbits(40):x}"
        else:
            yield lambda: tempfile.mkdtemp(dir=folder)


def measure(repeat: int, kills: int, *, in_bucket: bool) -> dict[str, Any]:
    """Return times and outcomes of both managers."""
    results: dict[str, dict[str, Any]] = {name: {"runs": [], "killed": []} for name in MANAGERS}
    with places(in_bucket) as place:
        for _ in range(repeat):
            for name, outcomes in results.items():
                outcomes["runs"].append(timed(name, at := place()))
                shutil.rmtree(at, ignore_errors=True)
        for n in range(kills):
            for name, outcomes in results.items():
                usual = statistics.median(run["save_seconds"] for run in outcomes["runs"])
                outcomes["killed"].append(killed(name, place(), usual * (n + 1) / (kills + 1)))
        for name, outcomes in results.items():
            outcomes["earlier attempt"] = overtaken(name, place())
            for damage in () if in_bucket else ("one bit", "truncated", "missing"):
                outcomes[damage] = damaged(name, place(), damage)
    return results


def table(results: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield a row for every case."""
    yield f"| case | {' | '.join(results)} |"
    yield f"|---|{'---|' * len(results)}"
    for key in ("save_seconds", "choose_and_restore_seconds"):
        medians = [f"{statistics.median(run[key] for run in case['runs']):.2f}" for case in results.values()]
        yield f"| {key} | {' | '.join(medians)} |"
    for key in [key for key in next(iter(results.values())) if key != "runs"]:
        cells = [case[key] for case in results.values()]
        counted = [
            ", ".join(f"{cell.count(item)} x {item}" for item in sorted(set(cell))) if isinstance(cell, list) else cell
            for cell in cells
        ]
        yield f"| {key} | {' | '.join(counted)} |"


def main() -> None:
    """Measure both managers, print the table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--bucket", action="store_true")
    parser.add_argument("--save", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if asked.save:
        save_twice(*asked.save)
        return
    results = measure(asked.repeat, asked.kills, in_bucket=asked.bucket)
    print(*table(results), sep="\n")
    kind = "bucket" if asked.bucket else "disk"
    machine = {"cores": os.cpu_count(), "load": os.getloadavg(), "orbax": version("orbax-checkpoint")}
    path = RESULTS / f"checkpoint-managers-{kind}-{datetime.now(UTC):%Y-%m-%d}.json"
    path.write_text(
        json.dumps({"machine": machine, "state_bytes": ARRAYS * ROWS * ROWS * 4, **results}, indent=1) + "\n"
    )
    print(f"written to {path}")


if __name__ == "__main__":
    main()
