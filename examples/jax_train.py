"""Train a linear model over all chips of all hosts with JAX alone, and resume after a restart.

xpk workload create mine --num-slices 2 --max-restarts 3 --script-dir examples --command 'python jax_train.py'
"""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import xpk_run

STEPS = int(os.environ.get("STEPS", "100"))
SAVE_EVERY, ROWS_PER_CHIP, FEATURES = 20, 8, 16
PREEMPTED = 143  # after SIGTERM, with the state saved: the restart is not counted
TRUTH = np.arange(FEATURES, dtype=np.float32)
asked_to_end = False


def join() -> None:
    """Connect all hosts of all slices."""
    hosts = int(os.environ["XPK_HOSTS_PER_SLICE"])
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM away from us
    jax.distributed.initialize(
        os.environ["XPK_COORDINATOR_ADDRESS"],
        num_processes=int(os.environ["MEGASCALE_NUM_SLICES"]) * hosts,
        process_id=int(os.environ["MEGASCALE_SLICE_ID"]) * hosts + int(os.environ["TPU_WORKER_ID"]),
    )


def on_sigterm(*_: object) -> None:
    """Note that this host has to end; all hosts agree on the step in `update`."""
    global asked_to_end
    asked_to_end = True


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    """Return this host's rows of a step: a function of the step and the host, so that a restart repeats none."""
    random = np.random.default_rng((step, jax.process_index()))
    x = random.normal(size=(ROWS_PER_CHIP * jax.local_device_count(), FEATURES)).astype(np.float32)
    return x, x @ TRUTH


def update(weights: jax.Array, x: jax.Array, y: jax.Array, ending: jax.Array) -> tuple[jax.Array, ...]:
    """Take one step of gradient descent over all rows; return the weights, the loss, and whether a host has to end."""
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(weights)
    return weights - 0.1 * gradient, loss, jnp.any(ending)


def save(folder: Path, step: int, weights: jax.Array) -> None:
    """Write a checkpoint under another name first: a reader never sees half a file."""
    if jax.process_index() == 0:
        with open(folder / "writing", "wb") as file:
            np.save(file, np.asarray(weights))
        os.replace(folder / "writing", folder / f"step-{step:06}.npy")


def main() -> None:
    """Train from the newest checkpoint on."""
    signal.signal(signal.SIGTERM, on_sigterm)
    join()
    folder = Path(os.environ["XPK_OUTPUT_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    newest = max(folder.glob("step-*.npy"), default=None)
    first = int(newest.stem.removeprefix("step-")) if newest else 0
    if first:
        xpk_run.log(resumed_step=first)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    spread, everywhere = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    put = jax.make_array_from_process_local_data
    weights = put(everywhere, np.load(newest) if newest else np.zeros(FEATURES, np.float32))
    step_on_chips = jax.jit(update, out_shardings=everywhere)
    if jax.process_index() == 0:
        print(f"{jax.device_count()} chips, starting after step {first}", flush=True)
    for step in range(first + 1, STEPS + 1):
        ending = np.full(jax.local_device_count(), asked_to_end)
        weights, loss, must_end = step_on_chips(weights, *(put(spread, each) for each in (*batch(step), ending)))
        if step % SAVE_EVERY == 0 or must_end:
            save(folder, step, weights)
            xpk_run.log(step=step, steps=STEPS, loss=loss)
            if jax.process_index() == 0:
                print(f"step {step}: loss {float(loss):.6f}", flush=True)
        if must_end:
            sys.exit(PREEMPTED)


if __name__ == "__main__":
    main()
