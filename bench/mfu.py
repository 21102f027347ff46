"""Model FLOPs utilization of the trainer on this machine's own GPU or TPU, with the kernels that take the time.

    python -m bench.mfu                                 # a decoder of 2.8 billion parameters in bfloat16
    python -m bench.mfu --size 1b --set model.remat=none
    python -m bench.mfu --size smoke                    # on a CPU: only whether it works

First the chip's kernel of attention is compared with plain products in float32. Then the trainer runs as always, with
data, records, checks and flags: blocks of steps are timed until all their results are there, and a few more steps are
profiled. The utilization relates the FLOPs of the model to the chip's peak in bfloat16 (trainer/models/mfu.py). Also
printed are the utilization if causal attention counts half, and the rate of one large product, which is the part of the
peak that can be reached.

The result is appended to the runs of the same day.
"""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.blocks import block, start_training
from xpk.model.accelerators import find_shape

ROOT = Path(__file__).resolve().parents[1]
SIZES = {
    "1b": ("model.embed=2048", "model.heads=16", "model.mlp=8192", "model.layers=24", "data.global_batch=16"),
    "3b": ("model.embed=3072", "model.heads=24", "model.mlp=12288", "model.layers=24", "data.global_batch=8"),
    "smoke": ("model.embed=128", "model.heads=1", "model.mlp=256", "model.seq_len=128", "data.global_batch=1"),
}
MODEL = (
    *("model.head_dim=128", "model.vocab=32768", "model.seq_len=2048", "model.compute_dtype=bfloat16"),
    *("model.fused_attention=true", "model.remat=dots", "model.unroll=0"),
)
LENGTH = (
    *("run.steps=1000000", "run.eval_every=0", "checkpoint.every=1000000", "optim.schedule=constant"),
    *("data.max_bytes=8000000", "data.path=stdlib", "run.keep_programs=false"),
)
PROFILED = 3  # steps
KEPT = 0.005  # least share of a step's time of a kernel that is kept
TYPES = {  # a type with this chip, by a part of the name that JAX gives it
    **{"H100": "h100-80gb-8", "H200": "h200-141gb-8", "A100": "a100-80gb-1"},
    **{"v5 lite": "v5e-1", "v5p": "v5p-8", "v6 lite": "v6e-1"},
}
KINDS = {  # of kernels, by a pattern of their names; the first that matches
    "attention": r"flash|fmha|sdpa|attention|splash",
    "matrix products": r"gemm|cutlass|nvjet|cublas|dot|xmma|convolution",
    "copies": r"memcpy|memset|copy",
    "other kernels": r"",
}


