"""Rejections of a real API server, and the roles of docs/permissions.md: the error names a missing verb."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from e2e.api_server import BINARIES, api_server, await_kinds
from e2e.bucket import bucket_server, missing
from tests.render.workloads import workload
from tests.roles import roles, without
from xpk.api.base import Obj
from xpk.api.kubernetes import KubernetesApi
from xpk.capacity.controllers import install
from xpk.model import names
from xpk.model.accelerators import NODEPOOL_LABEL, find_shape
from xpk.model.errors import AuthorizationError, MissingToolError, NotFoundError, XpkError
from xpk.model.specs import ClusterSpec, CopySpec, Target
from xpk.render import render_priorities, render_queues, render_workload

MANIFESTS = ("XPK_E2E_JOBSET_MANIFEST", "XPK_E2E_KUEUE_MANIFEST")
SPEC = ClusterSpec(name="bare", shape=find_shape("v5litepod-8"), num_slices=2)
pytestmark = pytest.mark.skipif(
    not (BINARIES / "kube-apiserver").exists() or any(name not in os.environ for name in MANIFESTS),
    reason='no kube-apiserver or no manifests: `eval "$(e2e/environment/up)"` first',
)

CREATE = ("workload", "create", "new", "--command", "true")
SHIP = (
    "workload",
    "create",
    "shipped",
    "--command",
    "true",
    "--script-dir",
    str(Path(__file__).parent / "environment"),
)
GUARDED = ("workload", "create", "guarded", "--command", "true", "--network-policy")
LIST, STATUS = ("workload", "list"), ("workload", "status", "run")
LOGS = ("workload", "logs", "run")
EXEC = ("workload", "exec", "run", "--", "true")
WAIT = ("workload", "wait", "run", "--timeout", "10")
DESCRIBE = ("cluster", "describe")
QUEUES = ("queue", "list")
STORAGES = ("storage", "list")
FORWARD = ("workload", "port-forward", "run", "0:8265")
SUSPEND = ("workload", "suspend", "run")
DELETE = ("workload", "delete", "run", "--timeout", "2")
CACHE, HEALTH = ("cluster", "cache-image", "--image", "none:1"), ("cluster", "health")
CACHE_LATER = (*CACHE, "--no-wait")
INSIDE, WIDE = (
    ("xpk-workloads", "xpk-images"),
    "xpk-viewer",
)  # namespaces in which each of the documented roles is bound
AT_ONCE = (*DELETE, "--grace-period", "0")

# A verb, its resource, whether it is needed for the whole cluster, and a command that needs it.
NEEDED = [
    ("create", "jobsets.jobset.x-k8s.io", False, CREATE),
    ("get", "jobsets.jobset.x-k8s.io", False, STATUS),
    ("list", "jobsets.jobset.x-k8s.io", False, LIST),
    ("watch", "jobsets.jobset.x-k8s.io", False, WAIT),
    ("delete", "jobsets.jobset.x-k8s.io", False, DELETE),
    ("list", "workloads.kueue.x-k8s.io", False, LIST),
    ("patch", "workloads.kueue.x-k8s.io", False, SUSPEND),
    ("get", "localqueues.kueue.x-k8s.io", False, CREATE),
    ("create", "configmaps", False, SHIP),
    ("list", "configmaps", False, STORAGES),
    ("create", "secrets", False, CREATE),
    ("create", "networkpolicies.networking.k8s.io", False, GUARDED),
    ("list", "pods", False, LIST),
    ("get", "pods", False, EXEC),
    ("watch", "pods", False, DELETE),
    ("delete", "pods", False, AT_ONCE),
    ("get", "pods/log", False, LOGS),
    ("create", "pods/exec", False, EXEC),
    ("get", "pods/portforward", False, FORWARD),
    ("list", "events", False, STATUS),
    ("create", "jobs.batch", False, CACHE_LATER),
    ("patch", "configmaps", False, CACHE_LATER),
    ("get", "daemonsets.apps", False, CACHE),
    (
        "create",
        "daemonsets.apps",
        False,
        (*CACHE_LATER, "--image", "new:1"),
    ),  # nobody else's workloads are deleted here
    ("patch", "daemonsets.apps", False, CACHE_LATER),
    ("list", "nodes", True, DESCRIBE),
    ("get", "configmaps", False, CREATE),
    ("get", "clusterqueues.kueue.x-k8s.io", True, DESCRIBE),
    ("get", "resourceflavors.kueue.x-k8s.io", True, DESCRIBE),
    ("get", "workloadpriorityclasses.kueue.x-k8s.io", True, DESCRIBE),
    ("list", "clusterqueues.kueue.x-k8s.io", True, QUEUES),
    ("list", "localqueues.kueue.x-k8s.io", True, QUEUES),
]
NODES, USAGE = ("node", "list"), ("usage",)
QUARANTINE = ("node", "quarantine", "n0", "--reason", "drill")
RETURN = ("node", "return", "n0", "--force")
PLACE = ("workload", "place", "copy", "--once", "--output-root", "gs://runs")
COPY = CopySpec(run="drill", cluster="bare", clusters=("bare",), queue="multislice-queue", move_after_seconds=30.0)
# The same for the roles of administrators, which apply to the whole cluster: a verb, its resource, the role, a command.
NEEDED_OF_ROLES = [
    ("list", "jobsets.jobset.x-k8s.io", "xpk-usage", USAGE),
    ("list", "workloads.kueue.x-k8s.io", "xpk-usage", USAGE),
    ("list", "localqueues.kueue.x-k8s.io", "xpk-usage", USAGE),
    ("get", "configmaps", "xpk-usage", USAGE),
    ("list", "nodes", "xpk-quarantine", NODES),
    ("list", "jobsets.jobset.x-k8s.io", "xpk-quarantine", NODES),
    ("get", "nodes", "xpk-quarantine", QUARANTINE),
    ("patch", "nodes", "xpk-quarantine", QUARANTINE),
    ("list", "pods", "xpk-quarantine", (*QUARANTINE, "--evict")),
    ("create", "pods/eviction", "xpk-quarantine", (*QUARANTINE, "--evict")),
]
RUN = ["jobset.jobset.x-k8s.io/run", "pod/run-slice-job-0-0-abcde", "workload.kueue.x-k8s.io/jobset-run-00000"]

# The objects that `xpk cluster adapt` writes.
RECORD: Obj = {
    "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "xpk-cluster", "namespace": "default"},
    "data": {
        "accelerator-type": SPEC.shape.name, "emulated": "false", "sets-slice-environment": "false",
        "fenced": "false", "trainer-image": "", "output-root": "/shared/output",
    },
}  # fmt: skip


def user_of(verb: str, resource: str) -> str:
    """Return the user who may do everything except that."""
    return f"no-{verb}-{resource.partition('.')[0].replace('/', '-')}"


def user_without(verb: str, resource: str, role: str) -> str:
    """Return the user who may do everything that a role of administrators allows, except that."""
    return f"{role}-{user_of(verb, resource)}"


USERS = ["nobody", "storer", "worker", "shipper", "sharer", "builder", "fencer", "keeper", "counter", "placer"]
USERS += [user_of(*row[:2]) for row in NEEDED] + [user_without(*row[:3]) for row in NEEDED_OF_ROLES]


@dataclass(frozen=True, slots=True)
class Bare:
    """The server, with a state folder for each user in which it is the adapted cluster `bare`."""

    folder: Path
    kubeconfig: Path

    def xpk(self, user: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command as a user, with further variables in its environment."""
        place = self.folder / user / "adapted" / "bare"
        place.mkdir(parents=True, exist_ok=True)
        config = yaml.safe_load(self.kubeconfig.read_text()) | {"current-context": user}
        (place / "kubeconfig").write_text(yaml.safe_dump(config))
        options, marker, rest = _split(arguments)
        argv = [sys.executable, "-m", "xpk", *options, "--cluster", "bare", *marker, *rest]
        env = {**os.environ, "XPK_STATE_DIR": str(self.folder / user), "XPK_CONFIG_DIR": str(self.folder / "config")}
        return subprocess.run(argv, env=env | variables, capture_output=True, text=True, check=False, timeout=120)

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """Do something as the administrator."""
        argv = [str(BINARIES / "kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def apply(self, *objects: Obj) -> None:
        """Apply objects as the administrator."""
        self.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(objects))

    def api(self, user: str = "admin") -> KubernetesApi:
        """Return our client as a user."""
        return KubernetesApi(kubeconfig=self.kubeconfig, context=user)


def _split(arguments: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at : at + 1], arguments[at + 1 :]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bare]:
    """Yield a server without anything installed."""
    with api_server(tmp_path_factory.mktemp("server"), BINARIES, USERS) as kubeconfig:
        yield Bare(tmp_path_factory.mktemp("state"), kubeconfig)


