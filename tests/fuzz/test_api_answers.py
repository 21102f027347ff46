"""API servers with any objects and any HTTP answers: commands print text or one error, immediately."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.api import hostile
from tests.api.scripted_server import kubeconfig
from tests.capacity.adapted.nodes import node
from tests.fuzz.conftest import CommandLine
from tests.fuzz.counts import inputs
from tests.fuzz.mutations import REMOVED, as_json, changed, damaged, mutants
from tests.jobs import objects
from tests.render.workloads import ON_GKE, workload
from xpk.api.kubernetes import KubernetesApi
from xpk.api.limits import Limits
from xpk.jobs.status.reader import find, find_all
from xpk.model.accelerators import find_shape
from xpk.model.errors import XpkError
from xpk.model.specs import ClusterSpec
from xpk.model.terminal import printable
from xpk.render import render_queues, render_workload

FIRST = {"name": "w", "namespace": "default", "uid": "u", "creationTimestamp": objects.NOW, "resourceVersion": "5"}


def job_set(**status: Any) -> dict[str, Any]:
    """Return the object that `workload create` sends, as a server stores it."""
    made = render_workload(workload(name="w", target=ON_GKE, num_slices=2))[-1]
    return {**made, "metadata": {**made["metadata"], **FIRST}, "status": status}


def recorded() -> dict[str, list[Any]]:
    """Return the objects of a cluster with a workload and those of other people, by plural."""
    cluster = ClusterSpec(name="far", shape=find_shape("v5litepod-8"), num_slices=2)
    queues = render_queues(cluster)
    state = {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": objects.NOW, "message": "killed"}}
    failed = {"phase": "Failed", "containerStatuses": [{"name": "host", "state": state, "lastState": state}]}
    suspended = {
        "type": "Suspended",
        "status": "False",
        "reason": "x",
        "message": "m",
        "lastTransitionTime": objects.NOW,
    }
    foreign = {"metadata": {"name": "other", "namespace": "default", "uid": "o"}, "spec": {}}
    claim = {"metadata": {"name": "c", "namespace": "default", "labels": {"a": "b"}}, "spec": {}}
    by_kind = {
        "jobsets": [job_set(restarts=1, conditions=[suspended]), {**foreign, "spec": {"replicatedJobs": []}}],
        "pods": [objects.pod(0, objects.RUNNING, node="n-0"), objects.pod(1, failed, node="n-1"),
                 {**foreign, "spec": {"nodeName": "n-0", "containers": []}}],
        "jobs": [],
        "events": [objects.event("Pod", "w-slice-job-0-0-abcde", "FailedScheduling", "0/2 nodes", 1),
                   objects.restarted(1, 30.5), objects.exited(1, 1, 29)],
        "nodes": [node(f"n-{number}", f"pool-{number // 2}", 4) for number in range(4)],
        "workloads": [objects.ADMITTED, objects.workload("q", "x", QuotaReserved=objects.WAITS)],
        "localqueues": [objects.local_queue()],
        "clusterqueues": [objects.cluster_queue(8)],
        "configmaps": [{**foreign, "data": {"accelerator-type": "v5litepod-8"}}],
        "persistentvolumeclaims": [claim],
    }  # fmt: skip
    for item in queues:
        by_kind.setdefault(f"{item['kind'].lower()}s", []).append(
            {**item, "metadata": {"uid": "k", **item["metadata"]}}
        )
    return by_kind


RECORDED = recorded()
COMMANDS = [
    "workload list", "workload list -o json", "workload list -o wide", "workload status w", "workload status w -o json",
    "workload describe w", "workload describe w -o json", "workload logs w", "queue list", "queue list -o json",
    "queue describe multislice-queue", "cluster describe far", "cluster describe far -o json", "cluster health far",
    "cluster list -o wide", "info", "storage list",
]  # fmt: skip


@dataclass
class Answers:
    """An API server's objects by plural, and one of its answers, which may be anything."""

    by_kind: dict[str, Any] = field(default_factory=dict)

    def __call__(self, request: hostile.Request) -> None:
        parts = request.bare.strip("/").split("/")
        if request.is_watch:
            return request.send(200, b"")
        if parts[-1] == "log":
            return request.send(200, hostile.LINE)
        for plural, name in ((parts[-1], None), (parts[-2], parts[-1])):
            if plural in self.by_kind:
                items = self.by_kind[plural]
                if name is None:
                    return request.send(200, hostile.listed(*items) if isinstance(items, list) else items)
                named = [item for item in items if is_named(item, name)] if isinstance(items, list) else [items]
                return request.send(200, named[0]) if named else request.send(404, hostile.status(404, "not found"))
        return request.send(404, hostile.status(404, "not found"))


