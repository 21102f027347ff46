"""The hosts of a workload in Ray: named resources, and a placement group per slice.

Every host has one of each of `slice-S` and `slice-S-host-H`, and its chips as `TPU` (or `GPU`).
"""

# mypy: disallow-untyped-calls=False, disallow-untyped-decorators=False

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

CHIPS = ("TPU", "GPU")


class HostError(SystemExit):
    """A function failed on some hosts; uncaught, it ends a program with one line per host, and exit code 1."""


@dataclasses.dataclass(frozen=True, slots=True)
class Slice:
    """A slice whose hosts are reserved: bundle H of `placement_group` is host H, with all its chips."""

    index: int
    hosts: int
    chips: Mapping[str, float]  # of a host: {"TPU": 4.0}
    placement_group: Any

    def options(self, host: int) -> dict[str, Any]:
        """Return the `.options(**...)` that run a task or an actor on a host, with all its chips."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        gpus = {"num_gpus": self.chips["GPU"]} if "GPU" in self.chips else {}
        others = {name: count for name, count in self.chips.items() if name != "GPU"}
        return {
            "num_cpus": 0,  # its CPUs may be reserved for other tasks
            **gpus,
            "resources": {host_resource(self.index, host): 1, **others},  # exclusive
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                self.placement_group, placement_group_bundle_index=host
            ),
        }


def host_resource(slice_id: int, host: int) -> str:
    """Return the name of the resource that only one host has."""
    return f"slice-{slice_id}-host-{host}"


def host_name(slice_id: int, host: int) -> str:
    """Return a host's name in messages."""
    return f"slice {slice_id} host {host}"


def slices(timeout: float = 60.0) -> list[Slice]:
    """Reserve all hosts of the workload and return its slices; requires `ray.init()` first.

    Raises TimeoutError if other tasks or actors hold hosts for longer than `timeout` seconds.
    """
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    count, hosts = (int(os.environ[name]) for name in ("MEGASCALE_NUM_SLICES", "XPK_HOSTS_PER_SLICE"))
    chips = _chips(ray.nodes())
    reserved = []
    for index in range(count):
        bundles = [{host_resource(index, host): 1, **chips} for host in range(hosts)]
        # Each host's resource is on one node only, so that bundle H is host H.
        reserved.append(Slice(index, hosts, chips, placement_group(bundles, strategy="STRICT_SPREAD")))
    await_hosts(reserved, timeout, remove_placement_group)
    return reserved


def await_hosts(reserved: Sequence[Slice], timeout: float, remove: Callable[[Any], object]) -> None:
    """Wait until all hosts are reserved. Raises TimeoutError naming the slice.

    If it fails, it calls `remove` for the placement groups, so that a later call can have the hosts.
    """
    try:
        for one in reserved:
            if not one.placement_group.wait(timeout):
                raise TimeoutError(f"slice {one.index}: timed out after {timeout:.0f} s waiting for free hosts")
    except BaseException:
        for one in reserved:
            remove(one.placement_group)
        raise


def each_host(function: Callable[..., Any], *arguments: Any, on: Sequence[Slice] | None = None) -> list[Any]:
    """Run `function(*arguments)` on all hosts in parallel; return the results, slice by slice.

    `on`: slices that are already reserved; by default all slices are reserved, and released afterwards. The environment
    of a host identifies it (docs/environment.md); the process of the function ends with it. Raises HostError, which
    names each failed host, without waiting for the other hosts, because they may be waiting for the failed ones.
    """
    import ray
    from ray.util.placement_group import remove_placement_group

    reserved = list(slices() if on is None else on)
    # A new process for each call, as Ray does for GPUs, so that the next call finds free chips.
    task = ray.remote(max_retries=0, max_calls=1)(_on_host)
    names, running = {}, []
    for reserved_slice in reserved:
        for host in range(reserved_slice.hosts):
            options = reserved_slice.options(host) | {"name": getattr(function, "__name__", "each_host")}
            running.append(task.options(**options).remote(function, *arguments))
            names[running[-1]] = host_name(reserved_slice.index, host)
    try:
        failed: list[str] = []
        pending = list(running)
        while pending and not failed:
            ready, pending = ray.wait(pending, num_returns=1)
            failed = [f"error: {names[ref]}: {line}" for ref in ready if (line := _failure(ref))]
        if failed:
            for ref in pending:
                ray.cancel(ref, force=True)
            raise HostError("\n".join(failed))
        results: list[Any] = ray.get(running)
        return results
    finally:
        if on is None:
            for reserved_slice in reserved:
                remove_placement_group(reserved_slice.placement_group)


def _on_host(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function on this host, then disconnect all JAX processes together: otherwise those that end later abort."""
    result = function(*arguments)
    jax = sys.modules.get("jax")
    if jax is not None and jax.distributed.is_initialized():
        jax.distributed.shutdown()
    return result


def _chips(nodes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the chips of a host; all have the same number."""
    resources = next(node["Resources"] for node in nodes if node["Alive"])
    return {name: resources[name] for name in CHIPS if resources.get(name)}


def _failure(ref: Any) -> str:
    """Return the error of a finished task as one line, or ""."""
    import ray

    try:
        ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        return one_line(error.cause)
    except ray.exceptions.RayError as error:
        return one_line(error)
    return ""


def one_line(error: BaseException) -> str:
    """Return an error's type and message as one line."""
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