@pytest.fixture(scope="module")
def bare(server: Bare) -> Bare:
    """Yield a server with JobSet's and Kueue's kinds, a cluster of nodes and queues, and all users' roles."""
    for name in MANIFESTS:
        objects = [obj for obj in yaml.safe_load_all(Path(os.environ[name]).read_text()) if obj]
        kinds = [obj for obj in objects if obj["kind"] == "CustomResourceDefinition"]
        for kind in kinds:
            kind["spec"].pop("conversion", None)  # no controller is running that could
        server.apply(*kinds)
    await_kinds(server.kubeconfig)
    labels = {names.TYPE_ANNOTATION: SPEC.shape.name, **SPEC.shape.node_labels}
    nodes = [{**labels, NODEPOOL_LABEL: f"bare-np-{index}"} for index in range(2)]
    for index, item in enumerate(nodes):
        server.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{index}", "labels": item}})
        has = {key: {"google.com/tpu": "8"} for key in ("capacity", "allocatable")}
        server.api().patch("Node", f"n{index}/status", {"status": has})
    for obj in render_queues(SPEC):
        server.api().apply(obj)
    server.apply(RECORD)
    _give_roles(server)
    return server


def _give_roles(server: Bare) -> None:
    documented = roles()
    server.apply(*documented.values())
    server.apply(*_bindings("worker", INSIDE, WIDE), *_bindings("shipper", INSIDE[:1], WIDE))
    server.apply(*_bindings("placer", INSIDE[:1], WIDE), *_bindings("storer", ["xpk-storages"], WIDE))
    objects: list[Obj] = []
    for verb, resource, _, _ in NEEDED:
        user = user_of(verb, resource)
        role_names = {name: f"{user}-{name}" for name in (*INSIDE, WIDE)}
        objects += [without(documented[name], verb, resource, new) for name, new in role_names.items()]
        objects += _bindings(user, [role_names[name] for name in INSIDE], role_names[WIDE])
    wide = [("builder", "xpk-clusters"), ("sharer", "xpk-queues"), ("fencer", "xpk-fencing"), ("fencer", WIDE)]
    wide += [("keeper", "xpk-quarantine"), ("keeper", WIDE), ("counter", "xpk-usage"), ("placer", "xpk-placement")]
    for verb, resource, role, _ in NEEDED_OF_ROLES:
        user = user_without(verb, resource, role)
        for name in (role,) if role == "xpk-usage" else (role, WIDE):
            objects.append(without(documented[name], verb, resource, f"{user}-{name}"))
            wide.append((user, f"{user}-{name}"))
    server.apply(*objects, *(_binding("ClusterRoleBinding", *item) for item in wide))