def is_named(item: Any, name: str) -> bool:
    meta = item.get("metadata") if isinstance(item, dict) else None
    return isinstance(meta, dict) and meta.get("name") == name


@pytest.fixture(scope="module")
def far(command_line: CommandLine) -> Iterator[Answers]:
    """Serve the API of a cluster `far` that somebody else has created."""
    answers = Answers()
    folder = command_line.folder / "state" / "adapted" / "far"
    folder.mkdir(parents=True)
    with hostile.serving(answers) as (server, _):
        kubeconfig(folder, server)
        yield answers


def command_of(words: str) -> list[str]:
    named = words.split()[0] in ("workload", "queue", "info", "storage")
    return [*words.split(), *(["--cluster", "far"] if named else [])]


def check_output(command_line: CommandLine, words: str) -> None:
    code, out, _ = command_line.outcome(*command_of(words))
    assert printable(out) == out
    if code == 0 and words.endswith("json"):
        json.loads(out, parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))


FLAVOR = "clusterqueues", 0, "spec", "resourceGroups", 0, "flavors", 0
MAINTENANCE = "cloud.google.com/scheduled-maintenance-time"
POOL, ATTEMPT = "cloud.google.com/gke-nodepool", "jobset.sigs.k8s.io/restart-attempt"


def of(*path_and_value: Any) -> Any:
    return changed(RECORDED, [(path_and_value[:-1], path_and_value[-1])])


@inputs(0.025)
@given(words=st.sampled_from(COMMANDS), objects=mutants(RECORDED))
@example(words="cluster health far", objects=of("nodes", 0, "status", "conditions", 0, "type", REMOVED))
@example(words="cluster describe far", objects=of("nodes", 0, "status", REMOVED))
@example(words="cluster describe far", objects=of("nodes", 0, "status", "allocatable", "google.com/tpu", "nan"))
@example(words="cluster describe far", objects=of("nodes", 0, "metadata", "labels", POOL, "9" * 5000))
@example(words="cluster describe far", objects=of("pods", 0, "spec", "containers", REMOVED))
@example(words="queue list", objects=of("clusterqueues", 0, "spec", "resourceGroups", 0, "flavors", REMOVED))
@example(words="queue list", objects=of(*FLAVOR, "name", REMOVED))
@example(words="queue list", objects=of("clusterqueues", 0, "spec", "preemption", None))
@example(words="queue describe multislice-queue", objects=of("workloads", 0, "metadata", "ownerReferences", [{}]))
@example(words="queue describe multislice-queue", objects=of("workloads", 0, "spec", "podSets", [{"count": 1}]))
@example(words="queue describe multislice-queue", objects=of("workloads", 0, "spec", "podSets", [{"template": {}}]))
@example(
    words="queue list", objects=of("clusterqueues", 0, "spec", "admissionChecksStrategy", {"admissionChecks": [{}]})
)
@example(words="workload logs w", objects=of("pods", 0, "metadata", "labels", REMOVED))
@example(words="workload logs w", objects=of("pods", 0, "metadata", "labels", ATTEMPT, "x"))
@example(words="workload logs w", objects=of("pods", 0, "metadata", "namespace", REMOVED))
@example(words="workload status w", objects=of("pods", 1, "metadata", "labels", "jobset.sigs.k8s.io/job-index", "x"))
@example(
    words="workload status w", objects=of("jobsets", 0, "status", "replicatedJobsStatus", [{"jobRestarts": ["x"]}])
)
@example(
    words="workload status w",
    objects=of(
        "events",
        2,
        "message",
        f"Container host for pod default/w-slice-job-1-0-fghij failed with exit code {'9' * 5000}",
    ),
)
@example(words="queue list", objects=of("clusterqueues", 0, "status", "pendingWorkloads", "x"))
@example(words="cluster health far", objects=of("nodes", 0, "metadata", "labels", MAINTENANCE, "9" * 18))
@example(words="cluster health far", objects=of("nodes", 0, "spec", "taints", [{"key": "x"}]))
def test_any_objects(command_line: CommandLine, far: Answers, words: str, objects: Any) -> None:
    far.by_kind = objects
    check_output(command_line, words)


