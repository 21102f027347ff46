"""Environment variables of a workload's hosts: values, and references to fields of their pods."""

from __future__ import annotations

from typing import Any

from xpk.model import names
from xpk.model.specs import WorkloadSpec

_JOB_INDEX = "metadata.labels['jobset.sigs.k8s.io/job-index']"
_POD_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def host_values(spec: WorkloadSpec) -> dict[str, str]:
    """Return xpk's variables overridden by the user's; the user's XLA_FLAGS are appended, where the later flag wins."""
    own_values = _device_values(spec) | _launch_values(spec) | _placement_values(spec)
    user_values = dict(spec.env)
    if "XLA_FLAGS" in own_values and "XLA_FLAGS" in user_values:
        user_values["XLA_FLAGS"] = f"{own_values['XLA_FLAGS']} {user_values['XLA_FLAGS']}"
    return {name: value for name, value in (own_values | user_values).items() if name not in spec.secret_env}


def host_fields(spec: WorkloadSpec) -> list[dict[str, Any]]:
    """Return variables that are references: to fields of a host's pod, and to keys of Secrets."""
    secrets = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
        for name, (secret, key) in spec.secret_env.items()
    ]
    return [*_pod_fields(spec), *secrets]


def _pod_fields(spec: WorkloadSpec) -> list[dict[str, Any]]:
    """Return the per-host variables of GPU and CPU types, except those that the user sets."""
    if spec.shape.kind == "tpu":
        return []
    fields = {"JOB_INDEX": _JOB_INDEX}
    if spec.shape.hosts == 1 or spec.num_slices == 1:  # otherwise no single field of a pod contains its rank
        rank = _JOB_INDEX if spec.shape.hosts == 1 else _POD_INDEX
        fields |= {"NODE_RANK": rank, "JAX_PROCESS_ID": rank}
    return [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in fields.items()
        if name not in spec.env and name not in spec.secret_env
    ]


def _device_values(spec: WorkloadSpec) -> dict[str, str]:
    """Return the chips' peaks or, if they are emulated, what gives a JAX program as many CPU devices."""
    if spec.target.emulated:  # CPUs reach a negligible part of a chip's peak
        return {
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(spec.shape.chips_per_host),
            "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
            # The other schedule starts independent collectives in a different order on each host, which deadlocks.
            "XLA_FLAGS": "--xla_cpu_enable_concurrency_optimized_scheduler=false",
        }
    peaks = {"XPK_PEAK_FLOPS": spec.shape.peak_bf16, "XPK_PEAK_INT8_OPS": spec.shape.peak_int8}
    return {name: f"{peak:.0f}" for name, peak in peaks.items() if peak is not None}


def _placement_values(spec: WorkloadSpec) -> dict[str, str]:
    """Return the identity of a copy on one of several clusters, by which the trainer reads `placement.json`."""
    copy = spec.copy
    return {"XPK_PLACEMENT_RUN": copy.run, "XPK_PLACEMENT_CLUSTER": copy.cluster} if copy else {}


def _launch_values(spec: WorkloadSpec) -> dict[str, str]:
    """Return the variables of torchrun, NCCL's tests and JAX programs on GPUs and CPUs, named as in Google's xpk."""
    if spec.shape.kind == "tpu":
        return {}
    hosts, first = str(spec.num_hosts), names.host_name(spec.name, 0, 0)
    env = {
        "NNODES": hosts,
        "MASTER_ADDR": first,
        "MASTER_PORT": str(names.LAUNCH_PORT),
        "JAX_COORDINATOR_ADDRESS": first,
        "JAX_COORDINATOR_PORT": str(names.LAUNCH_PORT),
        "JAX_PROCESS_COUNT": hosts,
        "PROCESSES_IN_JOB": str(spec.shape.hosts),
    }
    return env | ({"GPUS_PER_NODE": str(spec.shape.chips_per_host)} if spec.shape.kind == "gpu" else {})
