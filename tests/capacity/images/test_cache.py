"""The image cache on nodes: requests to the cluster, and output. The drill on real nodes is e2e/test_kind_images.py."""

from __future__ import annotations

import platform
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.capacity.adapted.nodes import node
from xpk.api.base import Obj
from xpk.capacity.images import cache, pull_status
from xpk.capacity.images.cache import CacheRequest
from xpk.model.accelerators import find_shape
from xpk.model.errors import ConflictError, NotFoundError, TimedOutError, UsageError, XpkError
from xpk.render.pause_program import hold_program
from xpk.testing import FakeApi
from xpk_shared.percentiles import percentile

TRAINER, TOOLS = "registry.example/trainer:7", "tools:1"
DENIED = 'failed to pull and unpack image "x": failed to resolve reference "x": pull access denied'
BUSY = "429 Too Many Requests"
Behavior = float | str | None  # seconds of a pull, the error of a failed one, or None: the image exists


class Cluster(FakeApi):
    """Nodes of two slices, a DaemonSet controller, kubelets, and a clock that advances only while the command waits."""

    def __init__(self, behave: Callable[[str, int], Behavior] = lambda image, index: 1.0, hosts: int = 2) -> None:
        nodes = [node(f"np-{pool}-{host}", f"np-{pool}", 4) for pool in range(2) for host in range(hosts)]
        super().__init__([*nodes, node("cpu-0")])
        self.behave, self.now = behave, 0.0
        self.cannot_run: set[str] = set()

    def clock(self) -> float:
        """Return the time."""
        return self.now

    def pause(self, seconds: float) -> None:
        """Advance the time, and run the cluster's controllers."""
        self.now += seconds
        for daemons in [obj for key, obj in self.objects.items() if key[0] == "DaemonSet"]:
            self._run(daemons)

    def delete(self, kind: str, name: str, namespace: str = "default", *, grace_seconds: int | None = None) -> None:
        """See `ObjectApi.delete`; owned objects are deleted too."""
        gone = {self.objects[kind, namespace, name]["metadata"]["uid"]}
        super().delete(kind, name, namespace)
        while gone:
            owned = {key: obj for key, obj in self.objects.items() if gone & set(_owners(obj))}
            gone = {self.objects.pop(key)["metadata"]["uid"] for key in owned}

    def run(self, wanted: CacheRequest, seconds: float = 600.0) -> cache.CacheOutcome:
        """Run the command."""
        caching = cache.plan(self, wanted)
        cache.begin(self, caching)
        return cache.await_all(self, caching, seconds, lambda *progress: None, clock=self.clock, pause=self.pause)

    def left(self) -> set[str]:
        """Return the kinds of the existing objects except nodes."""
        return {key[0] for key in self.objects} - {"Node", "Event"}

    def _run(self, daemons: Obj) -> None:
        spec, meta = daemons["spec"]["template"]["spec"], daemons["metadata"]
        terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        pools = terms[0]["matchExpressions"][0]["values"]
        tolerated = {item["key"] for item in spec["tolerations"]} | {"node.kubernetes.io/not-ready"}
        fitting = [
            item
            for item in list(self.objects.values())
            if item["kind"] == "Node"
            and item["metadata"]["labels"].get("cloud.google.com/gke-nodepool") in pools
            and {taint["key"] for taint in item["spec"].get("taints", [])} <= tolerated
        ]
        ready = sum(self._kubelet(daemons, item, index) for index, item in enumerate(fitting))
        daemons["status"] = {"observedGeneration": 1, "desiredNumberScheduled": len(fitting), "numberReady": ready}
        meta["generation"] = 1

    def _kubelet(self, daemons: Obj, where: Obj, index: int) -> bool:
        meta, name = daemons["metadata"], f"{daemons['metadata']['name']}-{where['metadata']['name']}"
        is_up = where["status"]["conditions"][0]["status"] == "True"
        containers = daemons["spec"]["template"]["spec"]["containers"]
        statuses = [self._container(name, item, index) for item in containers] if is_up else []
        self._store({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": meta["namespace"], "labels": meta["labels"], "uid": name,
                         "ownerReferences": [{"kind": "DaemonSet", "name": meta["name"], "uid": meta["uid"]}]},
            "spec": {"nodeName": where["metadata"]["name"], "containers": containers},
            "status": {"phase": "Pending", "containerStatuses": statuses},
        })  # fmt: skip
        return bool(statuses) and all("running" in item["state"] for item in statuses)

    def _container(self, pod: str, container: Obj, index: int) -> Obj:
        image, how = container["image"], self.behave(container["image"], index)
        result: dict[str, Any] = {"name": container["name"], "image": image, "imageID": ""}
        if isinstance(how, str):
            return result | {"state": {"waiting": {"reason": "ImagePullBackOff", "message": how}}}
        if how is not None and how > self.now:
            return result | {"state": {"waiting": {"reason": "ContainerCreating"}}}
        text = f'Container image "{image}" already present on machine and can be accessed by the pod'
        if how is not None:
            text = f'Successfully pulled image "{image}" in {how:g}s (9m0s including waiting). Image size: 1000 bytes.'
        about = {"kind": "Pod", "uid": pod, "fieldPath": f"spec.containers{{{container['name']}}}"}
        name = f"{pod}.{container['name']}"
        self._store({"kind": "Event", "metadata": {"name": name, "namespace": "default"}, "reason": "Pulled",
                     "message": text, "involvedObject": about})  # fmt: skip
        if image in self.cannot_run:
            return result | {"state": {"waiting": {"reason": "RunContainerError", "message": "exec: not found"}}}
        return result | {"state": {"running": {}}, "imageID": "sha256:1"}


