"""The Python API of preflight checks: run them on free or quarantined slices, as a workload."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from xpk.api.text import counted, short
from xpk.capacity.nodes.health import SliceHealth, health_of
from xpk.capacity.quarantine.verdict import Verdict
from xpk.client import Cluster
from xpk.jobs.create.notice import Notice, ignore
from xpk.jobs.create.workload import Workload
from xpk.jobs.output.roots import OutputRoots
from xpk.jobs.preflight import RECORD, HostChecks, Preflight, read_preflight
from xpk.model.accelerators import find_shape
from xpk.model.errors import CapacityError, ConflictError, NotFoundError, TimedOutError, UsageError, XpkError
from xpk.model.evidence import NEEDED_PASSES
from xpk.model.names import location_flags
from xpk.model.status import HostStatus, WorkloadStatus
from xpk.nodes import SliceOfNode
from xpk.storage import open_folder

PRIORITY = "very-low"  # preempts no other workload, and every other may preempt it
_KEPT_SECONDS = 3600  # for which the workload is kept if this process is killed
_BANDWIDTHS = {"ici": "PREFLIGHT_MIN_ICI_GBPS", "dcn": "PREFLIGHT_MIN_DCN_GBPS"}
_GRACE_SECONDS = 5  # between SIGTERM and SIGKILL: checks have nothing to save
_SHOWN = 3  # hosts of those that failed
_PROBLEM_LENGTH = 100  # of each of them, in characters


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Slices to check; `named` are those of the named nodes, empty if free ones are checked."""

    slices: Sequence[SliceHealth]
    named: Sequence[SliceOfNode] = ()

    @property
    def are_quarantined(self) -> bool:
        return any(one.is_quarantined for one in self.named)


