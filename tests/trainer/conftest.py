"""Eight emulated chips in this process, set before anything imports JAX."""

# mypy: disallow-untyped-calls=False

import importlib.metadata
import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
# Half the compile time; the trainer sets this itself for emulated chips.
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=1"
# The parts of a program are compiled in parallel, which takes a tenth more CPU time; other tests use the other cores.
os.environ["XLA_FLAGS"] += " --xla_cpu_parallel_codegen_split_count=1"
if importlib.metadata.version("jaxlib").startswith("0.10."):
    os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"

import jax

# Saves a third of the compile time. Processes that tests start compile as the trainer does.
jax.config.update("jax_disable_most_optimizations", True)