@pytest.mark.parametrize("words", COMMANDS)
def test_the_objects_of_these_tests_are_shown(command_line: CommandLine, far: Answers, words: str) -> None:
    far.by_kind = copy.deepcopy(RECORDED)
    code, out, err = command_line.outcome(*command_of(words))
    assert (code == 0 or words in ("cluster health far", "workload logs w")) and "malformed" not in err, err
    assert out.strip() or words == "storage list"


RAW = damaged(st.sampled_from([as_json(hostile.listed(item)) for items in RECORDED.values() for item in items]))
FIELDS = ["Content_Type", "Content_Encoding", "Location", "Retry_After", "Content_Length", "Transfer_Encoding",
          "Connection", "Set_Cookie"]  # fmt: skip
VALUES = ["gzip", "deflate", "br", "chunked", "identity", "close", "0", "5", "1000000", "-1", "x", "9" * 40,
          "http://127.0.0.1:1/", "/", "//", "text/html", "\u00ff"]  # fmt: skip
HEADERS = st.dictionaries(st.sampled_from(FIELDS), st.sampled_from(VALUES), max_size=2)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, list[Any]]]:
    """Serve one answer, which tests replace."""
    answer: list[Any] = [200, b"", {}, 1.0]

    def mode(request: hostile.Request) -> None:
        code, body, headers, share = answer
        request.close_connection = True
        cut = {"Content-Length": str(len(body))} if share < 1 else {}
        request.send(code, body[: round(len(body) * share)], **cut | headers)

    with hostile.serving(mode) as (url, _):
        yield url, answer


CODES = [200] * 6 + [201, 204, 206, 301, 302, 307, 308, 400, 401, 403, 404, 409, 410, 422, 429, 500, 503, 599, 999]


# urllib3 leaves sockets of answers that are not HTTP to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@inputs(0.03)
@given(
    code=st.sampled_from(CODES),
    body=RAW,
    headers=HEADERS,
    share=st.sampled_from([1.0, 1.0, 0.0, 0.5, 0.99]),
)
@example(code=302, body=b"", headers={"Location": "http://127.0.0.1:1/"}, share=1.0)
def test_any_http_answer(
    tmp_path_factory: pytest.TempPathFactory, server: tuple[str, list[Any]], code: int, body: bytes,
    headers: dict[str, str], share: float,
) -> None:  # fmt: skip
    url, answer = server
    answer[:] = [code, body, headers, share]
    config: Path = kubeconfig(tmp_path_factory.getbasetemp(), url)
    client = KubernetesApi(kubeconfig=config, pause=lambda seconds: None, limits=Limits(total_seconds=5.0))
    for read in (lambda: find(client, "w"), lambda: find_all(client)):
        try:
            read()
        except XpkError as error:
            assert error.hint and printable(error.message) == error.message and len(error.message) < 3000
    with suppress(XpkError):
        client.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "default"}})