def check_hosts(
    cluster: Cluster,
    num_slices: int | None = None,
    *,
    accelerator_type: str | None = None,
    node: str | Sequence[str] | None = None,
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
    `node`: check the slices of these nodes and no others. If they are quarantined, record on them how many checks they
    have passed in a row. Hosts that fail are in the result. Raises

    * CapacityError: fewer slices are free, or that of a `node` is in use or not ready
    * ConflictError: one `node` is quarantined, another one is not
    * NotFoundError: a `node` does not exist
    * UsageError: the cluster has several types of slices, no trainer image or no output root, and none is given; or
      nodes cannot be chosen, because its queue forms slices itself
    * TimedOutError: the checks have not finished after `timeout` seconds, for example because they are queued
    """
    names = (node,) if isinstance(node, str) else tuple(node or ())
    _check_arguments(num_slices, accelerator_type, names, min_gbps or {})
    chosen = _named(cluster, names) if names else _free(cluster, num_slices, accelerator_type)
    workload = Workload(
        name=f"preflight-{secrets.token_hex(3)}",
        namespace=namespace,
        num_slices=num_slices or len(chosen.slices),
        accelerator_type=chosen.slices[0].accelerator_type,
        command="true",
        preflight=True,
        node_pools=tuple(one.node_pool for one in chosen.named),
        tolerates_quarantine=chosen.are_quarantined,
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
    if chosen.are_quarantined:
        _record(cluster, chosen, result, on_progress)
    return result


def return_node(cluster: Cluster, node: str, **options: Any) -> Verdict:
    """Check the quarantined slice of a node as often as it must pass, and return it to service.

    `options` are those of `check_hosts`. The first failed check ends this, and the slice stays in quarantine. Raises
    what `check_hosts` and `Nodes.return_to_service` raise, and XpkError for a slice that has not passed.
    """
    (own,) = cluster.nodes.slices_of(node)
    if own.is_quarantined:
        for _ in range(own.passes, NEEDED_PASSES):
            if failure := failure_of(check_hosts(cluster, node=node, **options)):
                raise failure
    return cluster.nodes.return_to_service(node)


def failure_of(result: Preflight) -> XpkError | None:
    """Return the error of checks that not all hosts have passed, None if all have."""
    failed = [host for host in result.hosts if host.passed is False]
    if failed:
        shown = ", ".join(map(_words_on, failed[:_SHOWN]))
        more = f" and {len(failed) - _SHOWN} more" if len(failed) > _SHOWN else ""
        return XpkError(
            f"{len(failed)} of {counted(len(result.hosts), 'host')} failed: {shown}{more}",
            hint="`xpk docs preflight` explains each check",
        )
    if not result.passed:
        return XpkError(
            "not all hosts were checked", hint="run the command again; with --keep, `xpk workload logs` shows more"
        )
    return None


def _words_on(host: HostChecks) -> str:
    return f"{host.label} on {host.node or 'no node'} ({short(host.problem, _PROBLEM_LENGTH)})"


def _check_arguments(
    num_slices: int | None, accelerator_type: str | None, nodes: Sequence[str], min_gbps: dict[str, float]
) -> None:
    """Raise UsageError for arguments that are invalid or exclude each other."""
    problems = []
    if num_slices is not None and num_slices < 1:
        problems.append(f"num_slices must be at least 1, got {num_slices}")
    if wrong := sorted(min_gbps.keys() - _BANDWIDTHS.keys()):
        problems.append(f"unknown links {', '.join(wrong)}: choose from ici and dcn")
    if nodes and num_slices is not None:
        problems.append("pass either num_slices or node, not both")
    if nodes and accelerator_type:
        problems.append("pass either accelerator_type or node, not both")
    if problems:
        raise UsageError(problems[0], problems=problems)


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
    try:
        handle = cluster.submit(workload, on_progress=on_progress)
    except XpkError:
        raise
    except BaseException:  # interrupted: it may exist already
        if not keep:
            _delete(cluster, workload, on_progress)
        raise
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
    except TimedOutError as error:
        where = location_flags(cluster.name, workload.namespace)
        kept = f"`xpk workload status {workload.name}{where}` shows the reason" if keep else "the checks are deleted"
        raise TimedOutError(error.message, hint=f"{kept}; a longer --timeout gives them more time") from error
    finally:
        if not keep:
            _delete(cluster, workload, on_progress)


def _delete(cluster: Cluster, workload: Workload, on_progress: Callable[[Notice], None]) -> None:
    try:
        with suppress(NotFoundError):
            cluster.delete_workloads(
                workload.name,
                namespace=workload.namespace,
                with_output=True,
                output_root=workload.output_root,
                grace_seconds=_GRACE_SECONDS,
            )
    except XpkError as error:
        on_progress(Notice(f"cannot delete workload '{workload.name}': {error.message}", is_warning=True))


def _record(cluster: Cluster, chosen: _Chosen, result: Preflight, on_progress: Callable[[Notice], None]) -> None:
    """Record the checks on the nodes of quarantined slices, except of those that were not checked completely."""
    is_alone = len(chosen.named) == 1  # a host that has failed without a node is of this slice then
    for one, health in zip(chosen.named, chosen.slices, strict=True):
        hosts = [host for host in result.hosts if is_alone or host.node in one.nodes]
        passed = _has_passed(hosts, health.hosts)
        if passed is not None:
            passes = cluster.nodes.record_check(one.nodes[0], passed=passed)
            on_progress(Notice(f"slice {one.node_pool} has passed {passes} of {NEEDED_PASSES} checks in a row"))


def _has_passed(hosts: Sequence[HostChecks], expected: int) -> bool | None:
    """Return whether the hosts of a slice have passed all checks, None if they were not checked completely."""
    if any(host.passed is False for host in hosts):
        return False
    return True if len(hosts) == expected and all(host.passed for host in hosts) else None


def _named(cluster: Cluster, names: Sequence[str]) -> _Chosen:
    """Return the slices of nodes. Raises ConflictError if only some are quarantined, CapacityError if one is used."""
    named = cluster.nodes.slices_of(*names)
    quarantined = [one.node_pool for one in named if one.is_quarantined]
    in_service = [one.node_pool for one in named if not one.is_quarantined]
    if quarantined and in_service:
        raise ConflictError(
            f"slice {quarantined[0]} is quarantined and slice {in_service[0]} is in service",
            hint="check quarantined slices in a command of their own",
        )
    healths = {item.node_pool: item for item in health_of(cluster.api, cluster.describe())}
    slices = [healths[one.node_pool] for one in named]
    types = sorted({item.accelerator_type for item in slices})
    if len(types) > 1:
        raise UsageError(f"the nodes are of {' and '.join(types)}", hint="pass nodes of one type of slices")
    unfit = list(_unfit(named, slices))
    if unfit:
        hint = f"`xpk cluster health {cluster.name}` shows each slice"
        if any(item.workload for item in slices):
            hint = f"`xpk node quarantine NODE --evict` moves it; {hint}" if quarantined else "wait until it ends"
        raise CapacityError("; ".join(unfit), hint=hint)
    return _Chosen(slices, named)


def _unfit(named: Sequence[SliceOfNode], slices: Sequence[SliceHealth]) -> Iterator[str]:
    """Yield the reasons why slices cannot be checked now."""
    for one, item in zip(named, slices, strict=True):
        if item.workload:
            yield f"workload '{item.workload}' is {'still ' if one.is_quarantined else ''}on slice {item.node_pool}"
        elif not item.is_up:
            yield f"{item.hosts_ready} of {item.hosts} hosts of slice {item.node_pool} are ready"
        elif not (one.is_quarantined or item.is_usable):
            yield f"slice {item.node_pool} is not in service: {item.state}"


def _free(cluster: Cluster, num_slices: int | None, accelerator_type: str | None) -> _Chosen:
    """Return the slices on which a workload could start now.

    Raises UsageError if they have several types, and CapacityError if there are fewer than `num_slices`, or none.
    """
    kind = find_shape(accelerator_type).name if accelerator_type else None
    slices = health_of(cluster.api, cluster.describe())
    free = [item for item in slices if item.hosts and item.is_usable and not item.workload and not item.spare]
    if kind:
        free = [item for item in free if item.accelerator_type == kind]
    types = sorted({item.accelerator_type for item in free})
    if len(types) > 1:
        raise UsageError(
            f"cluster '{cluster.name}' has free slices of {' and '.join(types)}", hint="pass --tpu-type TYPE"
        )
    if len(free) < (num_slices or 1):
        slices_words = f"{len(free)} slices" + (f" of {kind}" if kind else "")
        raise CapacityError(
            f"{slices_words} of cluster '{cluster.name}' are free and ready"
            + (f", not {num_slices}" if num_slices else ""),
            hint=f"`xpk cluster health {cluster.name}` shows each slice; wait until workloads end",
        )
    return _Chosen(free)
