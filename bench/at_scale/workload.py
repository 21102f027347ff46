"""The manifests that are compared: ours and that of Google's xpk; `candidates` has changes of ours."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from bench.at_scale.cluster import ScaleCluster
from xpk.api.base import Obj
from xpk.jobs.create.create import create_workload
from xpk.model import names
from xpk.model.specs import Target, WorkloadSpec
from xpk.render import render_workload

MAX_RESTARTS = 3
_GKE = Target(emulated=False, sets_slice_environment=False, output_root="gs://runs/here")
_IMAGE = "registry.example/team/trainer:1"


@dataclass(frozen=True, slots=True)
class Submitted:
    """A created workload. The seconds are those of its rendering and of the requests."""

    name: str
    subdomain: str
    render_seconds: float
    submit_seconds: float
    first_job: str = names.SLICE_JOB

    @property
    def coordinator(self) -> str:
        """Return the host name of slice 0 host 0."""
        return f"{self.name}-{self.first_job}-0-0"


Submit = Callable[[ScaleCluster, str, int], Submitted]


def spec_of(cluster: ScaleCluster, name: str, num_slices: int) -> WorkloadSpec:
    """Return a workload with the settings that `workload create` has by default on GKE."""
    return WorkloadSpec(
        name=name, shape=cluster.shape, num_slices=num_slices, command=("python", "-m", "train"), target=_GKE,
        image=_IMAGE, user="ada", max_restarts=MAX_RESTARTS, peer_watch=True, restart_in_place=True,
    )  # fmt: skip


def submit_ours(cluster: ScaleCluster, name: str, num_slices: int) -> Submitted:
    """Create a workload as `xpk workload create` does where JobSet cannot replace single slices."""
    return _submit(cluster, spec_of(cluster, name, num_slices))


def submit_replacing(cluster: ScaleCluster, name: str, num_slices: int) -> Submitted:
    """Create a workload as `xpk workload create` does by default: a disrupted host costs only its slice new pods."""
    return _submit(cluster, replace(spec_of(cluster, name, num_slices), replaces_slices=True))


def _submit(cluster: ScaleCluster, spec: WorkloadSpec) -> Submitted:
    start = time.monotonic()
    render_workload(spec)
    rendered = time.monotonic()
    create_workload(cluster.api, spec, cluster="bench")
    return Submitted(spec.name, names.subdomain(spec.name), rendered - start, time.monotonic() - rendered)


def submit_upstream(cluster: ScaleCluster, name: str, num_slices: int) -> Submitted:
    """Create the JobSet that Google's xpk renders."""
    start = time.monotonic()
    jobset = cluster.upstream.render(
        name, command="python -m train", image=_IMAGE, num_slices=num_slices, max_restarts=MAX_RESTARTS,
        tpu_type=cluster.shape.name, webhook=False,
    )  # fmt: skip
    rendered = time.monotonic()
    cluster.api.create(jobset)
    return Submitted(name, name, rendered - start, time.monotonic() - rendered)


def changed(change: Callable[[ScaleCluster, Obj, int], None]) -> Submit:
    """Return how to create our JobSet with a change."""

    def submit(cluster: ScaleCluster, name: str, num_slices: int) -> Submitted:
        start = time.monotonic()
        jobset = copy.deepcopy(render_workload(spec_of(cluster, name, num_slices))[-1])
        change(cluster, jobset, num_slices)
        rendered = time.monotonic()
        cluster.api.create(jobset)
        first = jobset["spec"]["replicatedJobs"][0]["name"]
        return Submitted(name, names.subdomain(name), rendered - start, time.monotonic() - rendered, first)

    return submit


def pod_spec(jobset: Obj) -> Obj:
    """Return the specification of a JobSet's pods."""
    spec: Obj = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    return spec


VARIANTS: dict[str, Submit] = {"ours": submit_ours, "upstream": submit_upstream}
