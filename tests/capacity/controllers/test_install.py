"""Installation of controllers: changes to the release's manifest, versions, and waiting for webhooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.capacity.machine import _react
from xpk.api.base import Obj
from xpk.capacity.controllers import install
from xpk.capacity.controllers.install import JOBSET, KUEUE
from xpk.model.errors import ConflictError, TimedOutError, XpkError
from xpk.testing import FakeApi


def deployment(image: str, **status: int) -> Obj:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": JOBSET.deployment, "namespace": JOBSET.namespace},
        "spec": {"replicas": 1, "template": {"spec": {"containers": [{"name": "manager", "image": image}]}}},
        "status": status,
    }


RUNNING = {"updatedReplicas": 1, "availableReplicas": 1}


@pytest.mark.parametrize(
    ("have", "missing"),
    [
        (deployment("r/jobset:v0.12.0", **RUNNING), None),
        (deployment("r/jobset:v0.13.1", **RUNNING), None),
        (deployment("r/jobset:main", **RUNNING), None),
        (deployment("r/jobset:v0.12.0"), "wait until JobSet runs"),
        (deployment("localhost:5000/jobset:v0.12.0@sha256:0a51", **RUNNING), None),
        (deployment("r/jobset:v0.9.1@sha256:9c6e", **RUNNING), "upgrade JobSet 0.9.1 to 0.12.0"),
        (deployment("localhost:5000/jobset", **RUNNING), None),
        (deployment("r/jobset:v0.9.1", **RUNNING), "upgrade JobSet 0.9.1 to 0.12.0"),
        (None, "install JobSet 0.12.0"),
    ],
)
def test_versions(have: Obj | None, missing: str | None) -> None:
    assert install.missing_step(FakeApi([have] if have else []), JOBSET) == missing


def test_a_controller_that_someone_has_stopped_does_not_run() -> None:
    stopped = deployment("r/jobset:v0.12.0", updatedReplicas=0, availableReplicas=0)
    stopped["spec"]["replicas"] = 0
    api = FakeApi([stopped])
    assert install.missing_step(api, JOBSET) == "wait until JobSet runs"
    with pytest.raises(TimedOutError, match="has 0 replicas: `kubectl scale` it to 1"):
        install.wait_until_ready(api, JOBSET, pause=lambda seconds: None, seconds=1)


def test_the_version_is_that_of_the_manager_beside_a_proxy() -> None:
    have = deployment("r/jobset:v0.12.0", **RUNNING)
    have["spec"]["template"]["spec"]["containers"].insert(0, {"name": "kube-rbac-proxy", "image": "r/p:v0.16.0"})
    assert install.version_of(have) == (0, 12, 0)


@pytest.mark.parametrize("tag", ["v0.13.1", "v0.12.0", "main"])
def test_a_version_of_others_that_does_not_run_yet_is_awaited_not_replaced(tag: str) -> None:
    api = FakeApi([deployment(f"r/jobset:{tag}")])
    before = dict(api.objects)
    with pytest.raises(TimedOutError, match="JobSet does not answer"):
        install.install(api, JOBSET, pinned=False, source="/no/such/file", pause=lambda seconds: None)
    assert api.objects == before


def webhook(name: str, group: str, **more: Any) -> Obj:
    return {"name": name, "rules": [{"apiGroups": [group]}], **more}


def test_kueue_is_configured_for_jobsets_only_and_pinned() -> None:
    config = yaml.safe_dump(
        {"apiVersion": "config.kueue.x-k8s.io/v1beta2", "integrations": {"frameworks": ["pod", "batch/job"]}}
    )
    hooks = [webhook("mpod", ""), webhook("mjobset", "jobset.x-k8s.io"), webhook("mworkload", "kueue.x-k8s.io")]
    objects = install.prepare(
        [
            deployment("r/kueue:v0.19.2"),
            {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"controller_manager_config.yaml": config}},
            {"kind": "MutatingWebhookConfiguration", "metadata": {"name": "w"}, "webhooks": hooks},
            {"kind": "Namespace", "metadata": {"name": "kueue-system"}},
        ],
        pinned=True,
    )
    assert objects[0]["kind"] == "Namespace"
    assert objects[-1]["kind"] == "Deployment", "the error says that everything else is ready"
    by_kind = {obj["kind"]: obj for obj in objects}
    read = yaml.safe_load(by_kind["ConfigMap"]["data"]["controller_manager_config.yaml"])
    assert read["integrations"]["frameworks"] == ["jobset.x-k8s.io/jobset"]
    assert read["featureGates"] == {"FailureRecoveryPolicy": True}
    assert read["leaderElection"]["leaderElect"] is False, "a slow machine must not end it"
    assert [hook["name"] for hook in by_kind["MutatingWebhookConfiguration"]["webhooks"]] == ["mjobset", "mworkload"]
    pod = by_kind["Deployment"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {install.CONTROL_PLANE: ""}
    assert pod["tolerations"] == [{"key": install.CONTROL_PLANE, "operator": "Exists"}]
    assert pod["containers"][0]["imagePullPolicy"] == "IfNotPresent"


def test_webhooks_of_jobset_for_its_own_pods_are_kept() -> None:
    hooks = [webhook("mpod", "", objectSelector={"matchExpressions": []}), webhook("mjobset", "jobset.x-k8s.io")]
    (kept,) = install.prepare(
        [{"kind": "MutatingWebhookConfiguration", "metadata": {"name": "w"}, "webhooks": hooks}], pinned=False
    )
    assert [hook["name"] for hook in kept["webhooks"]] == ["mpod", "mjobset"]


def test_jobset_validates_only_pods_that_await_their_node_pool() -> None:
    of_pods: Obj = {"objectSelector": {"matchExpressions": []}}
    hooks = [webhook("vpod.kb.io", "", **of_pods), webhook("vjobset.kb.io", "jobset.x-k8s.io")]
    (kept,) = install.prepare(
        [{"kind": "ValidatingWebhookConfiguration", "metadata": {"name": "w"}, "webhooks": hooks}], pinned=False
    )
    of_pod, of_jobset = kept["webhooks"]
    assert of_pod["objectSelector"] == of_pods["objectSelector"] and "matchConditions" not in of_jobset
    (condition,) = of_pod["matchConditions"]
    assert "in object.spec.nodeSelector" in condition["expression"]


class Slow(FakeApi):
    """An API server whose webhooks respond at the third attempt."""

    tries = 0

    def create(self, obj: Obj, *, dry_run: bool = False) -> Obj:
        """See `ObjectApi.create`."""
        self.tries += 1
        if self.tries < 3:
            raise XpkError('failed calling webhook "mjobset.kb.io": connection refused')
        return super().create(obj, dry_run=dry_run)


def test_install_waits_for_webhooks() -> None:
    api = Slow([deployment("r/jobset:v0.12.0", **RUNNING)])
    install.wait_until_ready(api, JOBSET, pause=lambda seconds: None)
    assert api.tries == 3
    assert not api.list("JobSet"), "the probe is not kept"


def test_the_error_for_a_failed_controller_explains_its_pod() -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
    pod = {
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": JOBSET.namespace},
        "status": {"containerStatuses": [{"state": waiting}]},
    }
    with pytest.raises(TimedOutError, match="ImagePullBackOff Back-off pulling image"):
        install.wait_until_ready(FakeApi([deployment("r/jobset:v0.12.0"), pod]), JOBSET, pause=lambda seconds: None)


def test_an_unavailable_manifest_is_reported(tmp_path: Path) -> None:
    with pytest.raises(XpkError, match="the source of the manifest of Kueue, /nowhere, is not a file") as caught:
        install.read_manifest(KUEUE, "/nowhere")
    assert "--kueue-manifest" in caught.value.hint
    file = tmp_path / "kueue.yaml"
    file.write_text("kind: A\n---\n---\nkind: B\n")
    assert len(install.read_manifest(KUEUE, str(file))) == 2


# The relevant parts of Kueue's and JobSet's releases.
RELEASE = """
apiVersion: v1
kind: ConfigMap
metadata: {{name: {name}-manager-config, namespace: {name}-system}}
data:
  controller_manager_config.yaml: |
    apiVersion: config.{name}.x-k8s.io/v1beta2
    integrations: {{frameworks: [batch/job]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}-controller-manager, namespace: {name}-system}}