def main() -> None:
    """Measure, keep the result and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="3b")
    parser.add_argument("--blocks", type=int, default=5, help="blocks of steps (5)")
    parser.add_argument("--steps", type=int, default=10, help="steps in a block (10)")
    parser.add_argument("--peak", type=float, help="of a chip in bfloat16, in FLOP/s [default: that of its type]")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the trainer, beside those")
    parser.add_argument("--out", type=Path, help="default: bench/results/mfu-DATE.json")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "workloads"))
    date = f"{datetime.now(UTC):%F}"
    out = options.out or ROOT / "bench" / "results" / f"mfu-{date}.json"
    from trainer.errors import FatalError

    with tempfile.TemporaryDirectory() as folder:
        try:
            measurement = measure(Path(folder), [*MODEL, *SIZES[options.size]], options)
        except FatalError as error:
            sys.exit("\n".join(map(str, error.problems)))
        before = json.loads(out.read_text(encoding="utf-8"))["runs"] if out.exists() else []
        out.write_text(json.dumps({"date": date, "runs": [*before, measurement]}, indent=1) + "\n", encoding="utf-8")
        for line in table(measurement):
            print(line, flush=True)
        os._exit(0)  # the trainer's run has not ended; nothing of it is to be kept


def measure(folder: Path, settings: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds of a step in every block, the utilization, and the seconds of a profiled step by kernel."""
    import jax

    from trainer import config
    from trainer.errors import FatalError, Problem
    from trainer.models.mfu import attention_flops_per_token, flops_per_token, parameters
    from trainer.observe.memory_in_use import memory_in_use

    made = config.load("tiny", [*settings, *LENGTH, *options.set, f"run.output_dir={folder / 'output'}"])
    device = jax.devices()[0]
    if device.platform == "cpu" and options.size != "smoke":
        raise FatalError(
            Problem("JAX finds no GPU or TPU here", "Install jax[cuda13] or jax[tpu], or try --size smoke")
        )
    errors, product = kernel_errors(), product_rate()
    watch = time.perf_counter()
    run = start_training(made)
    block(run, 3)
    ready = time.perf_counter() - watch
    seconds = [block(run, options.steps) for _ in range(options.blocks)]
    jax.profiler.start_trace(str(folder / "profile"))
    profiled = block(run, PROFILED)
    jax.profiler.stop_trace()
    peak, tokens = options.peak or peak_of(device.device_kind), made.data.global_batch * made.model.seq_len
    flops, attention = (count(made.model) * tokens for count in (flops_per_token, attention_flops_per_token))
    rate = flops / statistics.median(seconds) / jax.device_count()
    taken = kernels(folder / "profile")
    return {
        **{"device": device.device_kind, "chips": jax.device_count(), "jax": jax.__version__},
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "settings": [*settings, *options.set],
        "errors_of_the_kernel_of_attention": errors,
        "parameters": parameters(made.model),
        "tokens_in_a_step": tokens,
        "model_flops_in_a_step": flops,
        "seconds_to_first_steps": ready,
        "step_seconds": seconds,
        "product_flops_per_second": product,
        "peak_flops_per_second": peak,
        "mfu": peak and rate / peak,
        "mfu_with_half_of_attention": peak and rate * (1 - attention / flops / 2) / peak,
        "memory_gib": memory_in_use()["chip_gib"] or 0.0,
        "profiled_step_seconds": profiled,
        "seconds_by_kind": by_kind(taken),
        "kernels": {name: seconds for name, seconds in taken.items() if seconds > KEPT * profiled},
    }


