"""The embedded API's cases on a real API server; its validation of our manifests; and numbers of requests."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.api_server import BINARIES, api_server, await_kinds, missing
from e2e.counting import Counter, counting
from tests.local.conformance import CASES
from xpk.api.base import Obj, ObjectApi
from xpk.capacity.nodes import quarantine
from xpk.capacity.quarantine.listing import nodes_of_slices, slice_of
from xpk.jobs.create.pod_security import fit_namespace
from xpk.model import names
from xpk.model.accelerators import NODEPOOL_LABEL, find_shape
from xpk.model.errors import MissingToolError, UsageError
from xpk.model.evidence import Evidence, EvidenceKind
from xpk.model.mounts import GCSFUSE_DRIVER
from xpk.model.specs import ClusterSpec, Code, Target, WorkloadSpec
from xpk.render import render_priority_limit, render_queues, render_workload, to_yaml

TOOLS = Path(__file__).parent / "environment" / "tools"
GOLDEN = Path(__file__).parents[1] / "tests" / "render" / "golden"
SHAPE = find_shape("v5litepod-8")
MANY = 500
CLAIM: Obj = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "corpus", "namespace": "default"},
    "spec": {"accessModes": ["ReadOnlyMany"], "resources": {"requests": {"storage": "1Gi"}}},
}
pytestmark = pytest.mark.skipif(bool(why := missing("kube-apiserver", "etcd")), reason=why)


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A server with Kueue's CRDs, but without JobSet's."""
    with api_server(tmp_path_factory.mktemp("server"), BINARIES) as made:
        _install(made, _crds("kueue", "*queues.yaml"))
        yield made


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A server with all CRDs of JobSet and Kueue."""
    with api_server(tmp_path_factory.mktemp("whole"), BINARIES) as made:
        _install(made, [*_crds("kueue", "*.yaml"), *_crds("jobset", "*.yaml")])
        yield made


@pytest.fixture
def api(kubeconfig: Path) -> ObjectApi:
    """The API through our client."""
    from xpk.api.kubernetes import KubernetesApi

    return KubernetesApi(kubeconfig=kubeconfig)


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.__name__))
def test_conformance(api: ObjectApi, kubeconfig: Path, case: Callable[[ObjectApi, str], None]) -> None:
    namespace = f"case-{uuid.uuid4().hex[:8]}"
    _kubectl(kubeconfig, "create", "namespace", namespace)
    case(api, namespace)


def test_the_error_for_a_missing_kind_names_its_controller(api: ObjectApi) -> None:
    with pytest.raises(MissingToolError, match="JobSet is not installed"):
        api.list("JobSet")
    jobset: Obj = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "x"}, "spec": {}}
    with pytest.raises(MissingToolError, match="JobSet is not installed"):
        api.create(jobset)


def _objects(file: Path) -> list[Obj]:
    return list(yaml.safe_load_all(file.read_text(encoding="utf-8")))


# kind's own configuration is only read by kind.
FOR_SERVERS = [file for file in sorted(GOLDEN.glob("*.yaml")) if "kind.x-k8s.io" not in _objects(file)[0]["apiVersion"]]


@pytest.mark.parametrize("file", FOR_SERVERS, ids=lambda file: str(file.stem))
def test_golden_manifests_have_only_fields_known_to_the_controllers(whole: Path, file: Path) -> None:
    objects = _objects(file)
    for namespace in {obj["metadata"].get("namespace", "default") for obj in objects} - {"default"}:
        if not _kubectl(whole, "get", "namespace", namespace, "--ignore-not-found"):
            _kubectl(whole, "create", "namespace", namespace)
    _dry_run(whole, objects)


POD = "spec.replicatedJobs[0].template.spec.template.spec"


@pytest.mark.parametrize("path", ["spec.failurePolicy.restart", "metadata.label", f"{POD}.x", f"{POD}.containers[0].x"])
def test_an_unknown_field_is_detected(whole: Path, path: str) -> None:
    (jobset,) = _objects(GOLDEN / "kind-command.yaml")
    place: Any = jobset
    *parents, last = path.replace("[0]", ".0").split(".")
    for key in parents:
        place = place[int(key) if key.isdigit() else key]
    place[last] = "x"
    with pytest.raises(subprocess.CalledProcessError) as raised:
        _dry_run(whole, [jobset])
    assert f'strict decoding error: unknown field "{path}"' in raised.value.stderr


@pytest.fixture(scope="module")
def asked(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counter]:
    """Record the requests to a cluster with a queue, two slices and two workloads, as if kind had created it."""
    from xpk.api.kubernetes import KubernetesApi

    state = tmp_path_factory.mktemp("state")
    direct = KubernetesApi(kubeconfig=whole)
    for obj in [*render_queues(ClusterSpec(name="bare", shape=SHAPE, num_slices=2)), *map(_node, range(2))]:
        direct.create(obj)
    _create_workloads(direct, range(2))
    with counting(whole, state / "kind" / "bare") as counter, pytest.MonkeyPatch.context() as environ:
        environ.setenv("XPK_STATE_DIR", str(state))
        yield counter


def test_listing_makes_the_same_number_of_requests_for_any_number_of_workloads(whole: Path, asked: Counter) -> None:
    from xpk.api.kubernetes import KubernetesApi

    assert len(json.loads(_xpk("workload", "list", "-o", "json"))) == 2
    few = sorted(asked.taken())
    _create_workloads(KubernetesApi(kubeconfig=whole), range(2, MANY))
    listed = json.loads(_xpk("workload", "list", "-o", "json"))
    assert [item["phase"] for item in listed] == ["Queued"] * MANY
    assert max(item["position"] for item in listed) == MANY
    assert sorted(asked.taken()) == few
    assert len(few) <= 4, "one for each kind of a workload's objects"


def test_create_makes_at_most_six_requests(asked: Counter) -> None:
    asked.taken()
    _xpk("workload", "create", "new", "--cluster", "bare", "--command", "true")
    requests = asked.taken()
    assert len(requests) <= 6, requests
    assert [item.partition(" ")[0] for item in requests].count("POST") == 2  # the JobSet and its Secret


def test_claims_and_buckets_are_checked_before_a_workload_is_created(whole: Path, asked: Counter) -> None:
    from xpk.api.kubernetes import KubernetesApi

    api = KubernetesApi(kubeconfig=whole)
    mounts = (
        "--mount",
        "source=corpus,target=/data,subpath=v3,readonly",
        "--mount",
        "source=gs://bucket/a,target=/mnt/a",
    )
    create = ("workload", "create", "mounts", "--cluster", "bare", "--command", "true", *mounts)
    assert "PersistentVolumeClaim 'corpus' not found in namespace 'default'" in _refused(3, *create)
    api.create(CLAIM)
    assert "--enable-gcsfuse-csi-driver" in _refused(7, *create)
    api.create(
        {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": GCSFUSE_DRIVER}, "spec": {}}
    )
    asked.taken()
    _xpk(*create)
    requests = asked.taken()
    assert len(requests) <= 8, requests
    pod = api.get("JobSet", "mounts")["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert [volume["name"] for volume in pod["volumes"]] == ["peers", "shared", "mount-0", "mount-1"]
    # JobSet would create this Job: the API server validates volumes and paths only in pods.
    api.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "mounts", "namespace": "default"}, "spec": pod})
    described = _xpk("workload", "describe", "mounts", "--cluster", "bare")
    assert "mounts     /data from claim corpus, folder v3, read-only" in described
    assert "/mnt/a from gs://bucket/a\n" in described


def test_a_restricted_namespace_admits_the_pods_of_workloads(whole: Path) -> None:
    from xpk.api.kubernetes import KubernetesApi

    api, enforce = KubernetesApi(kubeconfig=whole), {"pod-security.kubernetes.io/enforce": "restricted"}
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "strict", "labels": enforce}})
    code = Code(name="xpk-code-0123456789abcdef0123", archive=b"an archive")
    target = Target(emulated=False, sets_slice_environment=False, output_root="gs://bucket/output")
    for changes in ({"peer_watch": True}, {"ray": True}, {"run_as_user": 1000}):
        fields: dict[str, Any] = {"num_slices": 2, "command": ("true",), "image": "i", "code": code, **changes}
        spec = WorkloadSpec(name="w", namespace="strict", shape=SHAPE, target=target, **fields)
        jobset = render_workload(fit_namespace(api, spec))[-1]
        pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        meta = {"name": "w", "namespace": "strict"}
        api.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod}, dry_run=True)


def test_the_priority_limit_of_a_queue_applies_to_every_client(whole: Path) -> None:
    from xpk.api.kubernetes import KubernetesApi

    api = KubernetesApi(kubeconfig=whole)
    for obj in render_priority_limit("limited", "medium"):
        api.apply(obj)

    def asks(priority: str) -> Obj:
        spec = WorkloadSpec(
            name="w", shape=SHAPE, num_slices=1, command=("true",), image="i", queue="limited", priority=priority,
            target=Target(emulated=True, sets_slice_environment=True, output_root="/o"),
        )  # fmt: skip
        return render_workload(spec)[-1]

    deadline = time.monotonic() + 60
    with pytest.raises(UsageError, match="queue 'limited' accepts priorities up to medium"):
        while time.monotonic() < deadline:  # new policies take effect after some time
            api.create(asks("high"), dry_run=True)
            time.sleep(0.2)
    api.create(asks("medium"), dry_run=True)


def _refused(code: int, *arguments: str) -> str:
    argv = [sys.executable, "-m", "xpk", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    return done.stderr


def _xpk(*arguments: str) -> str:
    argv = [sys.executable, "-m", "xpk", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def _node(index: int) -> Obj:
    pool = names.node_pool_name("bare", index)
    labels = {NODEPOOL_LABEL: pool, names.TYPE_ANNOTATION: SHAPE.name, **SHAPE.node_labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": pool, "labels": labels}, "status": {}}


def _create_workloads(api: ObjectApi, numbers: range) -> None:
    """Create JobSets with Kueue's objects, and a pod of each."""
    target = Target(emulated=True, sets_slice_environment=True, output_root="/output")

    def create(number: int) -> None:
        spec = WorkloadSpec(
            name=f"w{number}", shape=SHAPE, num_slices=1, command=("true",), target=target, image="none", user="ada"
        )
        (jobset,) = render_workload(spec)
        made = api.create(jobset)
        owner = {"apiVersion": made["apiVersion"], "kind": "JobSet", "name": spec.name, "uid": made["metadata"]["uid"]}
        template = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
        api.create(
            {
                "apiVersion": "kueue.x-k8s.io/v1beta2",
                "kind": "Workload",
                "metadata": {"name": f"jobset-{spec.name}", "namespace": "default", "ownerReferences": [owner]},
                "spec": {
                    "queueName": spec.queue,
                    "priority": 500,
                    "podSets": [{"name": "slice-job", "count": SHAPE.hosts, "template": template}],
                },
            }
        )

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(create, numbers))