spec:
  replicas: 1
  template:
    spec:
      containers:
      - {{name: manager, image: "r/{name}:v{version}", args: [--zap-log-level=2], resources: {resources}}}
"""
RESOURCES = {
    KUEUE: "{limits: {cpu: '2', memory: 512Mi}, requests: {cpu: 500m, memory: 512Mi}}",
    JOBSET: "{limits: {memory: 4Gi}, requests: {cpu: 500m, memory: 128Mi}}",
}


def release(controller: install.Controller, folder: Path) -> str:
    """Return the path of a controller's release."""
    file = folder / f"{controller.name}.yaml"
    name, resources = controller.name.lower(), RESOURCES[controller]
    file.write_text(RELEASE.format(name=name, version=controller.version, resources=resources))
    return str(file)


def installed(controller: install.Controller, folder: Path, hosts: int) -> FakeApi:
    """Return a cluster on which a controller was installed for this number of hosts."""
    api = FakeApi(react=_react)
    install.install(api, controller, pinned=False, hosts=hosts, source=release(controller, folder))
    return api


def resources(api: FakeApi, controller: install.Controller) -> dict[str, dict[str, str]]:
    pod = api.get("Deployment", controller.deployment, controller.namespace)["spec"]["template"]["spec"]
    result: dict[str, dict[str, str]] = pod["containers"][0]["resources"]
    return result


