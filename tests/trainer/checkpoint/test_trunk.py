"""A detector starts with the trunk of a trained ResNet, whose checkpoint is checked before."""

import contextlib
import dataclasses
import itertools
import shutil
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.http_server import FailingBucket, http_server, url_of
from tests.trainer.checkpoint.stores import Store
from tests.trainer.emulated import Trainer
from trainer import config
from trainer.checkpoint import trunk
from trainer.checkpoint.manager import Checkpoints
from trainer.config import Model
from trainer.errors import FatalError
from trainer.hosts.measurements import Measurements
from trainer.models import resnet
from trainer.parallel import layout
from trainer.resume import start_trunk
from trainer.step.compile_cache import CompileCache
from trainer.step.compiler import Compiler
from trainer.storage import open_place
from xpk_shared.storage.errors import Unreachable

RESNET = Model(family="resnet", image=32, classes=7, width=4, blocks="1,2,1", compute_dtype="float32")
SIZES = ("model.width=4", "model.compute_dtype=float32", "model.classes=3", "model.max_boxes=4")
SETTINGS = {
    "basic": (*SIZES, "model.family=ssd", "model.image=64", "model.blocks=1,2"),
    "bottleneck": (*SIZES, "model.family=mask_rcnn", "model.image=32", "model.blocks=1,2,1", "model.mask=28"),
}


def numbered(tree: Any) -> Any:
    """Return arrays with different numbers."""
    numbers = itertools.count()

    def fill(leaf: Any) -> Any:
        return jnp.full(np.shape(leaf) if hasattr(leaf, "shape") else leaf, next(numbers) + 0.5)

    return jax.tree.map(fill, tree, is_leaf=lambda x: isinstance(x, tuple))


def write_run(out: Path, block: str, steps: tuple[int, ...] = (4,), **others: Any) -> Any:
    """Write the checkpoints of a run of ResNet; return its parameters and averages."""
    model = dataclasses.replace(RESNET, block=block, **others)
    (out / "checkpoints").mkdir(parents=True)
    store = Store(out)
    checkpoints = Checkpoints(
        open_place(store.folder), 3, {"model": dataclasses.asdict(model)}, store.peers, store.checkpoints._events
    )
    checkpoints.choose()
    state = {"params": numbered(resnet.shapes(model)), "averages": numbered(resnet.averages(model))}
    for step in steps:
        checkpoints.save(step, state | {"opt": {"trace": jnp.zeros(3)}, "step": jnp.int32(step)})
        assert checkpoints.wait() == ""
    return state


def run_of(trainer: Trainer, folder: Path, path: Path) -> Any:
    """Return a run of one process with this trunk."""
    made = trainer.config
    made = dataclasses.replace(made, checkpoint=dataclasses.replace(made.checkpoint, trunk_path=str(path)))
    folder.mkdir()
    store, watchdog = Store(folder), types.SimpleNamespace(waiting=lambda *words, **options: contextlib.nullcontext())
    job = types.SimpleNamespace(
        config=made,
        is_first=True,
        leads=True,
        peers=store.peers,
        events=store.checkpoints._events,
        watchdog=watchdog,
        measurements=Measurements(),
        host=types.SimpleNamespace(is_elastic=False),
        out=folder,
    )
    compiler = Compiler(CompileCache(folder, None), store.peers)
    return types.SimpleNamespace(job=job, programs=trainer.programs, mesh=trainer.mesh, compiler=compiler)


@pytest.mark.slow
@pytest.mark.parametrize("block", ["basic", "bottleneck"])
def test_a_trunk_starts_with_the_parameters_and_averages_of_a_resnet(block: str, tmp_path: Path) -> None:
    source = write_run(tmp_path / "resnet", block)
    trainer = Trainer(2, 1, 1, *SETTINGS[block])
    state = trainer.init(np.uint32(0))
    started = start_trunk(run_of(trainer, tmp_path / "own", tmp_path / "resnet"))(dict(state))
    own, before = (one["params"] if block == "basic" else one["params"]["trunk"] for one in (started, state))
    for part in (own, started["averages"]):
        expected = source["params"] if part is own else source["averages"]
        for name in ("stem", "stages"):
            for path, array in jax.tree_util.tree_leaves_with_path(part[name]):
                of_source = expected[name]
                for key in path:
                    of_source = of_source[key.key]
                np.testing.assert_array_equal(array, of_source, jax.tree_util.keystr(path))
                assert array.sharding == before["stem"]["gain"].sharding, "on all chips"
    rest = [name for name in state["params"] if name not in ("stem", "stages", "trunk")]
    same = jax.tree.map(np.array_equal, *({name: one["params"][name] for name in rest} for one in (state, started)))
    assert rest and all(jax.tree.leaves(same)) and started["opt"] is state["opt"]


