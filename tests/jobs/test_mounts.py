"""Mounts of workloads: checked before anything is created, and read from objects."""

from __future__ import annotations

from typing import Any

import pytest

from tests.jobs.objects import Obj, jobset
from xpk.jobs.mounts import check_mounts, mounts_of, read_mounts
from xpk.jobs.status.fields import Snapshot
from xpk.jobs.status.reader import read
from xpk.model.accelerators import find_shape
from xpk.model.errors import AuthorizationError, MissingToolError, NotFoundError, UsageError
from xpk.model.mounts import GCSFUSE_DRIVER, Mount
from xpk.model.specs import Target, WorkloadSpec
from xpk.render import render_workload
from xpk.testing import FakeApi

TARGET = Target(emulated=True, sets_slice_environment=True, output_root="/shared", shared_folder="/shared")
HERE = Target(emulated=True, sets_slice_environment=True, output_root="/output", on_this_machine=True)
DATA = Mount(source="data", target="/data")
BUCKET = Mount(source="gs://bucket/corpus", target="/corpus", read_only=True)
DRIVER = {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": GCSFUSE_DRIVER}}


def spec(*mounts: Mount, **changes: Any) -> WorkloadSpec:
    given: dict[str, Any] = {
        "name": "w",
        "shape": find_shape("v5litepod-8"),
        "num_slices": 2,
        "command": ("true",),
        "target": TARGET,
        "image": "none",
    }
    return WorkloadSpec(mounts=mounts, **(given | changes))


def claim(name: str = "data", *modes: str, phase: str = "Bound", namespace: str = "default") -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"accessModes": list(modes or ["ReadWriteMany"])},
        "status": {"phase": phase},
    }


class Limited(FakeApi):
    """An API whose user may not read claims or drivers."""

    def list(self, kind: str, *args: Any, **more: Any) -> list[Obj]:
        raise AuthorizationError(f"not authorized: may not list {kind}")

    def get(self, kind: str, name: str, namespace: str = "default") -> Obj:
        raise AuthorizationError(f"not authorized: may not get {kind}")


def test_claims_and_the_driver_are_read_with_one_request_each() -> None:
    api = FakeApi([claim(), claim("more"), DRIVER])
    mounts = [DATA, Mount(source="more", target="/more"), Mount(source="data", target="/a", sub_path="a"), BUCKET]
    more = Mount(source="gs://other", target="/other")
    assert check_mounts(api, spec(*mounts, more), cluster="c") == []
    assert [call[:2] for call in api.calls] == [("list", "PersistentVolumeClaim"), ("get", "CSIDriver")]
    api.calls.clear()
    assert check_mounts(api, spec(), cluster="c") == [] and api.calls == []


def test_the_error_for_a_missing_claim_lists_the_existing_ones() -> None:
    api = FakeApi([claim("other"), claim("data", namespace="ml")])
    with pytest.raises(NotFoundError, match="PersistentVolumeClaim 'data' not found in namespace 'default'") as refused:
        check_mounts(api, spec(DATA), cluster="c")
    assert refused.value.hint == "choose from other"
    with pytest.raises(NotFoundError) as refused:
        check_mounts(FakeApi(), spec(DATA), cluster="c")
    assert "`xpk docs kubernetes`" in refused.value.hint


def test_the_error_for_a_missing_driver_explains_its_installation() -> None:
    with pytest.raises(
        MissingToolError, match=f"'c' cannot mount gs://bucket/corpus: it has no driver {GCSFUSE_DRIVER}"
    ) as e:
        check_mounts(FakeApi([claim()]), spec(DATA, BUCKET), cluster="c")
    assert "`xpk cluster create c --enable-gcsfuse-csi-driver`" in e.value.hint


def test_without_permission_mounts_are_not_checked() -> None:
    claims, driver = check_mounts(Limited(), spec(DATA, BUCKET), cluster="c")
    assert "claim data" in claims and "may not list PersistentVolumeClaim" in claims
    assert "buckets" in driver and "may not get CSIDriver" in driver


@pytest.mark.parametrize(
    ("modes", "mount", "hosts", "says"),
    [
        (["ReadWriteMany"], DATA, 2, ""),
        (["ReadOnlyMany"], DATA, 2, "but mounted for writing"),
        (["ReadOnlyMany"], Mount(source="data", target="/data", read_only=True), 2, ""),
        (["ReadWriteOnce"], DATA, 2, "is ReadWriteOnce: hosts on several nodes may be unable to mount it"),
        (["ReadWriteOnce"], DATA, 1, ""),
        (["ReadWriteOncePod"], DATA, 1, ""),
    ],
)
def test_access_modes_limit_the_hosts_of_a_claim(modes: list[str], mount: Mount, hosts: int, says: str) -> None:
    expected = spec(mount, shape=find_shape("v5litepod-4"), num_slices=hosts)
    notes = check_mounts(FakeApi([claim("data", *modes)]), expected, cluster="c")
    assert [says in note for note in notes] == [True] * bool(says)


@pytest.mark.parametrize(
    ("there", "says"),
    [(claim("data", "ReadWriteOncePod"), "one pod may mount it"), (claim(phase="Lost"), "has lost its volume")],
)
def test_single_host_claims_are_rejected_for_several_hosts(there: Obj, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        check_mounts(FakeApi([there]), spec(DATA), cluster="c")


def test_all_problems_are_reported_together() -> None:
    texts = ("data:/data", "source=a,target=b", "source=B,target=/b", "source=c,target=/shared/x", "source=d,target=/b")
    with pytest.raises(UsageError) as refused:
        read_mounts(texts, TARGET)
    assert len(refused.value.problems) == 5 and "source=CLAIM|gs://BUCKET" in refused.value.hint
    with pytest.raises(UsageError, match="invalid mounts") as refused:
        read_mounts(["source=a,target=/dev/shm"], TARGET, "/mnt/disk")
    with pytest.raises(UsageError):
        read_mounts(["source=a,target=/mnt/disk/a"], TARGET, "/mnt/disk")
    assert read_mounts((), TARGET) == ()


def test_mounts_are_rejected_on_local_clusters() -> None:
    with pytest.raises(UsageError, match="processes of this machine") as refused:
        read_mounts(["source=data,target=/data", "nonsense"], HERE)
    assert refused.value.problems == (refused.value.message,) and "at their own paths" in refused.value.hint
    assert any("cannot mount storage" in problem for problem in spec(DATA, target=HERE).problems())
    assert spec(DATA).problems() == []


def test_rendered_mounts_are_read_from_objects() -> None:
    mounts = (
        DATA,
        Mount(source="data", target="/old", sub_path="a/b", read_only=True),
        BUCKET,
        Mount(source="gs://bucket", target="/all"),
    )
    (manifest,) = render_workload(spec(*mounts))
    manifest["metadata"] |= {"uid": "u", "creationTimestamp": "2026-01-31T12:00:00Z"}
    assert read(manifest, Snapshot(jobsets=[])).mounts == mounts
    assert read(jobset(), Snapshot(jobsets=[])).mounts == ()


def test_other_volumes_are_not_listed() -> None:
    volumes: list[Obj] = [{"name": "a", "emptyDir": {}}, {"name": "b", "csi": {"driver": "other"}}, {"name": "c"}]
    there = [{"name": item["name"], "mountPath": f"/{item['name']}"} for item in volumes]
    assert mounts_of({"volumes": volumes, "containers": [{"name": "host", "volumeMounts": there}]}) == ()