def _owners(obj: Obj) -> list[str]:
    return [owner["uid"] for owner in obj["metadata"].get("ownerReferences", [])]


def test_all_nodes_pull_the_image_with_times_and_nothing_remains() -> None:
    times = [10.0, 20.0, 30.0, 200.0]
    cluster = Cluster(lambda image, index: times[index] if image == TRAINER else None)
    outcome = cluster.run(CacheRequest(images=(TRAINER, TOOLS)))
    trainer, tools = outcome.images
    assert (outcome.nodes, trainer.pulled, trainer.present, trainer.failed) == (4, 4, 0, ())
    assert (trainer.p50_seconds, trainer.p95_seconds, trainer.max_seconds) == (20.0, 200.0, 200.0)
    assert (trainer.size_bytes, trainer.pulled_bytes) == (1000, 4000)
    assert (tools.pulled, tools.present, tools.max_seconds, tools.pulled_bytes) == (0, 4, 0.0, 0)
    assert outcome.error() is None and 200 <= outcome.seconds < 210
    assert cluster.left() == set()


def test_requests_do_not_grow_with_the_nodes() -> None:
    counts = []
    for hosts in (1, 16):
        cluster = Cluster(lambda image, index: 300.0, hosts=hosts)
        cluster.run(CacheRequest(images=(TRAINER,)), seconds=1800.0)
        counts.append(Counter(f"{verb} {kind}" for verb, kind, _ in cluster.calls))
    assert counts[0] == counts[1]
    assert counts[0].pop("get DaemonSet") <= 300 / 2 + 1, "one each two seconds"
    # Lists are paginated. Four pauses in 300 s: after 10, 30, 70 and 150 s.
    assert counts[0] == {"list Node": 6, "create Job": 1, "apply ConfigMap": 1, "apply DaemonSet": 1, "list Pod": 5,
                         "list Event": 1, "delete Job": 1}  # fmt: skip


def test_a_failed_pull_is_reported_before_the_timeout() -> None:
    cluster = Cluster(lambda image, index: DENIED if index < 3 else 5.0)
    outcome = cluster.run(CacheRequest(images=(TRAINER,)))
    error = outcome.error()
    assert error and error.exit_code == 1 and outcome.seconds < 60
    assert error.message == (
        f"image {TRAINER} is not on 3 of 4 nodes; np-0-0, np-0-1, np-1-0: ErrImagePull: pull access denied"
    )
    assert outcome.images[0].pulled == 1 and cluster.left() == set()


