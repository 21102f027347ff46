"""Machine types as published by Compute Engine and GKE. Written independently of xpk's own table, to check it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from tools.gke_emulator.refusal import Refusal


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine type. `accelerator` is the value of GKE's node label; `quota` the metrics that it counts against."""

    name: str
    vcpus: int
    memory_gib: float
    chips: int = 0
    accelerator: str = ""
    kind: str = "cpu"  # cpu, gpu or tpu
    cuboid: bool = False  # topologies have three sides
    policy: bool = False  # a multi-host slice requires a workload policy

    @property
    def family(self) -> str:
        """Return the machine family, as in the node label."""
        return self.name.split("-")[0]

    @property
    def boot_disk(self) -> str:
        """Return the type of boot disk that nodes get by default."""
        return "hyperdisk-balanced" if self.policy or self.family == "ct6e" else "pd-balanced"

    @property
    def resource(self) -> str:
        """Return the resource that nodes offer, or an empty string."""
        return {"tpu": "google.com/tpu", "gpu": "nvidia.com/gpu"}.get(self.kind, "")


# cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus, "Choose the TPU version". tpu7 is on no public page:
# assumed to equal tpu7x.
_TPUS = [
    Machine("ct4p-hightpu-4t", 240, 407, 4, "tpu-v4-podslice", "tpu", True),
    Machine("ct5lp-hightpu-1t", 24, 48, 1, "tpu-v5-lite-podslice", "tpu"),
    Machine("ct5lp-hightpu-4t", 112, 192, 4, "tpu-v5-lite-podslice", "tpu"),
    Machine("ct5lp-hightpu-8t", 224, 384, 8, "tpu-v5-lite-podslice", "tpu"),
    Machine("ct5p-hightpu-1t", 52, 112, 1, "tpu-v5p-slice", "tpu", True),
    Machine("ct5p-hightpu-2t", 104, 224, 2, "tpu-v5p-slice", "tpu", True),
    Machine("ct5p-hightpu-4t", 208, 448, 4, "tpu-v5p-slice", "tpu", True),
    Machine("ct6e-standard-1t", 44, 180, 1, "tpu-v6e-slice", "tpu"),
    Machine("ct6e-standard-4t", 180, 720, 4, "tpu-v6e-slice", "tpu"),
    Machine("ct6e-standard-8t", 180, 1440, 8, "tpu-v6e-slice", "tpu"),
    Machine("tpu7-standard-1t", 56, 240, 1, "tpu7", "tpu", True, True),
    Machine("tpu7-standard-4t", 224, 960, 4, "tpu7", "tpu", True, True),
    Machine("tpu7x-standard-1t", 56, 240, 1, "tpu7x", "tpu", True, True),
    Machine("tpu7x-standard-4t", 224, 960, 4, "tpu7x", "tpu", True, True),
]
# cloud.google.com/compute/docs/accelerator-optimized-machines
_GPUS = [
    *(Machine(f"g2-standard-{vcpus}", vcpus, 4 * vcpus, chips, "nvidia-l4", "gpu")
      for vcpus, chips in ((4, 1), (8, 1), (12, 1), (16, 1), (24, 2), (32, 1), (48, 4), (96, 8))),
    *(Machine(f"a2-highgpu-{chips}g", 12 * chips, 85 * chips, chips, "nvidia-tesla-a100", "gpu")
      for chips in (1, 2, 4, 8)),
    Machine("a2-megagpu-16g", 96, 1360, 16, "nvidia-tesla-a100", "gpu"),
    *(Machine(f"a2-ultragpu-{chips}g", 12 * chips, 170 * chips, chips, "nvidia-a100-80gb", "gpu")
      for chips in (1, 2, 4, 8)),
    *(Machine(f"a3-highgpu-{chips}g", 26 * chips, 234 * chips, chips, "nvidia-h100-80gb", "gpu")
      for chips in (1, 2, 4, 8)),
    Machine("a3-megagpu-8g", 208, 1872, 8, "nvidia-h100-mega-80gb", "gpu"),
    Machine("a3-ultragpu-8g", 224, 2952, 8, "nvidia-h200-141gb", "gpu"),
    Machine("a4-highgpu-8g", 224, 3968, 8, "nvidia-b200", "gpu"),
    Machine("a4x-highgpu-4g", 140, 884, 4, "nvidia-gb200", "gpu"),
]  # fmt: skip
_NAMED = {machine.name: machine for machine in [*_TPUS, *_GPUS, Machine("e2-micro", 2, 1), Machine("e2-small", 2, 2),
          Machine("e2-medium", 2, 4), Machine("m1-megamem-96", 96, 1433.6)]}  # fmt: skip
