"""One of the programs of bench.maxtext: trains blocks of steps, one for each line on standard input.

It first writes what its training step consists of as a line of JSON, then the seconds and the CPU seconds (of all
threads) per step of each block. What the program itself prints goes to standard error.
"""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bench.blocks import BLOCK, start_training
from bench.trainer import LENGTH, SIZES, plain_loop

_COLLECTIVE = re.compile(r" (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")


class TrainingStep:
    """The program with the most FLOPs of those that a process compiles."""

    def __init__(self) -> None:
        """Watch what is compiled from now on."""
        import jax

        from trainer.estimate.flops import flops

        self.summary: dict[str, Any] = {"flops": 0.0}
        stages: Any = jax.stages
        lower, compile_ = stages.Traced.lower, stages.Lowered.compile
        lowered_last: dict[str, Any] = {}

        def lower_and_count(traced: Any, *args: Any, **kwargs: Any) -> Any:
            arguments = jax.tree.leaves(traced.args_info)
            floats = [math.prod(x.shape) for x in arguments if x.donated and x.dtype == jax.numpy.float32]
            counted = {"flops": sum(flops(traced.jaxpr.jaxpr).values()), "parameters": sum(floats) // 3}
            lowered_last.update(counted)  # the state is the parameters and AdamW's two moments
            return lower(traced, *args, **kwargs)

        def compile_and_time(lowered: Any, *args: Any, **kwargs: Any) -> Any:
            counted, start = dict(lowered_last), time.process_time()
            compiled = compile_(lowered, *args, **kwargs)
            if counted["flops"] > self.summary["flops"]:
                seconds, hlo = time.process_time() - start, compiled.as_text()
                collectives = Counter(match[1] for match in _COLLECTIVE.finditer(hlo))
                self.summary = counted | {"compile_cpu_seconds": round(seconds, 2), "collectives_in_code": collectives}
                if file := os.environ.get("BENCH_HLO"):
                    Path(file).write_text(hlo, encoding="utf-8")
            return compiled

        stages.Traced.lower, stages.Lowered.compile = lower_and_count, compile_and_time


class Blocks:
    """Blocks of steps: the parent starts each of them, and the time runs until all arrays are computed."""

    def __init__(self, output: Any) -> None:
        """Answer on `output`."""
        self._output, self._steps, self._start = output, 0, (0.0, 0.0)
        self._training_step = TrainingStep()

    def count_step(self) -> None:
        """Count a dispatched step. After the last of a block, answer and wait for the start of the next."""
        import jax

        self._steps += 1
        if self._steps % BLOCK:
            return
        for array in jax.live_arrays():
            with contextlib.suppress(RuntimeError):  # MaxText's include some whose shards are donated
                array.block_until_ready()
        now = (time.perf_counter(), time.process_time())
        seconds = [(end - start) / BLOCK for end, start in zip(now, self._start, strict=True)]
        is_first = self._steps == BLOCK  # it compiles, and is not timed
        self._output.write(json.dumps(self._training_step.summary if is_first else seconds) + "\n")
        self._output.flush()
        if not sys.stdin.readline():
            os._exit(0)  # the run has not ended; nothing of it is to be kept
        self._start = (time.perf_counter(), time.process_time())


def main() -> None:
    """Run `trainer`, `plain` or `maxtext` with the settings that follow."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    program, *settings = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        {"trainer": run_trainer, "plain": run_plain, "maxtext": run_maxtext}[program](settings, folder, Blocks(output))


def run_trainer(settings: list[str], folder: str, blocks: Blocks) -> None:
    """Train with the trainer; `optimized` among the settings compiles emulated chips' programs like a TPU's."""
    from trainer import config
    from trainer.step import compiler

    if "optimized" in settings:
        settings.remove("optimized")
        compiler.QUICK_ON_CPU.clear()
    made = config.load("tiny", [*SIZES["cpu"], *LENGTH, *settings, f"run.output_dir={folder}"])
    for _ in start_training(made):
        blocks.count_step()


def run_plain(settings: list[str], folder: str, blocks: Blocks) -> None:
    """Train in the loop of bench.trainer."""
    from trainer import config

    for _ in plain_loop(config.load("tiny", [*SIZES["cpu"], *LENGTH, *settings]), {}):
        blocks.count_step()


def run_maxtext(settings: list[str], folder: str, blocks: Blocks) -> None:
    """Train with MaxText's own loop, of which each iteration is counted."""
    import jax

    train: Any = importlib.import_module("maxtext.trainers.pre_train.train")
    iteration = train.training_loop_iteration

    def counted_iteration(*arguments: Any) -> Any:
        metrics = iteration(*arguments)
        blocks.count_step()
        return metrics

    train.training_loop_iteration = counted_iteration
    # With `remat_policy=none` a loop over layers recomputes all of a layer: it gets jax.checkpoint's default.
    decoder: Any = importlib.import_module("maxtext.layers.nnx_decoders").NNXDecoder
    decoder.get_remat_policy = lambda _: jax.checkpoint_policies.everything_saveable
    configs = Path(train.__file__).parents[2] / "configs" / "base.yml"
    train.main(["train", str(configs), f"base_output_directory={folder}", *settings])


if __name__ == "__main__":
    main()
