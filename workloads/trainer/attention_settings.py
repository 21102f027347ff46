"""Limits of the kernels of `model.fused_attention`, without JAX."""

from collections.abc import Iterator

from trainer.config import Model
from trainer.errors import Problem

_HEAD_DIMS = (64, 128, 256)
_BLOCKS = (512, 256, 128)  # queries, and keys, that the kernel on TPUs has in fast memory at a time


def block(seq_len: int) -> int:
    """Return the queries of a block, of a sequence whose length is a multiple of 128: the most that divide it."""
    return next(size for size in _BLOCKS if seq_len % size == 0)


def problems(model: Model) -> Iterator[Problem]:
    """Yield the settings of a model that the kernel of TPUs, or that of GPUs, does not support."""
    supported = {
        "family": (model.family == "decoder", "decoder"),
        "dropout": (not model.dropout, "0"),
        "compute_dtype": (model.compute_dtype == "bfloat16", "bfloat16"),
        "seq_len": (model.seq_len % _BLOCKS[-1] == 0, f"a multiple of {_BLOCKS[-1]}"),
        "head_dim": (model.head_dim in _HEAD_DIMS, " or ".join(map(str, _HEAD_DIMS))),
    }
    for setting, (is_supported, needed) in supported.items():
        if not is_supported:
            message = f"model.fused_attention is not supported with model.{setting} = {getattr(model, setting)!r}"
            yield Problem(message, f"Omit model.fused_attention, or use {needed}")