_GIB_PER_VCPU = {"standard": 4.0, "highmem": 8.0, "highcpu": 1.0, "ultramem": 24.0}
_CPU_FAMILIES = ("e2", "n1", "n2", "n2d", "n4", "c2", "c2d", "c3", "c3d", "c4", "t2d")
# Quota metrics of regions.get: of TPUs, only v5e has any there. v5p has quotas of its own in the Cloud Quotas API; the
# others are dimensions of its TPUS-PER-TPU-FAMILY and GPUS-PER-GPU-FAMILY (on demand), or metrics (preemptible).
_METRICS = {"tpu-v5-lite-podslice": "TPU_LITE_PODSLICE_V5", "nvidia-l4": "NVIDIA_L4_GPUS",
            "nvidia-tesla-a100": "NVIDIA_A100_GPUS", "nvidia-a100-80gb": "NVIDIA_A100_80GB_GPUS",
            "tpu-v5p-slice": "TPU_V5P", "tpu-v4-podslice": "TPU_PODSLICE_V4"}  # fmt: skip
_TPU_FAMILIES = {"ct6e": "CT6E", "tpu7": "TPU7", "tpu7x": "TPU7X"}
_GPU_FAMILIES = {"nvidia-h100-80gb": "NVIDIA_H100", "nvidia-h100-mega-80gb": "NVIDIA_H100_MEGA",
                 "nvidia-h200-141gb": "NVIDIA_H200", "nvidia-b200": "NVIDIA_B200",
                 "nvidia-gb200": "NVIDIA_GB200"}  # fmt: skip


def find_machine(name: str) -> Machine | None:
    """Return a machine type, or None if it does not exist."""
    if name in _NAMED:
        return _NAMED[name]
    match = re.fullmatch(r"([a-z0-9]+)-(standard|highmem|highcpu|ultramem)-(\d+)", name)
    if match and match[1] in _CPU_FAMILIES:
        return Machine(name, int(match[3]), int(match[3]) * _GIB_PER_VCPU[match[2]])
    return None


def machine_of(name: str, zone: str) -> Machine:
    """Return a machine type; reject a missing one as GKE does."""
    machine = find_machine(name)
    if machine is None:
        raise Refusal.invalid(f"Machine type with name '{name}' does not exist in zone '{zone}'.")
    return machine


def known_machines() -> list[Machine]:
    """Return the accelerator machines and a few general ones, which machineTypes.list shows."""
    sizes = [f"{family}-standard-{size}" for family in ("e2", "n2") for size in (4, 8, 16, 32)]
    return [*_NAMED.values(), *(machine for name in [*sizes, "n2-standard-64"] if (machine := find_machine(name)))]


def quota_metric(machine: Machine, *, preemptible: bool) -> str:
    """Return the quota of a machine's accelerators; a family's as METRIC:FAMILY."""
    if metric := _METRICS.get(machine.accelerator):
        return f"PREEMPTIBLE_{metric}" if preemptible else metric
    if family := _TPU_FAMILIES.get(machine.family):
        return f"PREEMPTIBLE_TPU_{family.replace('CT6E', 'V6E')}" if preemptible else f"TPUS_PER_TPU_FAMILY:{family}"
    family = _GPU_FAMILIES[machine.accelerator]
    return f"PREEMPTIBLE_{family}_GPUS" if preemptible else f"GPUS_PER_GPU_FAMILY:{family}"


def check_topology(machine: Machine, topology: str, nodes: int) -> None:
    """Reject a TPU topology that does not fit the machine or the number of nodes."""
    sides = [int(side) for side in topology.split("x") if side.isdigit()]
    if len(sides) != (3 if machine.cuboid else 2) or "x".join(map(str, sides)) != topology or 0 in sides:
        raise Refusal.invalid(f'Invalid TPU topology "{topology}" for machine type "{machine.name}".')
    hosts, rest = divmod(math.prod(sides), machine.chips)
    if rest or not hosts:
        raise Refusal.invalid(f'TPU topology "{topology}" is not possible with machine type "{machine.name}".')
    if hosts > 1 and nodes not in (0, hosts):
        raise Refusal.invalid(
            f'Node pool with TPU topology "{topology}" and machine type "{machine.name}" must have {hosts} nodes, '
            f"but {nodes} were requested."
        )
