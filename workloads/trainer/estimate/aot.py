"""Ahead-of-time compilation of a training step with XLA's TPU compiler, on any machine, without TPUs.

Compiles the step that `train` runs, for a description of the topology instead of devices. The compiler reports its
memory on a chip and its transfers; the executable can be saved.
"""

# mypy: disallow-untyped-calls=False

import dataclasses
import math
import os
import pickle
import re
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainer.config import IMAGE_FAMILIES, Config
from trainer.errors import FatalError, Problem, reason
from trainer.estimate import bert, dlrm, images
from trainer.estimate.accelerators import Slice
from trainer.estimate.hlo_transfers import slice_collectives, transfers
from trainer.estimate.memory import memory
from trainer.estimate.traffic import traffic
from trainer.parallel import layout
from trainer.parallel.layout import Layout

_GIB = 2**30
_NO_TOPOLOGY = ("INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED")  # libtpu's error prefixes for an unknown topology
_NEEDED = re.compile(r"(?:\(|Used )([\d.]+)([MGT])(?:\) exceeds| of [\d.]+[MGT] hbm)")
# Without these libtpu queries the metadata of a TPU host, logs that there is none, and requires exclusive use.
NO_TPU = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def compile_step(config: Config, slice_: Slice, num_slices: int, executable: Path | None = None) -> dict[str, Any]:
    """Return the compiler's report on a step; sizes in GiB of one chip. Save the program to `executable`.

    For a program that does not fit, `peak_gib` is its minimum memory, and values that the compiler does not report are
    estimated in closed form: `estimated` names them. Raises FatalError without a TPU compiler, if it has no such
    topology or fails, and if the program cannot be saved.
    """
    if find_spec("libtpu") is None:
        message = "libtpu, which contains the TPU compiler, is not installed"
        raise FatalError(Problem(message, "pip install 'xpk-multislice[tpu]'"))
    os.environ.update(NO_TPU)
    devices = _devices(slice_, num_slices)
    from trainer.data import batches
    from trainer.estimate.flops import flops
    from trainer.models import registry
    from trainer.parallel.mesh import make_mesh
    from trainer.step import programs as step

    chips = layout.Chips(num_slices, slice_.hosts, slice_.chips_per_host)
    sizes = layout.layout(config, chips)
    mesh = make_mesh(sizes, devices, slice_.hosts)
    slots = batches.make_slots(mesh, sizes.loader_hosts, chips.hosts, sizes.global_batch, shards=config.data.shards)
    programs = step.build(config, mesh, slots, sizes)
    began = time.monotonic()
    traced = programs.train.trace(programs.state, programs.blocks, programs.flags)
    compiled, needed = _compiled(traced.lower(), slice_)
    seconds = time.monotonic() - began
    report = {
        "config": config.name,
        "tpu_type": slice_.name,
        "num_slices": num_slices,
        "chips": chips.total,
        "mesh": dict(mesh.shape),
        "parameters": registry.parameters(config.model),
        "global_batch": sizes.global_batch,
        "hbm_gib": slice_.chip.hbm_gib,
        "flops_per_step": registry.flops_per_record(config.model) * sizes.global_batch,
        "computed_flops_per_step": sum(flops(traced.jaxpr.jaxpr).values()),
        "compile_seconds": round(seconds, 1),
    }
    if compiled is None:
        return report | {"fits": False} | _estimated(config, sizes, programs.state, needed, slice_)
    if executable:
        _save(compiled, executable)
    return report | _memory(compiled, slice_) | program_transfers(compiled.as_text(), num_slices)


def _devices(slice_: Slice, num_slices: int) -> Any:
    """Return the devices of a described topology, one per chip."""
    from jax.experimental import topologies

    name = f"{slice_.chip.generation}:{'x'.join(map(str, slice_.topology))}"
    options: dict[str, Any] = {"num_slices": num_slices} if num_slices > 1 else {}
    if slice_.chip.generation == "v4":
        options["chip_config_name"] = "megacore"  # the two cores of a chip are one device, as in a run
    if slice_.chips == 1:
        options["chips_per_host_bounds"] = (1, 1, 1)
    try:
        devices = topologies.get_topology_desc(platform="tpu", topology_name=name, **options).devices
    except Exception as error:  # libtpu raises errors of many types
        if str(error).startswith(_NO_TOPOLOGY) or isinstance(error, NotImplementedError):
            problem = Problem(f"libtpu has no topology {name}: {reason(error)}", "Use another --tpu-type")
        else:
            message = f"libtpu failed: {type(error).__name__}: {reason(error)}"
            problem = Problem(message, "Reinstall it: pip install 'xpk-multislice[tpu]'; `estimate` needs no libtpu")
        raise FatalError(problem) from error
    if len(devices) != slice_.chips * num_slices:
        message = f"libtpu reports {len(devices)} devices, but {slice_.name} has {slice_.chips * num_slices} chips"
        raise FatalError(Problem(message, "`estimate` needs no libtpu"))
    return devices