def _dry_run(kubeconfig: Path, objects: list[Obj]) -> None:
    """Validate objects on the server with strict fields, without storing them."""
    _kubectl(kubeconfig, "create", "--dry-run=server", "--validate=strict", "-f", "-", manifest=to_yaml(objects))


def _install(kubeconfig: Path, files: list[Path]) -> None:
    _kubectl(kubeconfig, "apply", "--server-side", *(part for file in files for part in ("-f", str(file))))
    await_kinds(kubeconfig)


def _crds(controller: str, pattern: str) -> list[Path]:
    """Return the CRDs of a controller, from the module from which the environment builds it."""
    module = subprocess.run(
        ["go", "mod", "download", "-json", f"sigs.k8s.io/{controller}"],
        cwd=TOOLS / controller, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return sorted((Path(json.loads(module.stdout)["Dir"]) / "config" / "components" / "crd" / "bases").glob(pattern))


def test_a_slice_is_quarantined_and_returned(api: ObjectApi) -> None:
    for name in ("q0", "q1"):
        labels = {NODEPOOL_LABEL: "quarantine-np", **SHAPE.node_labels}
        api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {}})
    now = datetime.now(UTC)
    _, members = slice_of(nodes_of_slices(api), "q1")
    quarantine.quarantine(api, members, "q1", "2 signal", now)
    _, members = slice_of(nodes_of_slices(api), "q1")
    assert [mark.reason for node in members if (mark := quarantine.quarantine_of(node))] == [
        "in the slice of q1: 2 signal", "2 signal",
    ]  # fmt: skip
    reasons = [event["involvedObject"]["name"] for event in api.list("Event", fields={"reason": "Quarantined"})]
    assert {"q0", "q1"} <= set(reasons)
    evidence = Evidence(
        node="q1", kind=EvidenceKind.PROBLEM, time=now.isoformat(), source="node", number="1", message="m"
    )
    assert quarantine.keep_evidence(api, members[1], [evidence], now)
    (marked,) = api.list("Node", selector={names.EVIDENCE_LABEL: "true"})
    assert quarantine.kept_evidence(marked) == [evidence]
    quarantine.release(api, members, now)
    assert [quarantine.quarantine_of(node) for node in slice_of(nodes_of_slices(api), "q1")[1]] == [None, None]
    assert api.list("Node", selector={names.EVIDENCE_LABEL: "true"}) == []
    for name in ("q0", "q1"):
        api.delete("Node", name)


def _kubectl(kubeconfig: Path, *arguments: str, manifest: str = "") -> str:
    argv = [str(BINARIES / "kubectl"), f"--kubeconfig={kubeconfig}", *arguments]
    return subprocess.run(argv, input=manifest, text=True, check=True, capture_output=True).stdout