@pytest.mark.parametrize("controller", [KUEUE, JOBSET], ids=["kueue", "jobset"])
def test_for_few_hosts_controllers_keep_the_resources_of_their_release(
    tmp_path: Path, controller: install.Controller
) -> None:
    api = installed(controller, tmp_path, hosts=4)
    assert resources(api, controller) == yaml.safe_load(RESOURCES[controller])
    assert install.missing_step(api, controller, hosts=256) is None


@pytest.mark.parametrize(
    ("controller", "hosts", "limits", "asked"),
    [
        (KUEUE, 257, {"cpu": "2", "memory": "1024Mi"}, "512Mi"),
        (JOBSET, 257, {"memory": "4Gi"}, "512Mi"),
        (KUEUE, 12_736, {"cpu": "13", "memory": "15872Mi"}, "7936Mi"),
        (JOBSET, 12_736, {"memory": "15872Mi"}, "7936Mi"),
    ],
)
def test_for_many_hosts_controllers_get_more_resources(
    tmp_path: Path, controller: install.Controller, hosts: int, limits: dict[str, str], asked: str
) -> None:
    api = installed(controller, tmp_path, hosts=hosts)
    assert resources(api, controller) == {"limits": limits, "requests": {"cpu": "500m", "memory": asked}}
    assert install.missing_step(api, controller, hosts=hosts) is None, "the second plan has nothing to do"
    assert install.missing_step(api, controller, hosts=4) is None, "resources are kept when slices are removed"


def test_controllers_of_a_growing_cluster_get_more_resources(tmp_path: Path) -> None:
    api = installed(KUEUE, tmp_path, hosts=4)
    title = "allow Kueue 15872Mi of memory and 13 CPUs, for 12,736 hosts"
    assert install.missing_step(api, KUEUE, hosts=12_736) == title
    install.install(api, KUEUE, pinned=False, hosts=12_736, source=release(KUEUE, tmp_path))
    assert install.missing_step(api, KUEUE, hosts=12_736) is None
    stored = api.objects["Deployment", KUEUE.namespace, KUEUE.deployment]
    stored["metadata"]["managedFields"] = [{"manager": "helm", "operation": "Apply"}]
    assert install.missing_step(api, KUEUE, hosts=40_000) is None, "controllers of other tools are not changed"
    (note,) = install.notes_of(api, hosts=40_000, fenced=None)
    assert note == "Kueue was not installed by this xpk: 40,000 hosts may need 48640Mi of memory and 40 CPUs"


def test_kueue_is_reconfigured_to_give_up_hosts_on_dead_nodes(tmp_path: Path) -> None:
    api = installed(KUEUE, tmp_path, hosts=4)
    stamp = _stamp(api)
    forgotten = {"apiVersion": "config.kueue.x-k8s.io/v1beta2", "integrations": {"frameworks": ["batch/job"]}}
    patch = {"data": {"controller_manager_config.yaml": yaml.safe_dump(forgotten)}}
    api.patch("ConfigMap", "kueue-manager-config", patch, KUEUE.namespace)
    api.patch("Deployment", KUEUE.deployment, {"spec": {"template": {"metadata": None}}}, KUEUE.namespace)
    title = install.missing_step(api, KUEUE)
    assert title == "set up Kueue 0.19.2 with framework jobset.x-k8s.io/jobset and feature gate FailureRecoveryPolicy"
    install.install(api, KUEUE, pinned=False, source=release(KUEUE, tmp_path))
    assert install.missing_step(api, KUEUE) is None and install.notes_of(api, hosts=4, fenced=True) == ()
    assert _stamp(api) == stamp, "its pods restart with the configuration"


def test_jobset_is_reconfigured_to_restart_slices_alone(tmp_path: Path) -> None:
    """A JobSet that an earlier xpk installed lacks the gate."""
    api = installed(JOBSET, tmp_path, hosts=4)
    old = {"apiVersion": "config.jobset.x-k8s.io/v1alpha1", "kind": "Configuration"}
    patch = {"data": {"controller_manager_config.yaml": yaml.safe_dump(old)}}
    api.patch("ConfigMap", JOBSET.config_map, patch, JOBSET.namespace)
    assert install.missing_step(api, JOBSET) == "set up JobSet 0.12.0 with feature gate RestartJob"
    install.install(api, JOBSET, pinned=False, source=release(JOBSET, tmp_path))
    stored = api.get("ConfigMap", JOBSET.config_map, JOBSET.namespace)["data"]["controller_manager_config.yaml"]
    assert yaml.safe_load(stored)["featureGates"] == {"RestartJob": True}
    assert install.missing_step(api, JOBSET) is None and install.notes_of(api, hosts=4, fenced=True) == ()