def _compiled(lowered: Any, slice_: Slice) -> tuple[Any, float | None]:
    """Return (the program, None), or for one that is too large (None, its minimum memory in GiB if reported).

    Raises FatalError for any other error of XLA.
    """
    from jax.errors import JaxRuntimeError

    try:
        return lowered.compile(), None
    except JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            message = f"XLA cannot compile this step for {slice_.name}: {reason(error)}"
            raise FatalError(Problem(message, "Change the settings of mesh or model")) from error
        needed = _NEEDED.search(str(error))
        return None, float(needed[1]) * {"M": 2**-10, "G": 1, "T": 2**10}[needed[2]] if needed else None


def _estimated(config: Config, sizes: Layout, state: Any, needed: float | None, slice_: Slice) -> dict[str, Any]:
    """Return the report on a program that the compiler refuses: its memory, if reported, and closed forms.

    Of models that translate they are the state, and gradients sent once; of all others memory and traffic.
    """
    import jax

    def on_a_chip(leaves: Any) -> float:
        parts = [(leaf.sharding.shard_shape(leaf.shape), leaf.dtype.itemsize) for leaf in jax.tree.leaves(leaves)]
        return float(sum(math.prod(shape) * width for shape, width in parts)) / _GIB

    modules: dict[str, Any] = {"bert": bert, "dlrm": dlrm, **dict.fromkeys(IMAGE_FAMILIES, images)}
    if module := modules.get(config.model.family):
        peak, sent = module.memory(config, sizes).peak / _GIB, module.traffic(config, sizes).dcn / _GIB
    elif config.model.family == "decoder":
        peak, sent = memory(config, sizes).peak / _GIB, traffic(config, sizes).dcn / _GIB
    else:
        peak, slices = on_a_chip(state), sizes.dp_slices
        sent = 2 * (slices - 1) / slices * on_a_chip(state["params"])
    # A rejected program needs more than the chip's memory, even if the closed form gives less.
    return {
        "peak_gib": round(max(peak, slice_.chip.hbm_gib), 3) if needed is None else needed,
        "state_gib": round(on_a_chip(state), 3),
        "dcn_gib_per_step": round(sent, 4),
        "estimated": [*(["peak_gib"] if needed is None else []), "state_gib", "dcn_gib_per_step"],
    }


def _memory(compiled: Any, slice_: Slice) -> dict[str, Any]:
    analysis = compiled.memory_analysis()
    # The peak, not the temporaries, which are summed over parts of the program that are never live together.
    peak, state = analysis.peak_memory_in_bytes / _GIB, analysis.argument_size_in_bytes / _GIB
    return {"fits": peak <= slice_.chip.hbm_gib, "peak_gib": round(peak, 3), "state_gib": round(state, 3)}


def program_transfers(hlo: str, num_slices: int) -> dict[str, Any]:
    """Return the transfers of a program, given as HLO text, over DCN and inside a slice."""
    dcn_transfers = transfers(hlo) if num_slices > 1 else []
    collectives = slice_collectives(hlo)
    return {
        "dcn_gib_per_step": round(sum(transfer.sent(num_slices) for transfer in dcn_transfers) / _GIB, 4),
        "dcn_transfers": [dataclasses.asdict(transfer) for transfer in dcn_transfers],
        "ici_gib_per_step": round(sum(one.bytes for one in collectives) / _GIB, 3),
        "ici_collectives": [dataclasses.asdict(one) for one in collectives],
    }


def _save(compiled: Any, file: Path) -> None:
    """Write a program in JAX's format: pickled (bytes, structure of its arguments, structure of its results)."""
    from jax.errors import JaxRuntimeError
    from jax.experimental.serialize_executable import serialize

    try:
        file.write_bytes(pickle.dumps(serialize(compiled)))
    except JaxRuntimeError as error:
        problem = Problem(f"the program cannot be saved: {reason(error)}", "Omit --executable")
        raise FatalError(problem) from error
    except OSError as error:
        raise FatalError(Problem(f"{file} cannot be written: {reason(error)}", "Use another --executable")) from error
