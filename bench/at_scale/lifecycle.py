"""The start, a failure and the deletion of a workload, each waited for."""

from __future__ import annotations

import time
from collections.abc import Mapping

from bench.at_scale.cluster import ScaleCluster
from bench.at_scale.observation import JOBSET_LABEL, PODS, Marks, await_condition, published_hosts
from bench.at_scale.server import RequestError, query
from bench.at_scale.workload import Submitted

_JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
KILLED = 137  # exit code after SIGKILL


def await_start(
    cluster: ScaleCluster, submitted: Submitted, marks: Marks, hosts: int, limit: float
) -> Mapping[str, float]:
    """Wait for all hosts and their names; return the times at which the first and the last name had an address."""
    times: dict[str, float] = {}

    def has_coordinator() -> bool:
        return submitted.coordinator in published_hosts(cluster.server, submitted.subdomain)

    if await_condition(has_coordinator, limit):
        times["coordinator"] = time.monotonic()
        if await_condition(lambda: len(marks.running) == hosts, limit) and await_condition(
            lambda: len(published_hosts(cluster.server, submitted.subdomain)) == hosts, limit / 4
        ):
            times["published"] = time.monotonic()
    return times


def fail_host(cluster: ScaleCluster, marks: Marks, prefix: str, exit_code: int = KILLED) -> None:
    """Report that a running host, whose pod's name begins with a prefix, has ended, as its kubelet would."""
    pod = next(name for name in marks.running if name.startswith(prefix))
    statuses = cluster.server.call("GET", f"{PODS}/{pod}")["status"]["containerStatuses"]
    ended = [{**item, "ready": False, "state": {"terminated": {"exitCode": exit_code}}} for item in statuses]
    status = {"status": {"phase": "Failed", "containerStatuses": ended}}
    cluster.server.call("PATCH", f"{PODS}/{pod}/status", status, "application/merge-patch+json")


def remove(cluster: ScaleCluster, name: str, limit: float) -> float:
    """Delete a workload; return the seconds until all its objects are gone."""
    start = time.monotonic()
    cluster.server.call("DELETE", f"{_JOBSETS}/{name}", {"propagationPolicy": "Foreground"})
    pods = query(PODS, limit="1", labelSelector=f"{JOBSET_LABEL}={name}")

    def is_gone() -> bool:
        try:
            cluster.server.call("GET", f"{_JOBSETS}/{name}")
        except RequestError as error:
            return error.status == 404 and not cluster.server.call("GET", pods)["items"]
        return False

    await_condition(is_gone, limit)
    return time.monotonic() - start
