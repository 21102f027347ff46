"""The small model on the emulated chips of this process."""

import functools
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from tests.trainer.small import SETTINGS
from trainer import config
from trainer.config import Model
from trainer.data import batches, object_decoding, synthetic_images, synthetic_scenes, synthetic_translations
from trainer.data.objects import object_format
from trainer.data.records import END, FIRST_TOKEN, PADDING, Kind, record
from trainer.detection import DetectionLog
from trainer.hosts.peers import Peers
from trainer.parallel import layout
from trainer.parallel.mesh import make_mesh
from trainer.parallel.partitioning import Execution
from trainer.step import programs
from trainer.step.compile_cache import CompileCache
from trainer.step.compiler import Compiler

_PROGRAMS = tempfile.TemporaryDirectory(prefix="programs-")  # of all trainers of this process
TEXT = np.random.default_rng(0).integers(32, 127, (64, 17)).astype(np.int32)


def read(ids_N: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    return TEXT[ids_N % len(TEXT)]


def images(size: int) -> batches.Read:
    """Return a reader of synthetic images."""

    def drawn_records(ids_N: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        return np.stack([np.frombuffer(synthetic_images.draw(int(n), size), np.uint8) for n in ids_N])

    return drawn_records


def scenes(model: Model) -> batches.Read:
    """Return a reader of synthetic scenes, seen as in an evaluation."""
    form = object_format(model)

    def drawn_records(ids_N: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        drawn = (synthetic_scenes.draw(int(n), model.image) for n in ids_N)
        views = ((*scene, object_decoding.whole_view(form, scene[1])) for scene in drawn)
        return np.stack([object_decoding.make_record(form, *view) for view in views])

    return drawn_records


def pairs(length: int) -> batches.Read:
    """Return a reader of synthetic pairs, padded to this length."""

    def numbers(sentence: bytes) -> list[int]:
        real = [FIRST_TOKEN + byte for byte in sentence] + [END]
        return real + [PADDING] * (length - len(real))

    def records_of(ids_N: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        both = (synthetic_translations.pair(int(n)) for n in ids_N)
        return np.array([numbers(source) + numbers(target) for source, target in both], np.int32)

    return records_of


class Trainer:
    """Programs of the small model on a mesh of this process's chips."""

    def __init__(
        self,
        dp: int,
        fsdp: int,
        tp: int,
        *settings: str,
        readers: tuple[int, ...] = (),
        num_slices: int = 1,
        replicas: int = 1,
    ) -> None:
        self.config = config.load("tiny", [*SETTINGS, f"mesh.dp={dp}", f"mesh.tp={tp}", *settings])
        chips = dp * self.config.mesh.stages * fsdp * tp
        self.batch = self.config.data.global_batch
        sizes = layout.layout(self.config, layout.Chips(num_slices, 1, chips // num_slices))
        self.mesh = make_mesh(sizes, jax.devices()[:chips], 1)
        self.how = Execution(self.mesh)
        who = readers or tuple(range(chips))
        self.slots = batches.Slots(chips, who, -(-self.batch // len(who)))
        self.programs = programs.build(self.config, self.mesh, self.slots, sizes, replicas)
        peers = Peers(0, 1, on_lost=lambda peer: None, on_message=lambda what, by: None)
        compiler, own_programs = Compiler(CompileCache(Path(_PROGRAMS.name), None), peers), self.programs
        self.record = record(self.config.model)
        self.read: batches.Read = images(self.config.model.image) if self.record.kind is Kind.IMAGES else self._text
        self.read = scenes(self.config.model) if self.record.kind is Kind.OBJECTS else self.read
        self.read = pairs(self.config.model.seq_len) if self.record.kind is Kind.TRANSLATIONS else self.read
        self.init = compiler("init", own_programs.init, np.uint32(0))[0]
        self.train = functools.cache(
            lambda: compiler("train", own_programs.train, own_programs.state, own_programs.blocks, own_programs.flags)[
                0
            ]
        )
        self.flags = jax.device_put(np.zeros((chips, programs.FLAGS), np.int32), self.programs.flags.sharding)

    def blocks(self, ids: Any) -> batches.Blocks:
        return batches.to_blocks(self.mesh, self.slots, np.asarray(ids), self.read, self.record)

    def _text(self, ids_N: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        return read(ids_N)[:, : self.record.length]

    def losses(self, steps: int) -> list[float]:
        state, result = self.init(np.uint32(0)), []
        for n in range(steps):
            state, out = self.train()(state, self.blocks(n * self.batch + np.arange(self.batch)), self.flags)
            result.append(float(out["loss"]))
        return result

    def evaluate_detections(self, state: Any, first: int, examples: int) -> tuple[float, DetectionLog]:
        """Return the loss and the detections of examples from the first one on; the last batch is padded."""
        params, averages, log, loss, weight = state["params"], state["averages"], DetectionLog(), 0.0, 0.0
        for ids in batches.eval_ids(self.batch, first, examples):
            blocks = self.blocks(ids)
            sums = self.programs.evaluate(params, blocks, averages)
            loss, weight = loss + float(sums.loss), weight + float(sums.weight)
            log.add(*jax.device_get(self.programs.detect(params, blocks, averages)))
        return loss / weight, log

    def gradients(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the first step's clipped gradients by name: ten times AdamW's first moment."""
        state, _ = self.train()(self.init(np.uint32(0)), self.blocks(np.arange(self.batch)), self.flags)
        leaves = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state["opt"])}
        return {name.partition(".mu")[2]: np.asarray(leaf) for name, leaf in leaves.items() if ".mu" in name}


def losses_of_shares(made: Trainer, replicas: int, steps: int) -> list[float]:
    """Return the losses of a run that adds the gradients of shares one after another, in the order of replicas."""
    shares, state, losses = made.programs.shares, made.init(np.uint32(0)), []
    for step in range(steps):
        ids = step * replicas * made.batch + np.arange(replicas * made.batch)
        total, loss, weight = np.zeros(shares.vectors.shape, np.float32), 0.0, 0.0
        for replica in range(replicas):
            blocks = made.blocks(ids[replica * made.batch : (replica + 1) * made.batch])
            flat, sums = shares.share(state, blocks, np.uint32(replica))
            total += np.asarray(flat)
            loss, weight = loss + float(sums["loss"]), weight + float(sums["weight"])
        state, out = shares.update(state, total, np.float32(loss), np.float32(weight))
        losses.append(float(out["loss"]))
    return losses


def same_gradients(one: Trainer, other: Trainer) -> None:
    """Assert that two trainers have the same gradients, parameter by parameter, within float32 rounding."""
    expected = other.gradients()
    assert expected
    for name, gradient in one.gradients().items():
        largest = float(np.abs(expected[name]).max())
        np.testing.assert_allclose(gradient, expected[name], rtol=0, atol=1e-5 * largest, err_msg=name)


@functools.cache
def on(dp: int, fsdp: int, tp: int) -> Trainer:
    """Return the small model on a mesh; shared by tests, because compiling is slow."""
    return Trainer(dp, fsdp, tp)
