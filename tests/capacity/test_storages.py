"""Volumes are attached and detached by name, without losing data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from xpk.api.storages import load
from xpk.capacity.storages import Filestore, StorageRequest, plan_attach, plan_create, plan_delete, plan_detach
from xpk.model.errors import ConflictError, NotFoundError, UsageError
from xpk.testing import FakeApi

MANIFEST = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: lustre-claim, namespace: elsewhere}
spec: {accessModes: [ReadWriteMany], volumeName: lustre-volume}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: lustre-volume}
spec: {csi: {driver: lustre.csi.storage.gke.io, volumeHandle: p/z/i}}
"""
BUCKET = """
apiVersion: v1
kind: PersistentVolume
metadata: {name: bucket-volume}
spec:
  mountOptions: [implicit-dirs, uid=1000]
  csi: {driver: gcsfuse.csi.storage.gke.io, volumeHandle: my-bucket}
"""


def wanted(name: str = "data", **changes: Any) -> StorageRequest:
    return StorageRequest(**{"name": name, "type": "claim", "mount_point": "/data", **changes})


def carry_out(plan: Any) -> None:
    plan.carry_out(lambda title: None)


def test_a_bucket_is_attached_and_detached() -> None:
    api = FakeApi()
    carry_out(
        plan_attach(wanted(type="gcsfuse", bucket="my-bucket", mount_options="uid=1", auto_mount=True), lambda: api)
    )
    (storage,) = load(api, "default")
    assert (storage.mount.source, storage.mount.options, storage.auto_mount) == ("gs://my-bucket", ("uid=1",), True)
    carry_out(plan_detach("data", "default", lambda: api))
    assert load(api, "default") == []
    with pytest.raises(NotFoundError, match="storage 'data' not found"):
        plan_detach("data", "default", lambda: api)


def test_a_manifest_is_applied_in_the_namespace(tmp_path: Path) -> None:
    file, api = tmp_path / "lustre.yaml", FakeApi()
    file.write_text(MANIFEST)
    carry_out(plan_attach(wanted(type="lustre", manifest=file, namespace="ml"), lambda: api))
    assert api.get("PersistentVolumeClaim", "lustre-claim", "ml") and api.get("PersistentVolume", "lustre-volume")
    assert [item.mount.source for item in load(api, "ml")] == ["lustre-claim"]
    carry_out(plan_detach("data", "ml", lambda: api))
    assert api.get("PersistentVolumeClaim", "lustre-claim", "ml"), "detaching deletes no data"


def test_a_bucket_of_a_manifest_is_mounted_by_the_pods_themselves(tmp_path: Path) -> None:
    file, api = tmp_path / "bucket.yaml", FakeApi()
    file.write_text(BUCKET)
    carry_out(plan_attach(wanted(type="gcsfuse", manifest=file), lambda: api))
    (storage,) = load(api, "default")
    assert (storage.mount.source, storage.mount.options) == ("gs://my-bucket", ("implicit-dirs", "uid=1000"))


def test_an_instance_is_created_through_a_claim_and_deleted_with_it() -> None:
    api = FakeApi()
    instance = Filestore(size="1024", tier="BASIC_HDD", access_mode="ReadWriteMany")
    carry_out(plan_create(wanted(type="gcpfilestore"), instance, lambda: api))
    claim = api.get("PersistentVolumeClaim", "data")
    assert claim["spec"]["resources"]["requests"]["storage"] == "1024Gi"
    assert api.get("StorageClass", claim["spec"]["storageClassName"])["parameters"] == {"tier": "standard"}
    # As in the upstream recipe: it is attached again, at another path.
    carry_out(plan_attach(wanted(type="gcpfilestore", mount_point="/again"), lambda: api))
    assert [item.mount.target for item in load(api, "default")] == ["/again"]
    carry_out(plan_attach(wanted("bucket-1", type="gcsfuse", mount_point="/b"), lambda: api))
    with pytest.raises(ConflictError, match="'bucket-1' was not created by `xpk storage create`"):
        plan_delete("bucket-1", "default", lambda: api)
    carry_out(plan_delete("data", "default", lambda: api))
    with pytest.raises(NotFoundError):
        api.get("PersistentVolumeClaim", "data")


def created(api: FakeApi, name: str) -> None:
    instance = Filestore(size="1024", tier="BASIC_HDD", access_mode="ReadWriteMany")
    carry_out(plan_create(wanted(name, type="gcpfilestore"), instance, lambda: api))


def test_a_storage_on_the_claim_of_another_one_is_only_detached() -> None:
    api = FakeApi()
    created(api, "shared")
    meta = {"name": "mine", "namespace": "default"}
    api.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": {}})
    carry_out(plan_attach(wanted("mine", type="gcpfilestore", claim="shared"), lambda: api))
    with pytest.raises(ConflictError, match="'mine' was not created by `xpk storage create`"):
        plan_delete("mine", "default", lambda: api)
    assert api.get("PersistentVolumeClaim", "mine"), "a claim of another tool with the name of the storage"


@pytest.mark.parametrize("steps", [0, 1])
def test_an_interrupted_deletion_can_be_repeated(steps: int) -> None:
    api = FakeApi()
    created(api, "data")
    for step in plan_delete("data", "default", lambda: api).steps[:steps]:
        step.act()
    assert [item.name for item in load(api, "default")] == ["data"], "it is listed until its instance is deleted"
    carry_out(plan_delete("data", "default", lambda: api))
    assert load(api, "default") == [] and api.list("PersistentVolumeClaim") == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"type": "pd"}, "--type pd requires --manifest FILE, or --claim NAME"),
        ({"type": "gcsfuse", "bucket": "No"}, "invalid bucket name"),
        ({"mount_point": "/etc/x"}, "would hide files of the hosts' image"),
        ({"mount_point": "data"}, "must be an absolute path"),
        ({"name": "Data"}, "storage name 'Data' is not a DNS label"),
        ({"manifest": Path("/no/such/file")}, "cannot be read"),
    ],
)
def test_problems_are_reported_without_a_cluster(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan_attach(wanted(**changes), None)
    assert problem in " ".join(caught.value.problems)


VOLUME = "kind: PersistentVolume\nmetadata: {name: v}\n"


@pytest.mark.parametrize(
    "text",
    [
        "[", "a", "kind: Secret\nmetadata: {name: x}", "kind: PersistentVolume", "- 1", f"{VOLUME}spec: foo",
        f"{VOLUME}spec: {{csi: foo}}", f"{VOLUME}spec: {{since: 2026-13-45}}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["pd", "gcsfuse"])
def test_manifests_with_other_kinds_are_rejected(tmp_path: Path, text: str, kind: str) -> None:
    file = tmp_path / "odd.yaml"
    file.write_text(text)
    with pytest.raises(UsageError):
        plan_attach(wanted(type=kind, manifest=file), None)


def test_a_pipe_is_rejected_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError) as caught:
        plan_attach(wanted(type="pd", manifest=tmp_path / "pipe"), None)
    assert "not a regular file" in caught.value.problems[0]


def test_a_missing_claim_is_rejected() -> None:
    with pytest.raises(NotFoundError, match="PersistentVolumeClaim 'data' not found") as caught:
        plan_attach(wanted(type="gcpfilestore"), FakeApi)
    assert "xpk storage create" in caught.value.hint
