"""Attention in one kernel: splash attention is interpreted on CPUs. That of GPUs is compared by `bench.mfu`."""

# mypy: disallow-untyped-calls=False

import dataclasses
import functools
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from jax.ad_checkpoint import print_saved_residuals

from tests.trainer.small import WORKLOADS
from trainer import config
from trainer.config import Model
from trainer.data.records import record
from trainer.models import attention_kernels, decoder
from trainer.models.attention import attention
from trainer.models.attention_kernels import apply_kernel, kernel_of, splash_attention
from trainer.parallel.mesh import ALL
from trainer.parallel.partitioning import Execution

INTERPRETED = functools.partial(splash_attention, interpret=True)
KERNEL = ("model.heads=4", "model.kv_heads=2", "model.head_dim=64", "model.seq_len=128", "model.compute_dtype=bfloat16")


def execution(fsdp: int, tp: int) -> Execution:
    chips = np.array(jax.devices()[: fsdp * tp]).reshape(1, 1, fsdp, tp)
    return Execution(jax.sharding.Mesh(chips, ALL))


def test_the_kernel_is_that_of_the_chips_of_the_mesh() -> None:
    def on(platform: str) -> Any:
        mesh = SimpleNamespace(devices=np.array([[SimpleNamespace(platform=platform)]]))
        return kernel_of(Execution(cast(jax.sharding.Mesh, mesh)))

    assert (on("gpu"), on("tpu"), on("cpu")) == (attention_kernels.cudnn_attention, splash_attention, None)


@pytest.mark.parametrize("packed", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_splash_attention_and_its_gradients_equal_plain_attention(packed: bool) -> None:
    how, (B, T, H, K, Q) = execution(2, 2), (2, 384, 4, 2, 64)  # blocks of 128
    keys = jax.random.split(jax.random.key(0), 4)
    qkv = [jax.random.normal(key, (B, T, n, Q)) for key, n in zip(keys, (H, K, K), strict=False)]
    document_BT = jnp.cumsum(jax.random.bernoulli(keys[3], 0.02, (B, T)), axis=1) if packed else None

    def by_kernel(q: Array, k: Array, v: Array) -> Array:
        return jnp.sin(apply_kernel(INTERPRETED, how, q, k, v, document_BT))

    def by_products(q: Array, k: Array, v: Array) -> Array:
        k, v = (jnp.repeat(x, H // K, axis=2) for x in (k, v))
        return jnp.sin(attention(how.shard, how.batch, q, k, v, document_BT=document_BT))

    results = []
    for function in (by_kernel, by_products):
        output, backward = jax.jit(functools.partial(jax.vjp, function))(*qkv)
        results.append([output, *jax.jit(backward)(jnp.ones_like(output))])
    for ours, expected in zip(*results, strict=True):
        np.testing.assert_allclose(ours, expected, atol=2e-5)


@pytest.mark.parametrize(("remat", "saved"), [("full", 0), ("attention", 2)])
def test_rematerialization_keeps_what_the_backward_pass_needs(
    remat: str, saved: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def layer(x: Array, _: None) -> tuple[Array, None]:
        return INTERPRETED(x, x, x), None

    x_BTHQ = jnp.zeros((2, 128, 2, 64), jnp.bfloat16)
    print_saved_residuals(decoder.rematerialize(remat, layer), x_BTHQ, None)
    assert capsys.readouterr().out.count("output of") == saved, "outputs, and the sums of the softmax"


@pytest.mark.slow
def test_a_start_without_the_kernel_does_not_import_its_compiler() -> None:
    code = "import sys, trainer.train; print('jax.experimental.pallas.tpu' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(WORKLOADS)}, capture_output=True, text=True
    )
    assert ran.stdout == "False\n", ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stages", "settings"),
    [
        (1, ("model.remat=none", "model.unroll=0")),
        (1, ("model.remat=attention", "model.packed=true")),
        (2, ("model.remat=full",)),
    ],
)
def test_a_model_has_the_same_gradients_with_the_kernel(stages: int, settings: tuple[str, ...]) -> None:
    model = config.load("tiny", [*KERNEL, *settings]).model
    chips = np.array(jax.devices()[: 4 * stages]).reshape(1, stages, 2, 2)
    plain = Execution(jax.sharding.Mesh(chips, ALL), microbatches=2 * stages)
    fused = dataclasses.replace(plain, kernel=INTERPRETED)
    params = decoder.init(model, jax.random.key(0))
    record_BS = np.random.default_rng(0).integers(32, 127, (8, record(model).length)).astype(np.int32)
    if model.packed:
        record_BS[:, 129:] = np.arange(129) // 50  # the numbers of documents

    def gradients(model: Model, execution: Execution) -> Any:
        arrays = jnp.asarray(record_BS), jnp.ones(8)
        loss = jax.value_and_grad(lambda params: decoder.loss_sums(model, execution, params, *arrays)[0])
        return jax.jit(loss)(params)

    expected = gradients(model, plain)
    ours = gradients(dataclasses.replace(model, fused_attention=True), fused)
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        assert jnp.linalg.norm(x - y) < 0.02 * jnp.linalg.norm(y), "bfloat16 is rounded elsewhere"