def _bindings(user: str, inside: Sequence[str], wide: str) -> list[Obj]:
    return [*(_binding("RoleBinding", user, role) for role in inside), _binding("ClusterRoleBinding", user, wide)]


def _binding(kind: str, user: str, role: str) -> Obj:
    meta = {"name": f"{user}-{role}-{kind.lower()}", **({"namespace": "default"} if kind == "RoleBinding" else {})}
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1", "kind": kind, "metadata": meta,
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }  # fmt: skip


@pytest.fixture
def run(bare: Bare) -> Iterator[Bare]:
    """Yield the cluster with a workload `run` in its controllers' state: admitted, with one running host."""
    leftovers = bare.kubectl("get", "jobset,workload,pod", "-o", "name").split()
    if sorted(leftovers) == RUN:
        yield bare
        return
    bare.kubectl("delete", "jobset,workload,pod", "--all", "--force", "--grace-period=0")
    done = bare.xpk("worker", "workload", "create", "run", "--command", "true")
    assert done.returncode == 0, done.stderr
    jobset = bare.api().get("JobSet", "run")
    owner = {"apiVersion": jobset["apiVersion"], "kind": "JobSet", "name": "run", "uid": jobset["metadata"]["uid"]}
    prefix = "jobset.sigs.k8s.io"
    labels = {f"{prefix}/jobset-name": "run", f"{prefix}/jobset-uid": owner["uid"], f"{prefix}/job-index": "0"}
    pod_spec = {"restartPolicy": "Never", "nodeName": "n0", "containers": [{"name": "host", "image": "none"}]}
    template = {"spec": {key: value for key, value in pod_spec.items() if key != "nodeName"}}
    bare.apply(
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
            "metadata": {"name": "jobset-run-00000", "namespace": "default", "ownerReferences": [owner]},
            "spec": {
                "active": True, "queueName": "multislice-queue",
                "podSets": [{"name": "slice-job", "count": 2, "template": template}],
            },
        },
        {
            "apiVersion": "v1", "kind": "Pod", "spec": pod_spec,
            "metadata": {
                "name": "run-slice-job-0-0-abcde", "namespace": "default", "labels": labels,
                "annotations": {"batch.kubernetes.io/job-completion-index": "0"},
            },
        },
    )  # fmt: skip
    status = '{"status": {"phase": "Running"}}'
    bare.kubectl("patch", "pod", "run-slice-job-0-0-abcde", "--subresource=status", "--type=merge", "-p", status)
    yield bare


