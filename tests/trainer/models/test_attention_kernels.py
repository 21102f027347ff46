"""Attention in one kernel: splash attention is interpreted on CPUs. That of GPUs is compared by `bench.mfu`."""

# mypy: disallow-untyped-calls=False

import functools
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from jax.ad_checkpoint import print_saved_residuals

from tests.trainer.emulated import Trainer
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
        chip = SimpleNamespace(platform=platform)
        return kernel_of(cast(Execution, SimpleNamespace(mesh=SimpleNamespace(devices=np.array([[chip]])))))

    assert (on("gpu"), on("tpu"), on("cpu")) == (attention_kernels.cudnn_attention, splash_attention, None)


@pytest.mark.parametrize("packed", [False, True])
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
@pytest.mark.parametrize(
    ("mesh", "settings"),
    [
        ((1, 1, 1), ("model.remat=none", "model.unroll=0")),
        ((1, 2, 2), ("model.remat=attention",)),
        ((2, 1, 2), ("model.remat=full", "mesh.stages=2", "mesh.microbatches=2")),
        ((2, 1, 2), ("mesh.grad_reduction=explicit",)),
    ],
)
def test_a_model_trains_with_the_kernel_as_without(
    mesh: tuple[int, int, int], settings: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def losses(*more: str) -> list[float]:
        made = Trainer(*mesh, *KERNEL, *settings, *more, num_slices=mesh[0])
        made.read = lambda ids: text[ids % len(text)]
        return made.losses(3)

    text = np.random.default_rng(0).integers(32, 127, (64, 129)).astype(np.int32)
    expected = losses()
    monkeypatch.setattr(decoder, "kernel_of", lambda execution: INTERPRETED)
    np.testing.assert_allclose(losses("model.fused_attention=true"), expected, atol=2e-3)  # in bfloat16