@pytest.mark.slow
def test_a_trunk_of_other_shapes_is_one_line_before_anything_is_compiled(tmp_path: Path) -> None:
    write_run(tmp_path / "resnet", "bottleneck", blocks="1,1")
    trainer = Trainer(1, 1, 1, *SETTINGS["bottleneck"])
    with pytest.raises(FatalError) as error:
        start_trunk(run_of(trainer, tmp_path / "own", tmp_path / "resnet"))
    (problem,) = error.value.problems
    assert problem.message.startswith(
        f"checkpoint {tmp_path}/resnet/checkpoints/4 does not fit the trunk of mask_rcnn: "
    )
    assert "params/stages/stage2/rest/expand/bias is missing, params/stages/stage2/rest" in problem.message
    assert "model.block=bottleneck, model.blocks=1,1, model.width=4" in problem.hint
    with pytest.raises(FatalError, match=r"stage1/first/expand/bias has the shape \(16,\) instead of \(4,\), "):
        start_trunk(run_of(Trainer(1, 1, 1, *SETTINGS["basic"]), tmp_path / "other", tmp_path / "resnet"))


def test_a_run_and_each_of_its_checkpoints_have_a_trunk(tmp_path: Path) -> None:
    out = tmp_path / "resnet"
    write_run(out, "basic", steps=(4, 8))
    assert trunk.find_checkpoint(str(out)).name == f"{out}/checkpoints/8"
    assert trunk.find_checkpoint(f"{out}/").step == 8
    assert trunk.find_checkpoint(f"{out}/checkpoints/4/").step == 4
    (out / "checkpoints" / "8" / "manifest.json").write_text("{}")
    assert trunk.find_checkpoint(str(out)).step == 4, "the newest complete one"
    with pytest.raises(FatalError, match=r"is damaged: manifest\.json is damaged"):
        trunk.find_checkpoint(f"{out}/checkpoints/8")
    assert trunk.check(str(out / "none")) == [], "a folder may exist on the hosts only"


def without_folder(out: Path) -> Path:
    return out / "none"


def emptied(out: Path) -> Path:
    shutil.rmtree(out / "checkpoints" / "4")
    return out


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without_folder, "has no checkpoint. Use the output folder of a run of resnet"),
        (emptied, "has no complete checkpoint"),
        (lambda out: out / "checkpoints", "has no checkpoint"),
    ],
)
def test_a_path_without_a_checkpoint_is_one_line(change: Callable[[Path], Path], says: str, tmp_path: Path) -> None:
    write_run(tmp_path / "resnet", "basic")
    with pytest.raises(FatalError) as error:
        trunk.find_checkpoint(str(change(tmp_path / "resnet")))
    assert says in str(error.value.problems[0]) and len(error.value.problems) == 1


def test_a_bucket_that_fails_does_not_end_the_run_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TENSORSTORE_GCS_HTTP_URL", "GOOGLE_AUTH_TOKEN_FOR_TESTING"):  # which `open_place` sets
        monkeypatch.setenv(name, "emulator")
    with http_server(FailingBucket) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url_of(server))
        with pytest.raises(Unreachable, match="the server failed"):
            trunk.find_checkpoint("gs://bucket/resnet")
        (problem,) = trunk.check("gs://bucket/resnet")
    assert "checkpoint.trunk_path='gs://bucket/resnet' cannot be read: the server failed" in problem.message


def test_only_a_resnet_has_a_trunk(tmp_path: Path) -> None:
    write_run(tmp_path / "other", "bottleneck", family="ssd")
    with pytest.raises(FatalError, match="is of ssd, not of resnet"):
        trunk.find_checkpoint(str(tmp_path / "other"))
    (problem,) = layout.range_problems(config.load("resnet-tiny", ["checkpoint.trunk_path=out"]))
    assert problem.message == "checkpoint.trunk_path is not supported by resnet, which has no trunk"