def kernel_errors() -> dict[str, float]:
    """Return the relative errors of the kernel of attention and its gradients, next to plain products in float32."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh

    from trainer.models.attention import attention
    from trainer.models.attention_kernels import apply_kernel, kernel_of
    from trainer.parallel.mesh import ALL
    from trainer.parallel.partitioning import Execution

    execution = Execution(Mesh(np.array(jax.devices()[:1]).reshape(1, 1, 1, 1), ALL))
    kernel = kernel_of(execution)
    if kernel is None:
        return {}
    B, T, H, K, Q = 2, 512, 8, 2, 128
    keys = jax.random.split(jax.random.key(0), 5)
    q_BTHQ, k_BTKQ, v_BTKQ, dy_BTHQ = (
        jax.random.normal(key, (B, T, heads, Q), jnp.bfloat16)
        for key, heads in zip(keys[:4], (H, K, K, H), strict=True)
    )
    document_BT = jnp.cumsum(jax.random.bernoulli(keys[4], 0.02, (B, T)), axis=1)
    errors = {}
    for what, document in (("", None), (" of documents", document_BT)):

        def by_kernel(q: Any, k: Any, v: Any, document: Any = document) -> Any:
            return apply_kernel(kernel, execution, q, k, v, document)

        def by_products(q: Any, k: Any, v: Any, document: Any = document) -> Any:
            q, k, v = (x.astype(jnp.float32) for x in (q, *(jnp.repeat(x, H // K, axis=2) for x in (k, v))))
            return attention(execution.shard, execution.batch, q, k, v, document_BT=document)

        def results(q: Any, k: Any, v: Any, dy: Any, *, function: Any) -> Any:
            y, backward = jax.vjp(function, q, k, v)
            return y, *backward(dy.astype(y.dtype))

        compiled = jax.jit(results, static_argnames="function")
        ours, reference = (
            compiled(q_BTHQ, k_BTKQ, v_BTKQ, dy_BTHQ, function=function) for function in (by_kernel, by_products)
        )
        for name, x, y in zip(("output", "dq", "dk", "dv"), ours, reference, strict=True):
            x, y = x.astype(jnp.float32), y.astype(jnp.float32)
            errors[name + what] = float(jnp.linalg.norm(x - y) / jnp.linalg.norm(y))
    assert max(errors.values()) < 0.02, errors
    return errors


def product_rate(size: int = 8192, count: int = 20) -> float:
    """Return the FLOP/s of a large product of random bfloat16 matrices, the best of several."""
    import jax
    import jax.numpy as jnp

    if jax.default_backend() == "cpu":
        size = 256
    a, b = (jax.random.normal(key, (size, size), jnp.bfloat16) for key in jax.random.split(jax.random.key(0)))
    multiply = jax.jit(lambda a, b: a @ b)
    taken = []
    for _ in range(5):
        multiply(a, b).block_until_ready()
        watch = time.perf_counter()
        for _ in range(count):
            c = multiply(a, b)
        c.block_until_ready()
        taken.append((time.perf_counter() - watch) / count)
    return float(2 * size**3 / min(taken))


def peak_of(device_kind: str) -> float | None:
    """Return the peak in bfloat16 of this kind of chip, in FLOP/s; None if it is unknown."""
    name = next((name for kind, name in TYPES.items() if kind in device_kind), None)
    return find_shape(name).peak_bf16 if name else None


def kernels(folder: Path) -> dict[str, float]:
    """Return the seconds of a step by the name of a kernel, the longest first, from a profile of `PROFILED` steps."""
    from jax.profiler import ProfileData

    taken: Counter[str] = Counter()
    for file in folder.glob("**/*.xplane.pb"):
        for plane in ProfileData.from_file(str(file)).planes:
            if "/device:" not in plane.name:
                continue
            for line in plane.lines:
                if line.name.startswith("Stream") or line.name == "XLA Ops":
                    for event in line.events:
                        taken[event.name] += event.duration_ns / 1e9 / PROFILED
    return dict(taken.most_common())


def by_kind(taken: dict[str, float]) -> dict[str, float]:
    """Return the seconds of a step by kind of kernel."""
    seconds = dict.fromkeys(KINDS, 0.0)
    for name, value in taken.items():
        seconds[next(kind for kind, pattern in KINDS.items() if re.search(pattern, name, re.IGNORECASE))] += value
    return seconds


def table(measurement: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the result."""
    step, peak = statistics.median(measurement["step_seconds"]), measurement["peak_flops_per_second"]
    size = f"{measurement['parameters'] / 1e9:.2f} billion parameters"
    yield f"{measurement['device']}: {size}, {1000 * step:.1f} ms a step"
    if peak:
        product = measurement["product_flops_per_second"] / peak
        yield f"MFU {measurement['mfu']:.1%}; {measurement['mfu_with_half_of_attention']:.1%} with half of attention"
        yield f"a large product alone: {product:.1%}; memory in use: {measurement['memory_gib']:.1f} GiB"
    yield f"first steps after {measurement['seconds_to_first_steps']:.0f} s; a profiled step:"
    for kind, seconds in measurement["seconds_by_kind"].items():
        yield f"  {1000 * seconds:8.1f} ms  {kind}"
    idle = measurement["profiled_step_seconds"] - sum(measurement["seconds_by_kind"].values())
    yield f"  {1000 * idle:8.1f} ms  no kernel runs"
    for name, seconds in list(measurement["kernels"].items())[:12]:
        yield f"    {1000 * seconds:8.2f} ms  {name[:100]}"


if __name__ == "__main__":
    main()