def test_the_error_for_a_cluster_without_controllers_names_the_missing_one(server: Bare) -> None:
    api = server.api()
    for kind, name in (("JobSet", "JobSet"), ("LocalQueue", "Kueue")):
        with pytest.raises(MissingToolError, match=f"{name} is not installed") as error:
            api.list(kind)
        assert "xpk cluster adapt" in error.value.hint
    with pytest.raises(AuthorizationError, match="user 'nobody' cannot list pods in namespace 'default'"):
        server.api("nobody").list("Pod")


def test_a_missing_namespace_is_named(bare: Bare) -> None:
    (jobset,) = [
        {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "x", "namespace": "nope"}}
    ]
    with pytest.raises(NotFoundError, match="namespace 'nope' not found"):
        bare.api().create({**jobset, "spec": {}})
    failed = bare.xpk("admin", *CREATE, "--namespace", "nope")
    assert failed.returncode == 3 and "queue 'multislice-queue' not found in namespace 'nope'" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_with_the_documented_roles_every_workload_command_works(run: Bare) -> None:
    expected = {
        LIST: 0, STATUS: 0, ("workload", "describe", "run"): 0, WAIT: 124, CREATE: 0,
        SUSPEND: 0, ("workload", "resume", "run"): 0, ("workload", "delete", "new"): 0,
        CACHE_LATER: 0, HEALTH: 1,  # no kubelet reports that the nodes are ready
    }  # fmt: skip
    for command, code in expected.items():
        done = run.xpk("worker", *command)
        assert done.returncode == code, f"{command}: {done.stdout}{done.stderr}"
    # No kubelet can answer these: they are tested as far as possible.
    for command in (LOGS, EXEC, FORWARD):
        done = run.xpk("worker", *command)
        assert done.returncode != 6 and "Traceback" not in done.stderr, f"{command}: {done.stderr}"
    assert run.xpk("worker", *AT_ONCE).returncode == 0


def test_a_service_account_with_the_documented_roles_runs_commands_by_its_token(run: Bare) -> None:
    who = {"kind": "ServiceAccount", "name": "robot", "namespace": "default"}
    run.apply({"apiVersion": "v1", "kind": who["kind"], "metadata": {"name": "robot", "namespace": "default"}})
    config = yaml.safe_load(run.kubeconfig.read_text())
    token = run.kubectl("create", "token", "robot").strip()
    config["users"].append({"name": "robot", "user": {"token": token}})
    config["contexts"].append({"name": "robot", "context": {"cluster": "e2e", "user": "robot"}})
    run.kubeconfig.write_text(json.dumps(config))
    refused = run.xpk("robot", *LIST)
    assert refused.returncode == 6 and "user 'system:serviceaccount:default:robot' cannot list" in refused.stderr
    run.apply(*({**binding, "subjects": [who]} for binding in _bindings("robot", INSIDE, WIDE)))
    for command in (LIST, STATUS, ("workload", "create", "automated", "--command", "true"), DESCRIBE, QUEUES):
        done = run.xpk("robot", *command)
        assert done.returncode == 0, f"{command}: {done.stderr}"
    assert run.xpk("robot", "workload", "delete", "automated", "--timeout", "2").returncode == 0