def test_webhook_of_a_jobset_that_an_earlier_xpk_installed_is_limited(tmp_path: Path) -> None:
    api = installed(JOBSET, tmp_path, hosts=4)
    hook = webhook("vpod.kb.io", "", objectSelector={"matchExpressions": []})
    name = "jobset-validating-webhook-configuration"
    meta: Obj = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": name}}
    configuration = {"kind": "ValidatingWebhookConfiguration", **meta, "webhooks": [hook]}
    api.create(configuration)
    assert install.missing_step(api, JOBSET) == "call the webhook of JobSet for fewer pods"
    (prepared,) = install.prepare([{**configuration, "webhooks": [hook]}], pinned=False)
    api.patch("ValidatingWebhookConfiguration", name, {"webhooks": prepared["webhooks"]})
    assert install.missing_step(api, JOBSET) is None


def test_another_tools_jobset_without_the_gate_is_noted(tmp_path: Path) -> None:
    api = installed(JOBSET, tmp_path, hosts=4)
    stored = api.objects["Deployment", JOBSET.namespace, JOBSET.deployment]
    stored["metadata"]["managedFields"] = [{"manager": "helm", "operation": "Update"}]
    api.patch("ConfigMap", JOBSET.config_map, {"data": {"controller_manager_config.yaml": "{}"}}, JOBSET.namespace)
    assert install.missing_step(api, JOBSET) is None
    (note,) = install.notes_of(api, hosts=4, fenced=True)
    assert note.startswith("JobSet was not installed by this xpk and lacks feature gate RestartJob; set it in ")
    assert "jobset-manager-config, namespace jobset-system (`featureGates: {RestartJob: true}`)" in note


def test_kueue_is_restarted_if_it_started_before_its_configuration(tmp_path: Path) -> None:
    """An interruption between the change and the restart leaves Kueue with its old configuration."""
    api = installed(KUEUE, tmp_path, hosts=4)
    stamp = _stamp(api)
    old = {"spec": {"template": {"metadata": {"annotations": {"xpk.dev/configuration": "of-before"}}}}}
    api.patch("Deployment", KUEUE.deployment, old, KUEUE.namespace)
    assert install.missing_step(api, KUEUE) == "restart Kueue with its newest configuration"
    install.install(api, KUEUE, pinned=False, source=release(KUEUE, tmp_path))
    assert install.missing_step(api, KUEUE) is None and _stamp(api) == stamp
    api.patch("Deployment", KUEUE.deployment, old, KUEUE.namespace)
    stored = api.objects["ConfigMap", KUEUE.namespace, "kueue-manager-config"]
    stored["metadata"]["managedFields"] = [{"manager": "kubectl-edit", "operation": "Update"}]
    assert install.missing_step(api, KUEUE) is None, "the owner of the change restarts it"


def test_another_tools_kueue_must_give_up_hosts_on_fenced_nodes(tmp_path: Path) -> None:
    api = installed(KUEUE, tmp_path, hosts=4)
    stored = api.objects["Deployment", KUEUE.namespace, KUEUE.deployment]
    stored["metadata"]["managedFields"] = [{"manager": "helm", "operation": "Update"}]
    assert install.notes_of(api, hosts=4, fenced=True) == ()
    theirs = {"integrations": {"frameworks": ["jobset.x-k8s.io/jobset"]}}
    patch = {"data": {"controller_manager_config.yaml": yaml.safe_dump(theirs)}}
    api.patch("ConfigMap", "kueue-manager-config", patch, KUEUE.namespace)
    assert install.missing_step(api, KUEUE) is None
    (note,) = install.notes_of(api, hosts=4, fenced=None)
    assert "lacks feature gate FailureRecoveryPolicy; set it in controller_manager_config.yaml" in note
    with pytest.raises(ConflictError, match="even with --fenced") as caught:
        install.notes_of(api, hosts=4, fenced=True)
    assert "kubectl rollout restart -n kueue-system deployment" in caught.value.hint
    container = stored["spec"]["template"]["spec"]["containers"][0]
    container["args"] = ["--feature-gates=A=false,FailureRecoveryPolicy=true"]
    assert install.notes_of(api, hosts=4, fenced=True) == (), "an argument has the same effect"
    container |= {"args": [], "image": "r/kueue:v0.20.0"}
    assert "FailureRecoveryPolicy" in install.notes_of(api, hosts=4, fenced=True)[0], "a later version may enable it"


def _stamp(api: FakeApi) -> str:
    template = api.get("Deployment", KUEUE.deployment, KUEUE.namespace)["spec"]["template"]
    return str(template["metadata"]["annotations"]["xpk.dev/configuration"])
