"""An API server with a workload of any number of hosts."""

from __future__ import annotations

from collections import Counter

from tests.jobs.objects import ADMITTED, RUNNING, jobset, local_queue, pod
from xpk.api.base import Obj
from xpk.model import names
from xpk.testing import FakeApi


class CountedApi(FakeApi):
    """An API server that counts its requests by kind."""

    def requests(self) -> Counter[str]:
        """Return the number of requests of each kind so far."""
        return Counter(kind for _, kind, _ in self.calls)


def names_of(slice_id: int) -> dict[str, str]:
    """Return the labels by which the pods of a slice are found."""
    return {"jobset.sigs.k8s.io/jobset-name": "w", "jobset.sigs.k8s.io/job-global-index": str(slice_id)}


def api_of(slices: int, hosts: int, *, output: str = "") -> CountedApi:
    """Return an API server with a workload whose hosts all run; `output`: its folder."""
    counts = {"name": "slice-job", "ready": slices, "succeeded": 0, "active": slices, "failed": 0, "suspended": 0}
    mine: Obj = jobset(annotations={names.OUTPUT_ANNOTATION: output} if output else {}, replicatedJobsStatus=[counts])
    (job,) = mine["spec"]["replicatedJobs"]
    job["replicas"], job["template"]["spec"]["parallelism"] = slices, hosts
    objects: list[Obj] = [{"kind": "JobSet", **mine}, {"kind": "Workload", **ADMITTED}]
    objects.append({"kind": "LocalQueue", **local_queue()})
    for slice_id in range(slices):
        for host in range(hosts):
            one = pod(slice_id, RUNNING)
            meta: Obj = {**one["metadata"], "name": f"w-{slice_id}-{host}", "uid": f"{slice_id}-{host}"}
            meta["labels"] = {**meta["labels"], **names_of(slice_id)}
            meta["annotations"] = {"batch.kubernetes.io/job-completion-index": str(host)}
            objects.append({"kind": "Pod", **one, "metadata": {**meta, "namespace": "default"}})
    return CountedApi(objects)