def test_with_the_documented_roles_storages_are_attached(run: Bare) -> None:
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    meta = {"name": "data", "namespace": "default"}
    run.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": claim})
    attach = ("storage", "attach", "data", "--type", "claim", "--mount-point", "/data")
    refused = run.xpk("nobody", *attach)
    assert refused.returncode == 6, f"{refused.stdout}{refused.stderr}"
    for command in (attach, ("storage", "list"), ("storage", "detach", "data")):
        done = run.xpk("storer", *command)
        assert done.returncode == 0, f"{command}: {done.stderr}"


def test_with_the_documented_roles_the_other_commands_that_read_work(run: Bare, tmp_path: Path) -> None:
    expected = {
        ("workload", "diff", "run", "--command", "true"): 0, ("queue", "simulate"): 0, ("info",): 0,
        ("inspector", "--file", str(tmp_path / "bundle.txt")): 0,
        ("workload", "report", "run"): 3,  # the run has written nothing
    }  # fmt: skip
    for command, code in expected.items():
        done = run.xpk("worker", *command)
        assert done.returncode == code, f"{command}: {done.stdout}{done.stderr}"
    checks = run.xpk("worker", "doctor", "-o", "json").stdout
    permissions = {item["name"]: item["ok"] for item in json.loads(checks) if item["name"].startswith("permission")}
    assert permissions["permission to create jobsets"] and permissions["permission to list nodes"], checks


def test_the_documented_role_fences_a_node_that_peers_report_lost_and_releases_it(run: Bare) -> None:
    fence, pod = ("cluster", "fence"), "run-slice-job-0-0-abcde"
    refused = run.xpk("worker", *fence)
    assert refused.returncode == 6 and "cannot list leases" in refused.stderr
    run.kubectl("patch", "configmap", "xpk-cluster", "--type=merge", "-p", '{"data": {"fenced": "true"}}')
    run.kubectl("annotate", "pod", pod, "kueue.x-k8s.io/safe-to-forcefully-delete=true")
    run.apply(_lease("n0", "2026-11-24T12:00:00.000000Z"), _loss("run-slice-job-1-0-abcde", "2026-11-24T12:00:25Z"))
    _set_ready(run, "n0", "Unknown")
    assert f"default/{pod}" in run.xpk("fencer", *fence, "--dry-run", "-o", "json").stdout
    assert "out-of-service" not in run.kubectl("get", "node", "n0", "-o", "yaml")
    done = run.xpk("fencer", *fence, "-o", "json")
    assert done.returncode == 0, done.stderr
    (action,) = json.loads(done.stdout)
    assert (action["name"], action["action"], action["pods"]) == ("n0", "fence", [f"default/{pod}"])
    node = run.api().get("Node", "n0")
    assert "node.kubernetes.io/out-of-service" in {item["key"] for item in node["spec"]["taints"]}
    assert pod not in run.kubectl("get", "pods", "-o", "name")
    assert json.loads(run.xpk("fencer", *fence, "-o", "json").stdout) == []
    run.apply(_lease("n0", "2026-11-24T12:05:00.000000Z"))
    _set_ready(run, "n0", "True")
    (action,) = json.loads(run.xpk("fencer", *fence, "-o", "json").stdout)
    assert action["action"] == "release"
    assert "out-of-service" not in run.kubectl("get", "node", "n0", "-o", "yaml")
    run.kubectl("patch", "configmap", "xpk-cluster", "--type=merge", "-p", '{"data": {"fenced": "false"}}')


def _lease(node: str, renewed: str) -> Obj:
    meta = {"name": node, "namespace": "kube-node-lease"}
    return {
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta,
        "spec": {"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": renewed},
    }  # fmt: skip