def test_a_busy_registry_is_retried_until_the_timeout() -> None:
    cluster = Cluster()
    cluster.behave = lambda image, index: BUSY if cluster.now < 100 else 100.0
    assert cluster.run(CacheRequest(images=(TRAINER,))).error() is None
    cluster = Cluster(lambda image, index: BUSY if index else 50.0)
    outcome = cluster.run(CacheRequest(images=(TRAINER,)), seconds=300.0)
    assert isinstance(outcome.error(), TimedOutError) and outcome.seconds >= 300
    assert outcome.images[0].failed[0].message == BUSY and cluster.left() == set()


def test_an_image_without_a_program_counts_as_pulled() -> None:
    cluster = Cluster()
    cluster.cannot_run.add(TOOLS)
    outcome = cluster.run(CacheRequest(images=(TRAINER, TOOLS)))
    assert outcome.error() is None and outcome.in_time and outcome.seconds < 60
    assert [item.pulled for item in outcome.images] == [4, 4]


def test_unreachable_and_cordoned_nodes_are_named_and_skipped() -> None:
    cluster = Cluster()
    away, closed = (cluster.objects["Node", "", name] for name in ("np-0-1", "np-1-0"))
    away["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    closed["spec"]["taints"] = [{"key": "team", "value": "a", "effect": "NoSchedule"}]
    outcome = cluster.run(CacheRequest(images=(TRAINER,)))
    failed = {item.node: f"{item.reason} {item.message}".strip() for item in outcome.images[0].failed}
    assert failed == {"np-0-1": "NotReady", "np-1-0": "NoPod it has the taint team"}
    assert outcome.seconds < 60 and outcome.images[0].pulled == 2


def test_a_killed_command_leaves_a_deadline_that_removes_the_rest() -> None:
    cluster = Cluster()
    cache.begin(cluster, cache.plan(cluster, CacheRequest(images=(TRAINER,), seconds=600)))
    (job,), (daemons,) = cluster.list("Job"), cluster.list("DaemonSet")
    assert (job["spec"]["parallelism"], job["spec"]["ttlSecondsAfterFinished"]) == (0, 0), (
        "no pod remains after the end"
    )
    assert job["spec"]["activeDeadlineSeconds"] == 660, "a tenth more than the command waits"
    for obj in (daemons, *cluster.list("ConfigMap")):
        assert [owner["uid"] for owner in obj["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]
    before = daemons["metadata"]["uid"]
    assert cluster.run(CacheRequest(images=(TRAINER,), seconds=600)).error() is None, (
        "the next command continues with it"
    )
    assert ("apply", "DaemonSet", daemons["metadata"]["name"]) in cluster.calls and before
    assert cluster.left() == set()


class Suspending(Cluster):
    """An API server with a Kueue that also suspends Jobs without a queue."""

    def create(self, obj: Obj, *, dry_run: bool = False) -> Obj:
        """See `ObjectApi.create`."""
        return super().create(obj | {"spec": {**obj["spec"], "suspend": True}}, dry_run=dry_run)


class Refusing(Cluster):
    """An API server for a user who may create Jobs but not DaemonSets."""

    def apply(self, obj: Obj, *, dry_run: bool = False, force: bool = False) -> Any:
        """See `ObjectApi.apply`."""
        if obj["kind"] == "DaemonSet":
            raise XpkError("not authorized")
        return super().apply(obj, dry_run=dry_run, force=force)


@pytest.mark.parametrize(("kind", "says"), [(Suspending, "suspends Jobs"), (Refusing, "not authorized")])
def test_nothing_remains_if_the_cache_cannot_start_or_end(kind: type[Cluster], says: str) -> None:
    cluster = kind()
    with pytest.raises(XpkError, match=says):
        cluster.run(CacheRequest(images=(TRAINER,)))
    assert cluster.left() == set()


def test_an_interrupted_cache_is_removed_immediately() -> None:
    cluster = Cluster(lambda image, index: 50.0)
    caching = cache.plan(cluster, CacheRequest(images=(TRAINER,)))
    cache.begin(cluster, caching)

    def interrupt(*progress: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.await_all(cluster, caching, 60, interrupt, clock=cluster.clock, pause=cluster.pause)
    assert cluster.left() == set()


def test_nodes_are_selected_by_type() -> None:
    cluster = Cluster()
    assert cache.plan(cluster, CacheRequest(images=(TRAINER,), pools=("np-1",))).spec.pools == ("np-1",)
    caching = cache.plan(cluster, CacheRequest(images=(TRAINER,), shape=find_shape("v5litepod-8")))
    assert caching.spec.pools == ("np-0", "np-1") and len(caching.nodes) == 4
    with pytest.raises(NotFoundError, match="no nodes of slices of v5p-16"):
        cache.plan(cluster, CacheRequest(images=(TRAINER,), shape=find_shape("v5p-16")))
    cluster.objects["Node", "", "np-0-0"]["metadata"]["labels"]["kubernetes.io/arch"] = "arm64"
    asked = CacheRequest(images=("Not an image", TOOLS, TOOLS), pools=("np-0", "np-7"), seconds=1)
    with pytest.raises(UsageError) as caught:
        cache.plan(cluster, asked)
    assert len(caught.value.problems) == 5 and "np-0, np-1" in caught.value.hint
    assert (
        cache.plan(cluster, replace(asked, images=(TOOLS,), pools=("np-1",), seconds=60)).spec.architecture == "amd64"
    )
    assert not cluster.left()


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ('Successfully pulled image "a/b:1" in 15.981s (15.981s including waiting). Image size: 129338587 bytes.',
         (False, 15.981, 129338587)),
        ('Successfully pulled image "a" in 350ms (1m2.5s including waiting)', (False, 0.35, None)),
        ('Successfully pulled image "a" in 1h2m3.5s', (False, 3723.5, None)),
        ('Container image "a" already present on machine', (True, 0.0, None)),
        ('Container image "a" already present on machine and can be accessed by the pod', (True, 0.0, None)),
        ("Something else", None),
    ],
)  # fmt: skip
def test_events_of_every_release_are_read(message: str, expected: tuple[bool, float, int | None] | None) -> None:
    result = pull_status.fetched_of(message)
    assert (result and (result.present, round(result.seconds, 6), result.size)) == expected


@given(st.lists(st.floats(0, 1e4), min_size=1), st.integers(1, 100))
def test_a_percentile_uses_the_nearest_rank(values: list[float], percent: int) -> None:
    result = percentile(values, percent)
    assert sum(value <= result for value in values) * 100 >= percent * len(values)
    assert sum(value < result for value in values) * 100 < percent * len(values)


def test_the_program_that_holds_an_image_waits_until_it_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "hold"
    program.write_bytes(hold_program({"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]))
    program.chmod(0o555)
    empty: Mapping[str, str] = {}
    with subprocess.Popen([program], env=empty) as child:
        state, deadline = Path("/proc", str(child.pid), "stat"), time.monotonic() + 10
        while state.read_text().rpartition(")")[2].split()[0] != "S" or str(program) not in _executable(child.pid):
            assert child.poll() is None and time.monotonic() < deadline
        child.terminate()
    assert child.returncode < 0


def _executable(pid: int) -> str:
    return str(Path("/proc", str(pid), "exe").readlink())


def test_concurrent_pulls_that_are_ending_are_reported() -> None:
    cluster = Cluster()
    caching = cache.plan(cluster, CacheRequest(images=(TRAINER,)))
    cache.begin(cluster, caching)
    cluster.patch("Job", caching.spec.name, {"status": {"conditions": [{"type": "Failed", "status": "True"}]}})
    with pytest.raises(ConflictError, match="is being deleted"):
        cache.begin(cluster, caching)
