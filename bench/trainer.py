"""Step time of the trainer against a plain pjit loop: the same model, mesh, batch, optimizer and machine, in one run.

    python -m bench.trainer                     # about five minutes on two cores
    python -m bench.trainer --chips 1 --set model.unroll=0
    python -m bench.trainer --platform gpu      # on the machine's own devices, in bfloat16

The peer is written here as one would without a trainer: layers one after the other, parameters spread over the chips
by their largest dimension, `jax.jit` with donated state, batches from memory, the loss of a step fetched after the next
one is dispatched. Before anything is timed its loss on a batch is held against the trainer's, so that it is the same
model. It has neither data files, nor checkpoints, metrics, flags, watchdog: what the trainer takes more is for these.

Blocks of steps of each are timed in turn; told is the median of the ratios of neighbors.
"""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.blocks import BLOCK, block, start_training

ROOT = Path(__file__).resolve().parents[1]
SIZES = {
    "cpu": ("model.seq_len=128", "data.global_batch=8", "model.compute_dtype=float32"),
    "gpu": (
        *("model.embed=1024", "model.heads=16", "model.head_dim=64", "model.mlp=4096", "model.layers=8"),
        *("model.seq_len=1024", "data.global_batch=16", "model.compute_dtype=bfloat16"),
    ),
}
LENGTH = (
    *("run.steps=1000000", "run.eval_every=0", "checkpoint.every=1000000", "optim.schedule=constant"),
    *("model.remat=none", "data.max_bytes=2000000", "data.path=stdlib"),
)


def main() -> None:
    """Measure, keep the result and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=12, help="blocks of each (12)")
    parser.add_argument("--chips", type=int, default=4, help="emulated chips (4)")
    parser.add_argument("--platform", choices=SIZES, default="cpu")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the trainer, beside those")
    parser.add_argument("--out", type=Path, help="default: bench/results/trainer-PLATFORM-CHIPS[-SETTING]-DATE.json")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "workloads"))
    if options.platform == "cpu":
        os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(options.chips)}
        os.environ["XLA_FLAGS"] = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
    what = "".join(f"-{setting.partition('.')[2].replace('=', '')}" for setting in options.set)
    name = f"trainer-{options.platform}-{options.chips}{what}-{datetime.now(UTC):%F}.json"
    out = options.out or ROOT / "bench" / "results" / name
    with tempfile.TemporaryDirectory() as folder:
        measurement = measure(Path(folder), options.platform, options.blocks, options.set)
        out.write_text(json.dumps(measurement, indent=1) + "\n")
        for line in table(measurement):
            print(line, flush=True)
        os._exit(0)  # the trainer's run has not ended; nothing of it is to be kept


def measure(folder: Path, platform: str, blocks: int, more: list[str]) -> dict[str, Any]:
    """Return the seconds of a step in every block, of the trainer and of each peer, in turn."""
    import jax

    from trainer import config
    from trainer.step.compiler import QUICK_ON_CPU

    settings = [*SIZES[platform], *LENGTH, *more, f"run.output_dir={folder}"]
    made = config.load("tiny", settings)
    runs: dict[str, Iterator[Any]] = {"trainer": start_training(made)}
    runs["plain loop"] = plain_loop(made, {})
    if platform == "cpu" and jax.device_count() > 1:
        runs["plain loop, compiled as the trainer compiles"] = plain_loop(made, QUICK_ON_CPU)
    for run in runs.values():
        block(run)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(blocks):
        for name, run in runs.items():
            seconds[name].append(block(run))
        line = "   ".join(f"{name} {1000 * taken[-1]:.1f} ms" for name, taken in seconds.items())
        print(f"block {turn + 1} of {blocks}: {line}", file=sys.stderr)
    device = jax.devices()[0]
    machine = {"device": device.device_kind, "cores": os.cpu_count(), "load": os.getloadavg(), "jax": jax.__version__}
    return {
        **machine,
        "chips": jax.device_count(),
        "steps_in_a_block": BLOCK,
        "settings": settings[:-1],
        "step_seconds": seconds,
    }


def plain_loop(config: Any, compiler_options: dict[str, Any]) -> Iterator[None]:
    """Train in a loop of its own; yields after each step, as soon as the loss of the one before it is here."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax  # type: ignore[import-untyped]
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    model, optim = config.model, config.optim
    mesh = Mesh(np.array(jax.devices()), ("data",))
    batch_BS = np.random.default_rng(0).integers(0, model.vocab, (config.data.global_batch, model.seq_len + 1))
    batch_BS = batch_BS.astype(np.int32)

    def placed(x: Any) -> NamedSharding:
        fits = [dim for dim in range(x.ndim) if x.shape[dim] % mesh.size == 0 and x.ndim > 1]
        largest = max(fits, key=lambda dim: x.shape[dim], default=-1)
        return NamedSharding(mesh, P(*("data" if dim == largest else None for dim in range(x.ndim))))

    warmed = optax.linear_schedule(0.0, optim.lr, optim.warmup)
    adamw = optax.adamw(warmed, optim.b1, optim.b2, optim.eps, weight_decay=optim.weight_decay, mask=_matrices)
    optimizer = optax.chain(optax.clip_by_global_norm(optim.grad_clip_norm), adamw)
    params = _same_model(config, batch_BS)
    state = (params, optimizer.init(params))
    shardings = jax.tree.map(placed, state)
    rows = NamedSharding(mesh, P("data"))

    def step(state: Any, batch_BS: Any) -> Any:
        params, opt = state
        loss, grads = jax.value_and_grad(lambda params: _loss(model, params, batch_BS))(params)
        updates, opt = optimizer.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), {"loss": loss, "grad_norm": optax.tree.norm(grads)}

    state = jax.device_put(state, shardings)
    jitted = jax.jit(step, in_shardings=(shardings, rows), out_shardings=(shardings, None), donate_argnums=0)
    get_compiled = jitted.lower(state, jax.ShapeDtypeStruct(batch_BS.shape, jnp.int32)).compile(compiler_options)
    before = None
    while True:
        state, out = get_compiled(state, jax.device_put(batch_BS, rows))
        if before is not None:
            jax.device_get(before)
        before = out
        yield


