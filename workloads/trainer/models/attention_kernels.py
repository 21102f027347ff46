"""Causal attention in one kernel, which never stores scores: cuDNN's on GPUs, splash attention on TPUs.

Dimensions as in decoder.py; S keys. Keys and values have K heads, each for H / K heads of queries.
"""

# mypy: disallow-untyped-calls=False

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec as P

from trainer import attention_settings
from trainer.parallel.partitioning import ATTENTION_PRODUCT, Execution

Kernel = Callable[..., Array]  # queries [B, T, H, Q], keys, values [B, S, K, Q], documents [B, T] -> outputs


def kernel_of(execution: Execution) -> Kernel | None:
    """Return the given kernel, or that of the chips of the mesh; None if they have none, as CPUs."""
    kernels: dict[str, Kernel] = {"gpu": cudnn_attention, "tpu": splash_attention}
    return execution.kernel or kernels.get(execution.mesh.devices.flat[0].platform)


def apply_kernel(
    kernel: Kernel, execution: Execution, q_BTHQ: Array, k_BSKQ: Array, v_BSKQ: Array, document_BT: Array | None = None
) -> Array:
    """Return attention [B, T, H, Q] over the past, by a kernel on each chip for its own examples and heads.

    With `document_BT`, positions attend only to their own document.
    """
    heads = P(execution.batch, None, "tp", None)
    documents = () if document_BT is None else (document_BT,)
    mapped = jax.shard_map(
        kernel,
        mesh=execution.mesh,
        in_specs=(heads, heads, heads, *(P(execution.batch, None) for _ in documents)),
        out_specs=heads,
        check_vma=False,
    )
    y_BTHQ: Array = mapped(q_BTHQ, k_BSKQ, v_BSKQ, *documents)
    return y_BTHQ


def cudnn_attention(q_BTHQ: Array, k_BSKQ: Array, v_BSKQ: Array, document_BT: Array | None = None) -> Array:
    """Return cuDNN's attention over the past, of bfloat16 arrays."""
    same_B1TS = None if document_BT is None else document_BT[:, None, :, None] == document_BT[:, None, None, :]
    return jax.nn.dot_product_attention(q_BTHQ, k_BSKQ, v_BSKQ, mask=same_B1TS, is_causal=True, implementation="cudnn")


def splash_attention(
    q_BTHQ: Array, k_BSKQ: Array, v_BSKQ: Array, document_BT: Array | None = None, *, interpret: bool = False
) -> Array:
    """Return splash attention over the past, for which T must be divisible by 128.

    Blocks of keys that are all in the future are skipped. The backward pass needs the outputs and the logarithms of the
    softmax's sums; rematerialization may save both as products of attention. `interpret` runs the kernel without a TPU.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as splash  # not before: it delays the start

    T, H, Q = q_BTHQ.shape[1:]
    block = attention_settings.block(T)
    names = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")
    blocks: dict[str, Any] = {f"block_{name}": block for name in names}
    kernel = splash.make_splash_mha_single_device(
        splash.MultiHeadMask([splash.CausalMask((T, T))] * H),
        block_sizes=splash.BlockSizes(**blocks),
        residual_checkpoint_name=ATTENTION_PRODUCT,
        interpret=interpret,
    )
    q_BHTQ, k_BKSQ, v_BKSQ = (jnp.swapaxes(x, 1, 2) for x in (q_BTHQ * Q**-0.5, k_BSKQ, v_BSKQ))
    documents = None if document_BT is None else splash.SegmentIds(document_BT, document_BT)
    y_BHTQ = jax.vmap(kernel)(q_BHTQ, k_BKSQ, v_BKSQ, documents)
    return jnp.swapaxes(y_BHTQ, 1, 2)
