"""The small model on the emulated chips of this process."""

import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from tests.trainer.small import SETTINGS
from trainer import config, data, layout, step
from trainer.compiling import Compiler
from trainer.mesh import make_mesh
from trainer.peers import Peers

TEXT = np.random.default_rng(0).integers(32, 127, (64, 17)).astype(np.int32)


def read(ids_N: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    return TEXT[ids_N % len(TEXT)]


class Trainer:
    """Programs of the small model on a mesh of this process's chips."""

    def __init__(self, dp: int, fsdp: int, tp: int, *settings: str, readers: tuple[int, ...] = ()) -> None:
        self.config = config.load("tiny", [*SETTINGS, f"mesh.dp={dp}", f"mesh.tp={tp}", *settings])
        chips = dp * fsdp * tp
        self.batch = self.config.data.global_batch
        self.mesh = make_mesh(layout.Layout(dp, fsdp, tp, self.batch, 1), jax.devices()[:chips], 1, 1)
        who = readers or tuple(range(chips))
        self.slots = data.Slots(chips, who, -(-self.batch // len(who)))
        self.programs = step.build(self.config, self.mesh, self.slots, self.batch)
        peers = Peers(0, 1, on_lost=lambda peer: None, on_told=lambda what, by: None)
        compiler, made = Compiler(Path("unused"), peers), self.programs
        self.init = compiler("init", made.init, np.uint32(0))[0]
        self.train = functools.cache(lambda: compiler("train", made.train, made.state, made.blocks, made.flags)[0])
        self.flags = jax.device_put(np.zeros((chips, step.FLAGS), np.int32), self.programs.flags.sharding)

    def blocks(self, ids: Any) -> data.Blocks:
        return data.to_blocks(self.mesh, self.slots, np.asarray(ids), read, self.config.model.seq_len)

    def losses(self, steps: int) -> list[float]:
        state, found = self.init(np.uint32(0)), []
        for n in range(steps):
            state, out = self.train()(state, self.blocks(n * self.batch + np.arange(self.batch)), self.flags)
            found.append(float(out["loss"]))
        return found


@functools.cache
def on(dp: int, fsdp: int, tp: int) -> Trainer:
    """Return the small model on a mesh; shared by tests, for compiling takes the time."""
    return Trainer(dp, fsdp, tp)
