"""Images on all nodes, at a size that no kind cluster has: real controllers and API server, nodes by KWOK.

No kubelet runs, so nothing is pulled; the test checks the number of requests, and that the cache ends by itself.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from e2e.api_server import api_server
from e2e.counting import counting
from tests.waiting import until
from xpk.api.base import Obj
from xpk.api.kubernetes import KubernetesApi
from xpk.capacity.images import cache
from xpk.capacity.images.cache import CacheRequest
from xpk.model.accelerators import NODEPOOL_LABEL, find_shape

BINARIES = Path(os.environ.get("XPK_E2E_CACHE", Path.home() / ".cache" / "xpk-e2e")) / "bin"
PROGRAMS = ("kube-apiserver", "etcd", "kube-controller-manager", "kube-scheduler", "kwok")
SHAPE, SLICES = find_shape("v5litepod-256"), 2
NODES = SHAPE.hosts * SLICES
_SECONDS = 240.0
pytestmark = pytest.mark.skipif(
    not all((BINARIES / name).exists() for name in PROGRAMS),
    reason='no kube-apiserver or kwok: `eval "$(e2e/environment/up)"` first',
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the kubeconfig of a control plane whose nodes, those of two large slices, are KWOK's."""
    folder = tmp_path_factory.mktemp("server")
    with api_server(folder, BINARIES) as kubeconfig, ExitStack() as stack:
        api = KubernetesApi(kubeconfig=kubeconfig)
        with ThreadPoolExecutor(8) as executor:
            list(executor.map(api.create, (_node(index) for index in range(NODES))))
        fast = ("--leader-elect=false", "--kube-api-qps=500", "--kube-api-burst=1000")
        controllers = "--controllers=daemonset,job,ttl-after-finished,garbage-collector-controller,nodelifecycle"
        patient = "--node-monitor-grace-period=1h"  # missing nodes do not report
        _run(stack, folder, "kube-controller-manager", f"--kubeconfig={kubeconfig}", controllers, patient, *fast)
        _run(stack, folder, "kube-scheduler", f"--kubeconfig={kubeconfig}", *fast)
        theirs = "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake"
        _run(stack, folder, "kwok", f"--kubeconfig={kubeconfig}", "--config=", theirs)
        yield kubeconfig


def _run(stack: ExitStack, folder: Path, program: str, *arguments: str) -> None:
    """Run a program until the stack ends."""
    log = stack.enter_context((folder / f"{program}.log").open("wb"))
    process = stack.enter_context(subprocess.Popen([str(BINARIES / program), *arguments], stdout=log, stderr=log))
    stack.callback(process.terminate)


def _node(index: int) -> Obj:
    has = {"cpu": "112", "memory": "192Gi", "pods": "15", SHAPE.resource: str(SHAPE.resource_per_host)}
    pool = f"big-np-{index // SHAPE.hosts}"
    return {
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": f"{pool}-{index % SHAPE.hosts}", "annotations": {"kwok.x-k8s.io/node": "fake"},
                     "labels": {NODEPOOL_LABEL: pool, **SHAPE.node_labels}},
        "spec": {"taints": [{"key": SHAPE.resource, "value": "present", "effect": "NoSchedule"}]},
        "status": {"capacity": has, "allocatable": has, "conditions": [{"type": "Ready", "status": "True"}]},
    }  # fmt: skip


def left(api: KubernetesApi, kinds: Sequence[str] = ("Job", "DaemonSet", "ConfigMap", "Pod")) -> Counter[str]:
    """Return the number of our objects by kind."""
    return Counter(
        obj["kind"]
        for kind in kinds
        for obj in api.list(kind)
        if "xpk.dev/image-cache" in obj["metadata"].get("labels", {})
    )


def wait_until_gone(api: KubernetesApi) -> None:
    """Wait until all our objects are deleted."""
    until(lambda: not left(api), seconds=_SECONDS, every=0.3, report=lambda: left(api))


def test_every_node_pulls_the_image_with_few_requests_and_nothing_remains(server: Path, tmp_path: Path) -> None:
    with counting(server, tmp_path) as counter:
        api = KubernetesApi(kubeconfig=counter.kubeconfig)
        caching = cache.plan(api, CacheRequest(images=("trainer:1", "tools:1"), seconds=_SECONDS))
        cache.begin(api, caching)
        reports: list[tuple[int, int, float]] = []
        outcome = cache.await_all(api, caching, _SECONDS, lambda *progress: reports.append(progress))
        asked = Counter(request.replace(caching.spec.name, "NAME") for request in counter.taken())
    assert outcome.error() is None and outcome.nodes == NODES and reports[-1][:2] == (NODES, NODES)
    assert [item.pulled for item in outcome.images] == [NODES, NODES]
    space = "/namespaces/default"
    polls = asked.pop(f"GET /apis/apps/v1{space}/daemonsets/NAME")
    assert polls <= outcome.seconds / 2 + 3 and sum(asked.values()) <= 20, asked
    assert asked[f"GET /api/v1{space}/events"] == asked[f"POST /apis/batch/v1{space}/jobs"] == 1
    wait_until_gone(KubernetesApi(kubeconfig=server))


@pytest.mark.extended
def test_nothing_remains_after_any_process_is_killed(server: Path) -> None:
    api = KubernetesApi(kubeconfig=server)
    cache.begin(api, cache.plan(api, CacheRequest(images=("trainer:2",), seconds=40)))
    until(lambda: left(api, ["Pod"])["Pod"] == NODES, seconds=_SECONDS, every=0.3)
    assert left(api, ["Job", "DaemonSet"]) == {"Job": 1, "DaemonSet": 1}
    wait_until_gone(api)  # nothing else requests it
