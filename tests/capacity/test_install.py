"""Installing controllers: what is changed in a release's manifest, versions, and waiting for webhooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from xpk.api.base import Obj
from xpk.capacity import install
from xpk.capacity.install import JOBSET, KUEUE
from xpk.model.errors import TimedOutError, XpkError
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
        (deployment("r/jobset:v0.9.1", **RUNNING), "upgrade JobSet 0.9.1 to 0.12.0"),
        (None, "install JobSet 0.12.0"),
    ],
)
def test_versions(have: Obj | None, missing: str | None) -> None:
    assert install.whats_missing(FakeApi([have] if have else []), JOBSET) == missing


def webhook(name: str, group: str, **more: Any) -> Obj:
    return {"name": name, "rules": [{"apiGroups": [group]}], **more}


def test_kueue_is_set_up_for_jobsets_alone_and_pinned() -> None:
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
    assert objects[-1]["kind"] == "Deployment", "it says that all else is there"
    by_kind = {obj["kind"]: obj for obj in objects}
    read = yaml.safe_load(by_kind["ConfigMap"]["data"]["controller_manager_config.yaml"])
    assert read["integrations"]["frameworks"] == ["jobset.x-k8s.io/jobset"]
    assert read["featureGates"] == {"FailureRecoveryPolicy": True}
    assert read["leaderElection"]["leaderElect"] is False, "a busy machine must not end it"
    assert [hook["name"] for hook in by_kind["MutatingWebhookConfiguration"]["webhooks"]] == ["mjobset", "mworkload"]
    pod = by_kind["Deployment"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {install.CONTROL_PLANE: ""}
    assert pod["tolerations"] == [{"key": install.CONTROL_PLANE, "operator": "Exists"}]
    assert pod["containers"][0]["imagePullPolicy"] == "IfNotPresent"


def test_the_webhooks_of_jobset_that_look_at_its_own_pods_stay() -> None:
    hooks = [webhook("mpod", "", objectSelector={"matchExpressions": []}), webhook("mjobset", "jobset.x-k8s.io")]
    (kept,) = install.prepare(
        [{"kind": "MutatingWebhookConfiguration", "metadata": {"name": "w"}, "webhooks": hooks}], pinned=False
    )
    assert [hook["name"] for hook in kept["webhooks"]] == ["mpod", "mjobset"]


class Slow(FakeApi):
    """Its webhooks answer at the third try."""

    tries = 0

    def create(self, obj: Obj, *, dry_run: bool = False) -> Obj:
        """See `ObjectApi.create`."""
        self.tries += 1
        if self.tries < 3:
            raise XpkError('failed calling webhook "mjobset.kb.io": connection refused')
        return super().create(obj, dry_run=dry_run)


def test_waits_for_webhooks() -> None:
    api = Slow([deployment("r/jobset:v0.12.0", **RUNNING)])
    install.wait_until_ready(api, JOBSET, pause=lambda seconds: None)
    assert api.tries == 3
    assert not api.list("JobSet"), "the probe is not kept"


def test_a_controller_that_does_not_come_up_says_what_its_pod_waits_for() -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
    pod = {
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": JOBSET.namespace},
        "status": {"containerStatuses": [{"state": waiting}]},
    }
    with pytest.raises(TimedOutError, match="ImagePullBackOff Back-off pulling image"):
        install.wait_until_ready(FakeApi([deployment("r/jobset:v0.12.0"), pod]), JOBSET, pause=lambda seconds: None)


def test_a_manifest_that_cannot_be_had(tmp_path: Path) -> None:
    with pytest.raises(XpkError, match="cannot read the manifest of Kueue from /nowhere") as caught:
        install.read_manifest(KUEUE, {"XPK_KUEUE_MANIFEST": "/nowhere"})
    assert "XPK_KUEUE_MANIFEST" in caught.value.hint
    file = tmp_path / "kueue.yaml"
    file.write_text("kind: A\n---\n---\nkind: B\n")
    assert len(install.read_manifest(KUEUE, {"XPK_E2E_KUEUE_MANIFEST": str(file)})) == 2