def _loss(pod: str, time: str) -> Obj:
    """Return the event of a Job whose host has lost a peer."""
    about = {"kind": "Job", "name": pod.rsplit("-", 2)[0], "namespace": "default"}
    message = f"Container host for pod default/{pod} failed with exit code 75 matching FailJob rule at index 3"
    return {
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": f"{pod}.75", "namespace": "default"},
        "involvedObject": about, "type": "Warning", "reason": "PodFailurePolicy", "message": message,
        "firstTimestamp": time, "lastTimestamp": time, "count": 1,
    }  # fmt: skip


def _set_ready(bare: Bare, node: str, status: str) -> None:
    """Set a node's condition, like the node controller or its kubelet."""
    conditions = [{"type": "Ready", "status": status, "reason": "Drill", "message": ""}]
    bare.api().patch("Node", f"{node}/status", {"status": {"conditions": conditions}})


def test_with_the_documented_role_a_slice_is_quarantined_and_returned(run: Bare) -> None:
    refused = run.xpk("worker", *QUARANTINE)
    assert refused.returncode == 6 and "nodes" in refused.stderr
    done = run.xpk("keeper", *QUARANTINE, "--evict")
    assert done.returncode == 0, done.stderr
    pod = run.api().get("Pod", "run-slice-job-0-0-abcde")
    assert pod["metadata"].get("deletionTimestamp"), "it was evicted"
    listed = {item["name"]: item["state"] for item in json.loads(run.xpk("keeper", *NODES, "-o", "json").stdout)}
    assert listed == {"n0": "Quarantined", "n1": "InService"}
    events = [event["reason"] for event in run.api().list("Event") if event["involvedObject"]["name"] == "n0"]
    assert "Quarantined" in events
    unchecked = run.xpk("keeper", *RETURN[:-1])
    assert unchecked.returncode == 4 and "has passed 0 of 2 preflight checks" in unchecked.stderr
    done = run.xpk("keeper", *RETURN)
    assert done.returncode == 0, done.stderr
    assert "xpk.dev/quarantined" not in run.kubectl("get", "node", "n0", "-o", "jsonpath={.spec.taints}")
    run.kubectl("delete", "pod", "--all", "--force", "--grace-period=0")


def test_with_the_documented_role_the_usage_is_read(run: Bare) -> None:
    done = run.xpk("counter", *USAGE, "--by", "team,user", "-o", "json")
    assert done.returncode == 0, done.stderr
    usage = json.loads(done.stdout)
    assert usage["cluster"] == "bare" and usage["by"] == ["team", "user"] and usage["problems"] == []
    assert run.xpk("worker", *USAGE).returncode == 6, "users see the workloads of their namespaces only"


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_with_the_documented_role_a_copy_is_released(bare: Bare) -> None:
    with bucket_server() as bucket:
        bucket.create_bucket("runs")
        target = Target(emulated=False, sets_slice_environment=False, output_root="gs://runs")
        objects = render_workload(workload(name="copy", target=target, image="none:1", copy=COPY))
        bare.apply(*(obj for obj in objects if obj["kind"] == "JobSet"))
        emulator = {"STORAGE_EMULATOR_HOST": bucket.url}
        refused = bare.xpk("worker", *PLACE, **emulator)
        assert refused.returncode == 6, f"{refused.stdout}{refused.stderr}"
        assert "user 'worker' cannot patch jobsets.jobset.x-k8s.io in namespace 'default'" in refused.stderr
        assert "`xpk docs permissions`" in refused.stderr and "Traceback" not in refused.stderr
        done = bare.xpk("placer", *PLACE, **emulator)
        assert done.returncode == 0, done.stderr
    labels = bare.api().get("JobSet", "copy")["metadata"]["labels"]
    assert labels["kueue.x-k8s.io/queue-name"] == "multislice-queue"
    bare.kubectl("delete", "jobset", "copy")


@pytest.mark.parametrize(
    ("verb", "resource", "role", "command"), NEEDED_OF_ROLES, ids=lambda value: str(value).replace("/", "-")
)
def test_a_missing_verb_of_an_administrator_is_named(
    run: Bare, verb: str, resource: str, role: str, command: tuple[str, ...]
) -> None:
    done = run.xpk(user_without(verb, resource, role), *command)
    assert done.returncode == 6, f"{done.stdout}{done.stderr}"
    assert f"cannot {verb} {resource}" in done.stderr and "`xpk docs permissions`" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    run.xpk("keeper", *RETURN)  # what was quarantined before the missing verb was needed