def _matrices(params: Any) -> Any:
    import jax

    return jax.tree.map(lambda x: x.ndim > 1, params)


def _same_model(config: Any, batch_BS: Any) -> Any:
    """Return the trainer's fresh parameters, layer by layer; fails if they have another loss here than there."""
    import jax
    import jax.numpy as jnp

    from trainer.models import decoder as ours
    from trainer.parallel.layout import Chips, layout
    from trainer.parallel.mesh import make_mesh
    from trainer.parallel.partitioning import Execution

    params = jax.jit(lambda: ours.init(config.model, jax.random.key(0)))()
    chips = jax.device_count()
    how = Execution(make_mesh(layout(config, Chips(1, 1, chips)), jax.devices(), 1))
    weights = jnp.ones(len(batch_BS), jnp.float32)
    total, weight = jax.jit(lambda p: ours.loss_sums(config.model, how, p, batch_BS, weights))(params)
    layers = params.pop("layers")
    params = params | {"layers": [jax.tree.map(lambda x, n=n: x[n], layers) for n in range(config.model.layers)]}
    params = jax.device_get(params)
    expected, actual = float(jax.jit(lambda p: _loss(config.model, p, batch_BS))(params)), float(total) / float(weight)
    tolerance = 1e-4 if config.model.compute_dtype == "float32" else 1e-2
    assert math.isclose(expected, actual, rel_tol=tolerance), (expected, actual)
    return params


def _loss(model: Any, params: Any, batch_BS: Any) -> Any:
    """Return the mean cross entropy of the tokens after each one."""
    import jax
    import jax.numpy as jnp

    dtype = jnp.dtype(model.compute_dtype)
    tokens_BT, targets_BT = batch_BS[:, :-1], batch_BS[:, 1:]
    length, half = model.seq_len, model.head_dim // 2
    angle_Tq = jnp.arange(length)[:, None] * 10_000.0 ** (-jnp.arange(half) / half)
    sin_T1q, cos_T1q = jnp.sin(angle_Tq)[:, None], jnp.cos(angle_Tq)[:, None]
    past_TS = jnp.tril(jnp.ones((length, length), bool))

    def norm(x: Any, gain: Any) -> Any:
        wide = x.astype(jnp.float32)
        return (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * gain).astype(dtype)

    def turn(x_BTHQ: Any) -> Any:
        a, b = jnp.split(x_BTHQ.astype(jnp.float32), 2, axis=-1)
        turned = jnp.concatenate([a * cos_T1q - b * sin_T1q, b * cos_T1q + a * sin_T1q], -1)
        return turned.astype(dtype)

    x_BTE = params["embed"].astype(dtype)[tokens_BT] * jnp.asarray(math.sqrt(model.embed), dtype)
    for layer in params["layers"]:
        w = {name: value.astype(dtype) for name, value in layer.items() if not name.endswith("norm")}
        q, k, v = jnp.moveaxis(jnp.einsum("bte,exhq->btxhq", norm(x_BTE, layer["attention_norm"]), w["qkv"]), 2, 0)
        if model.fused_attention and jax.default_backend() == "gpu":
            seen = jax.nn.dot_product_attention(turn(q), turn(k), v, is_causal=True, implementation="cudnn")
        else:
            scores = jnp.einsum("bthq,bshq->bhts", turn(q), turn(k), preferred_element_type=jnp.float32)
            scores = jnp.where(past_TS, scores / math.sqrt(model.head_dim), -1e30)
            seen = jnp.einsum("bhts,bshq->bthq", jax.nn.softmax(scores, -1).astype(dtype), v)
        x_BTE = x_BTE + jnp.einsum("bthq,hqe->bte", seen, w["out"])
        x_BTE = x_BTE + jax.nn.gelu(norm(x_BTE, layer["mlp_norm"]) @ w["up"]) @ w["down"]
    y_BTE = norm(x_BTE, params["final_norm"])
    logits = jnp.einsum("bte,ve->btv", y_BTE, params["embed"].astype(dtype), preferred_element_type=jnp.float32)
    picked = jnp.take_along_axis(logits, targets_BT[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - picked).mean()


def table(measurement: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    ours = measurement["step_seconds"]["trainer"]
    yield "| peer | its step, ms | the trainer's, ms | trainer / peer | quartiles |"
    yield "|---|---:|---:|---:|---|"
    for name, seconds in measurement["step_seconds"].items():
        if name != "trainer":
            low, middle, high = statistics.quantiles([a / b for a, b in zip(ours, seconds, strict=True)], n=4)
            both = f"{1000 * statistics.median(seconds):.1f} | {1000 * statistics.median(ours):.1f}"
            yield f"| {name} | {both} | {middle:.3f} | {low:.3f} to {high:.3f} |"


if __name__ == "__main__":
    main()
