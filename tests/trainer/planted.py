"""The trainer with a fault in it: `python -m tests.trainer.planted FAULT:STEP arguments of the trainer`.

Hosts of a test that run this instead of `python -m trainer` do what a broken machine would: from STEP on

    hang     reading a batch never ends
    lock     neither does it, in C code that holds Python's lock
    slow     reading a batch takes a second longer
    held     reading a batch waits until the file of the variable PLANTED_GATE exists
    stuck    writing the checkpoint of STEP, and of later ones, never ends
    late     writing the checkpoint of STEP, and of later ones, takes five seconds longer
    eval     reading the STEPth batch of evaluations never ends
    copy     (whatever STEP) copying the data to this host never ends
    compile  from the STEPth program on, compiling never ends
    disk     writing the local checkpoint of STEP, and of later ones, never ends
    cut      no message from or to another host arrives
    lr       (whatever STEP) its learning rate is 0.5
    flip     (at STEP alone) one bit of one parameter changes on the host's second chip
"""

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.waiting import until

FAULTS: dict[str, Callable[[int], None]] = {}


def _on_read(step: int, act: Callable[[], object], *, of_evaluations: bool = False) -> None:
    """Call a function before each batch is read, starting with that of `step` (from 1), or only before evaluations'."""
    from trainer.data import batches as data

    real = data.to_blocks
    batches = 0

    def to_blocks(*arguments: Any) -> Any:
        nonlocal batches
        is_counted = not of_evaluations or arguments[3].keywords["step"] is None
        batches += is_counted
        if is_counted and batches >= step:
            act()
        return real(*arguments)

    setattr(data, real.__name__, to_blocks)


def read_that_never_ends() -> None:
    """Wait forever."""
    threading.Event().wait()


def _hang(step: int) -> None:
    _on_read(step, read_that_never_ends)


def _eval(step: int) -> None:
    _on_read(step, read_that_never_ends, of_evaluations=True)


def _lock(step: int) -> None:
    libc = ctypes.PyDLL(None)
    _on_read(step, lambda: libc.sleep(3600))


def _slow(step: int) -> None:
    _on_read(step, lambda: time.sleep(1.0))


def _held(step: int) -> None:
    gate = Path(os.environ["PLANTED_GATE"])
    _on_read(step, lambda: until(gate.exists, seconds=3600))


class _Stuck:
    def result_that_never_comes(self) -> None:
        read_that_never_ends()

    result = result_that_never_comes


def _stuck(step: int) -> None:
    from trainer.checkpoint.manager import Checkpoints

    real = Checkpoints._commit

    def commit(self: Checkpoints, at: int, writes: list[Any], *arguments: Any) -> None:
        real(self, at, [_Stuck()] if at >= step else writes, *arguments)

    setattr(Checkpoints, real.__name__, commit)


class _Late:
    def result(self) -> None:
        time.sleep(5.0)


def _late(step: int) -> None:
    from trainer.checkpoint.manager import Checkpoints

    real = Checkpoints._commit

    def commit(self: Checkpoints, at: int, writes: list[Any], *arguments: Any) -> None:
        real(self, at, [*writes, _Late()] if at >= step else writes, *arguments)

    setattr(Checkpoints, real.__name__, commit)


def _copy(step: int) -> None:
    from trainer.data.reader import Reader

    setattr(Reader, Reader.fetch.__name__, lambda *_: read_that_never_ends())


def _compile(step: int) -> None:
    import jax

    real, compiled = jax.stages.Lowered.compile, 0

    def compile(*arguments: Any, **named: Any) -> Any:
        nonlocal compiled
        compiled += 1
        if compiled >= step:
            read_that_never_ends()
        return real(*arguments, **named)

    setattr(jax.stages.Lowered, real.__name__, compile)


def _disk(step: int) -> None:
    from trainer.checkpoint.local import LocalTier

    real = LocalTier._write

    def write(self: LocalTier, at: int, *arguments: Any) -> str:
        if at >= step:
            read_that_never_ends()
        return real(self, at, *arguments)

    setattr(LocalTier, real.__name__, write)


def _cut(step: int) -> None:
    from xpk_shared.links.connection import Link

    def cut() -> None:
        setattr(Link, Link.receive.__name__, lambda *_: read_that_never_ends())
        for method in (Link.send, Link.beat):
            setattr(Link, method.__name__, lambda *_: None)

    _on_read(step, cut)


def _lr(step: int) -> None:
    sys.argv += ["--set", "optim.lr=0.5"]


def flipped(array: Any, chip: int) -> Any:
    """Return an array with one flipped bit of its first value in one local chip's copy."""
    import jax
    import numpy as np

    pieces = [np.array(shard.data) for shard in array.addressable_shards]
    pieces[chip].reshape(-1).view(np.uint32)[0] ^= 1 << 20
    devices = [shard.device for shard in array.addressable_shards]
    placed = [jax.device_put(piece, device) for piece, device in zip(pieces, devices, strict=True)]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, placed)


def _flip(step: int) -> None:
    from trainer import resume, train
    from trainer.elastic import train as elastic_train

    real = resume.get_compiled

    def compiled(run: Any, name: str, *arguments: Any) -> Any:
        program, steps = real(run, name, *arguments), 0

        def miscalculating(*arguments: Any) -> Any:
            nonlocal steps
            state, out = program(*arguments)
            steps += 1
            if steps == step:
                state["params"]["embed"] = flipped(state["params"]["embed"], 1)
            return state, out

        return miscalculating if name in ("train", "update") else program

    setattr(train, real.__name__, compiled)
    setattr(elastic_train, real.__name__, compiled)


FAULTS |= {"hang": _hang, "lock": _lock, "slow": _slow, "lr": _lr, "flip": _flip, "stuck": _stuck, "disk": _disk}
FAULTS |= {"held": _held, "late": _late, "eval": _eval, "copy": _copy, "compile": _compile, "cut": _cut}


def main() -> None:
    """Plant the fault and train."""
    from trainer.main import main as run_trainer

    fault, _, step = sys.argv[1].partition(":")
    FAULTS[fault](int(step))
    run_trainer(sys.argv[2:])


if __name__ == "__main__":
    main()