def test_code_is_shipped_with_only_the_role_for_workloads(run: Bare, tmp_path: Path) -> None:
    """The role for images has the same verbs and would hide the difference."""
    (tmp_path / "main.py").write_text("print()")
    for name in ("one", "two"):  # the second becomes another owner of the code that the first has shipped
        done = run.xpk("shipper", "workload", "create", name, "--command", "true", "--script-dir", str(tmp_path))
        assert done.returncode == 0, done.stderr
    (shipped,) = [item for item in run.api().list("ConfigMap") if item["metadata"]["name"].startswith("xpk-code-")]
    assert [owner["name"] for owner in shipped["metadata"]["ownerReferences"]] == ["one", "two"]
    run.kubectl("delete", "jobset", "one", "two")
    run.kubectl("delete", "configmap", shipped["metadata"]["name"])


def test_without_permission_to_change_configmaps_no_workload_is_created(run: Bare, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("print(1)")
    ship = ("workload", "create", "--command", "true", "--script-dir", str(tmp_path))
    done = run.xpk("worker", *ship, "one")
    assert done.returncode == 0, done.stderr
    refused = run.xpk(user_of("patch", "configmaps"), *ship, "two")
    assert refused.returncode == 6 and "cannot patch configmaps in namespace 'default'" in refused.stderr
    assert "jobset.jobset.x-k8s.io/two" not in run.kubectl("get", "jobsets", "-o", "name").split()
    run.kubectl("delete", "jobset", "one")


@pytest.mark.parametrize(
    ("verb", "resource", "wide", "command"), NEEDED, ids=lambda value: str(value).replace("/", "-")
)
def test_a_missing_verb_is_named(run: Bare, verb: str, resource: str, wide: bool, command: tuple[str, ...]) -> None:
    user = user_of(verb, resource)
    done = run.xpk(user, *command)
    assert done.returncode == 6, f"{done.stdout}{done.stderr}"
    assert f"cannot {verb} {resource}" in done.stderr, done.stderr
    assert ("in the whole cluster" if wide else "in namespace 'default'") in done.stderr
    assert "`xpk docs permissions`" in done.stderr and "Traceback" not in done.stderr
    if resource not in ("pods/exec", "pods/portforward"):
        assert f"user '{user}'" in done.stderr
    assert run.kubectl("get", "jobsets", "-o", "name").split() in (
        [f"jobset.jobset.x-k8s.io/{n}" for n in ("run",)],
        [],
    )


def test_status_works_without_permission_for_other_namespaces(run: Bare) -> None:
    name = f"worker-{WIDE}-clusterrolebinding"
    run.kubectl("delete", "clusterrolebinding", name)
    try:
        done = run.xpk("worker", *STATUS)
        assert done.returncode == 0 and "position   1 in queue multislice-queue" in done.stdout, done.stderr
    finally:
        run.apply(_binding("ClusterRoleBinding", "worker", WIDE))


def test_a_jobset_of_another_tool_is_not_changed(run: Bare) -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]}}
    job = {"name": "workers", "replicas": 1, "template": {"spec": {"template": template}}}
    foreign = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "spec": {"replicatedJobs": [job]}}
    run.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(foreign | {"metadata": {"name": "theirs"}}))
    taken = run.xpk("worker", "workload", "create", "theirs", "--command", "true")
    assert taken.returncode == 4 and "created by kubectl" in taken.stderr and "not xpk" in taken.stderr
    assert "theirs" in run.xpk("worker", *LIST).stdout
    description = run.xpk("worker", "workload", "describe", "theirs")
    assert description.returncode == 0 and "created by kubectl" in description.stdout, description.stderr
    kept = run.xpk("worker", "workload", "delete", "theirs")
    assert kept.returncode == 4 and "created by kubectl" in kept.stderr and "--force" in kept.stderr
    assert run.xpk("worker", "workload", "delete", "--all", "--yes", "--timeout", "1").returncode in (0, 124)
    assert run.kubectl("get", "jobsets", "-o", "name").split() == ["jobset.jobset.x-k8s.io/theirs"]
    assert run.xpk("worker", "workload", "delete", "theirs", "--force").returncode == 0


