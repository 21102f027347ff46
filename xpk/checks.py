"""The Python API of preflight checks: run them on free slices, as a workload."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from xpk.capacity.nodes.health import SliceHealth, health_of
from xpk.client import Cluster
from xpk.jobs.create.notice import Notice, ignore
from xpk.jobs.create.workload import Workload
from xpk.jobs.output.roots import OutputRoots
from xpk.jobs.preflight import RECORD, Preflight, read_preflight
from xpk.model.accelerators import find_shape
from xpk.model.errors import CapacityError, NotFoundError, UsageError, XpkError
from xpk.model.evidence import NEEDED_PASSES
from xpk.model.status import HostStatus, WorkloadStatus
from xpk.storage import open_folder

PRIORITY = "very-low"  # preempts no other workload, and every other may preempt it
_KEPT_SECONDS = 3600  # for which the workload is kept if this process is killed
_BANDWIDTHS = {"ici": "PREFLIGHT_MIN_ICI_GBPS", "dcn": "PREFLIGHT_MIN_DCN_GBPS"}


def check_hosts(
    cluster: Cluster,
    num_slices: int | None = None,
    *,
    accelerator_type: str | None = None,
    node: str | None = None,
    namespace: str = "default",
    queue: str | None = None,
    image: str | None = None,
    output_root: str | None = None,
    min_gbps: dict[str, float] | None = None,
    timeout: float | None = 900.0,
    keep: bool = False,
    on_progress: Callable[[Notice], None] = ignore,
    on_status: Callable[[WorkloadStatus], None] = lambda status: None,
) -> Preflight:
    """Check the hosts of free slices, by a workload that is deleted afterwards unless `keep` is set.

    `num_slices`: None checks all that are free and ready now. `min_gbps`: minimum bandwidths, `{"ici": 10, "dcn": 2}`.
    `node`: check the quarantined slice of this node instead, and record on it how many checks it has passed in a row.
    Hosts that fail are in the result. Raises

    * CapacityError: fewer slices are free
    * ConflictError: `node` is not quarantined
    * UsageError: the cluster has several types of slices, no trainer image or no output root, and none is given
    * TimedOutError: the checks have not finished after `timeout` seconds, for example because they are queued
    """
    if num_slices is not None and num_slices < 1:
        raise UsageError(f"num_slices must be at least 1, got {num_slices}")
    if wrong := sorted(set(min_gbps or {}) - _BANDWIDTHS.keys()):
        raise UsageError(f"unknown links {', '.join(wrong)}", hint="choose from ici and dcn")
    kind = find_shape(accelerator_type).name if accelerator_type else None
    if node and num_slices is not None:
        raise UsageError("pass either num_slices or node, not both")
    free = [_quarantined(cluster, node)] if node else _free(cluster, kind)
    if not free or len(free) < (num_slices or 1):
        slices = f"{len(free)} slices" + (f" of {kind}" if kind else "")
        raise CapacityError(
            f"{slices} of cluster '{cluster.name}' are free and ready" + (f", not {num_slices}" if num_slices else ""),
            hint=f"`xpk cluster health {cluster.name}` shows each slice; wait until workloads end",
        )
    workload = Workload(
        name=f"preflight-{secrets.token_hex(3)}",
        namespace=namespace,
        num_slices=num_slices or len(free),
        accelerator_type=free[0].accelerator_type,
        command="true",
        preflight=True,
        quarantined_slice=free[0].node_pool if node else "",
        priority=PRIORITY,
        queue=queue,
        image=image,
        output_root=output_root,
        ttl_seconds=_KEPT_SECONDS,
        env={_BANDWIDTHS[link]: str(gbps) for link, gbps in (min_gbps or {}).items()},
    )
    if not (output_root or cluster.target.output_root):
        raise UsageError(
            f"cluster '{cluster.name}' has no output root, where hosts write their results",
            hint="pass --output-root gs://BUCKET/PREFIX",
        )
    result = _run(cluster, workload, timeout=timeout, keep=keep, on_progress=on_progress, on_status=on_status)
    if node and (result.passed or any(host.passed is False for host in result.hosts)):
        passes = cluster.nodes.record_check(node, passed=result.passed)
        on_progress(Notice(f"slice {free[0].node_pool} has passed {passes} of {NEEDED_PASSES} checks in a row"))
    return result


def _run(
    cluster: Cluster,
    workload: Workload,
    *,
    timeout: float | None,
    keep: bool,
    on_progress: Callable[[Notice], None],
    on_status: Callable[[WorkloadStatus], None],
) -> Preflight:
    """Run a workload to its end, read its results, and delete it in any case."""
    handle = cluster.submit(workload, on_progress=on_progress)
    hosts: dict[tuple[int, int], HostStatus] = {}  # after a failure, the pods of other hosts are removed

    def look(status: WorkloadStatus) -> None:
        hosts.update({(host.slice, host.host): host for host in status.hosts})
        on_status(status)

    try:
        status = handle.wait(timeout, on_progress=look, check=False)
        hosts |= {(host.slice, host.host): host for host in status.hosts}
        status = replace(status, hosts=tuple(hosts[place] for place in sorted(hosts)))
        folder = OutputRoots(lambda: cluster.target, workload.output_root).to_read(status)
        return read_preflight(status, open_folder(folder).read(RECORD) or b"")
    finally:
        if not keep:
            _delete(cluster, workload, on_progress)


def _delete(cluster: Cluster, workload: Workload, on_progress: Callable[[Notice], None]) -> None:
    try:
        with suppress(NotFoundError):
            cluster.delete_workloads(
                workload.name, namespace=workload.namespace, with_output=True, output_root=workload.output_root
            )
    except XpkError as error:
        on_progress(Notice(f"cannot delete workload '{workload.name}': {error.message}", is_warning=True))


def _quarantined(cluster: Cluster, node: str) -> SliceHealth:
    """Return the quarantined slice of a node. Raises ConflictError if it is in service, CapacityError if it is used."""
    pool = cluster.nodes.quarantined_slice(node)
    health = next(item for item in health_of(cluster.api, cluster.describe()) if item.node_pool == pool)
    if health.workload:
        raise CapacityError(
            f"workload '{health.workload}' is still on slice {pool}",
            hint=f"`xpk node quarantine {node} --evict` moves it",
        )
    if not health.is_up:
        raise CapacityError(
            f"{health.hosts_ready} of {health.hosts} hosts of slice {pool} are ready",
            hint=f"`xpk cluster health {cluster.name}` shows each host",
        )
    return health


def _free(cluster: Cluster, accelerator_type: str | None) -> list[SliceHealth]:
    """Return the slices on which a workload could start now. Raises UsageError if they have several types."""
    slices = health_of(cluster.api, cluster.describe())
    free = [item for item in slices if item.hosts and item.is_usable and not item.workload and not item.spare]
    if accelerator_type:
        free = [item for item in free if item.accelerator_type == accelerator_type]
    types = sorted({item.accelerator_type for item in free})
    if len(types) > 1:
        raise UsageError(
            f"cluster '{cluster.name}' has free slices of {' and '.join(types)}", hint="pass --tpu-type TYPE"
        )
    return free
