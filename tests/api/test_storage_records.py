"""Storages are recorded on the cluster; workloads mount named and automatic ones."""

from __future__ import annotations

import pytest

from xpk.api.storages import Storage, choose, load
from xpk.model.errors import AuthorizationError, NotFoundError
from xpk.model.mounts import Mount
from xpk.render.mounts import volumes
from xpk.testing import FakeApi

BUCKET = Storage(
    name="corpus",
    type="gcsfuse",
    auto_mount=True,
    mount=Mount(
        source="gs://b/p", target="/corpus", read_only=True, options=("rename-dir-limit=9",), prefetch_metadata=True
    ),
)
CLAIM = Storage(name="disk", type="pd", mount=Mount(source="disk-claim", target="/disk", sub_path="a"))


def test_a_record_is_read_as_written() -> None:
    api = FakeApi([CLAIM.record(), BUCKET.record()])
    assert load(api, "default") == [BUCKET, CLAIM] and load(api, "other") == []


def test_a_workload_mounts_named_and_automatic_storages() -> None:
    api = FakeApi([CLAIM.record(), BUCKET.record()])
    assert choose(api, "default", []) == [BUCKET]
    assert choose(api, "default", ["disk", "disk"]) == [BUCKET, CLAIM]
    with pytest.raises(NotFoundError, match="storage 'none', 'other' not found in namespace 'default'") as caught:
        choose(api, "default", ["none", "disk", "other"])
    assert caught.value.hint == "choose from corpus, disk"


def test_without_permission_for_storages_workloads_without_storages_run() -> None:
    class Limited(FakeApi):
        def list(self, *args: object, **more: object) -> list[dict[str, object]]:
            raise AuthorizationError("not authorized")

    assert choose(Limited(), "default", []) == []
    with pytest.raises(AuthorizationError):
        choose(Limited(), "default", ["disk"])


def test_config_maps_of_others_are_not_storages() -> None:
    odd = CLAIM.record()
    del odd["data"]["mount-point"]
    renamed = BUCKET.record()
    renamed["metadata"]["name"] = "mine"
    assert load(FakeApi([odd, renamed]), "default") == []


def test_a_bucket_is_mounted_with_its_options() -> None:
    (volume,) = volumes([BUCKET.mount])
    assert volume["csi"]["volumeAttributes"] == {
        "bucketName": "b",
        "mountOptions": "implicit-dirs,only-dir=p,rename-dir-limit=9",
        "gcsfuseMetadataPrefetchOnMount": "true",
    }