@pytest.mark.parametrize("controller", install.CONTROLLERS, ids=lambda controller: controller.name)
def test_an_unresponsive_controller_is_named(bare: Bare, controller: install.Controller) -> None:
    objects = install.prepare(
        install.read_manifest(controller, os.environ[f"XPK_E2E_{controller.name.upper()}_MANIFEST"]), pinned=False
    )
    (hooks,) = (obj for obj in objects if obj["kind"] == "MutatingWebhookConfiguration")
    bare.apply(hooks)
    try:
        failed = bare.xpk("worker", *CREATE)
        assert failed.returncode == 7, failed.stderr
        assert f"{controller.name} does not answer" in failed.stderr
        assert f"kubectl get pods --namespace {controller.namespace}" in failed.stderr
    finally:
        bare.kubectl("delete", "mutatingwebhookconfiguration", hooks["metadata"]["name"])


def test_rejected_certificates_and_tokens_are_reported(server: Bare, tmp_path: Path) -> None:
    config = yaml.safe_load(server.kubeconfig.read_text())
    del config["clusters"][0]["cluster"]["certificate-authority"]
    stranger, expired = tmp_path / "stranger", tmp_path / "expired"
    stranger.write_text(yaml.safe_dump(config))
    with pytest.raises(XpkError, match="its certificate is not trusted") as untrusted:
        KubernetesApi(kubeconfig=stranger).list("Pod")
    assert "certificate-authority-data" in untrusted.value.hint
    config = yaml.safe_load(server.kubeconfig.read_text())
    config["users"][0]["user"]["token"] = "of yesterday"
    expired.write_text(yaml.safe_dump(config))
    with pytest.raises(AuthorizationError, match="invalid credentials"):
        KubernetesApi(kubeconfig=expired).list("Pod")


def test_with_the_documented_role_a_cluster_can_be_shared(bare: Bare, run: Bare) -> None:
    def share(user: str, *arguments: str, code: int = 0) -> str:
        done = bare.xpk(user, *arguments)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    create = ("queue", "create", "red", "-n", "red", "--quota", "1")
    assert "permission denied" in share("worker", "queue", "create", "red", "-n", "default", "--quota", "1", code=6)
    assert "--create-namespace creates it" in share("sharer", *create, code=3)
    assert "'multislice-queue' keeps 1 x v5litepod-8" in share("sharer", *create, "--create-namespace")
    assert "nothing to do" in share("sharer", *create)
    assert "v5litepod-8=1" in share("worker", "queue", "list")
    assert "run" in share("worker", "queue", "describe", "multislice-queue")
    assert "change queue 'red'" in share("sharer", "queue", "create", "red", "--quota", "100%", "--lending-limit", "1")
    assert "Ready" in bare.xpk("worker", "cluster", "describe").stdout
    assert "return its quota" in share("sharer", "queue", "delete", "red", "--yes")
    own = bare.api().get("ClusterQueue", "cluster-queue")
    assert "cohortName" not in own["spec"] and "annotations" not in own["metadata"]
    assert bare.xpk("worker", "queue", "list", "-o", "name").stdout == "multislice-queue\n"


def test_with_the_documented_role_a_cluster_can_be_set_up(bare: Bare) -> None:
    api = bare.api("builder")
    for controller in install.CONTROLLERS:
        for obj in install.prepare(
            install.read_manifest(controller, os.environ[f"XPK_E2E_{controller.name.upper()}_MANIFEST"]), pinned=False
        ):
            if not obj["kind"].endswith("WebhookConfiguration"):  # they would not be served here
                api.apply(obj)
        assert install.missing_step(api, controller) == f"wait until {controller.name} runs"
    for obj in render_queues(SPEC):
        assert api.apply(obj)["metadata"]["uid"]
    for obj in render_priorities():
        api.create(obj)
    assert len(api.list("PriorityClass", None)) >= len(names.PRIORITIES)
    api.delete("PriorityClass", "medium")
    assert api.patch("Node", "n0", {"metadata": {"labels": {"some": "label"}}})
    assert api.patch("Node", "n0/status", {"status": {"capacity": {"google.com/tpu": "8"}}})
    for kind in ("Pod", "Event", "JobSet", "Workload"):
        api.list(kind, None)
