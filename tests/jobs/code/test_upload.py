"""Shipping of code to hosts, and its removal."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from xpk.api.base import Obj, Objs, Selector
from xpk.jobs.code import upload
from xpk.jobs.code.archive import Archive
from xpk.jobs.create import create
from xpk.model.accelerators import find_shape
from xpk.model.errors import AuthorizationError, Modified, UnavailableError, UsageError
from xpk.model.specs import Target, WorkloadSpec
from xpk.testing import FakeApi

SMALL = Archive("xpk-code-0123", b"x" * upload.MAX_IN_CONFIGMAP, 1, 1)
LARGE = replace(SMALL, content=b"x" * (upload.MAX_IN_CONFIGMAP + 1))
BARE = Target(emulated=False, sets_slice_environment=True, output_root="")


def spec(name: str, **changes: Any) -> WorkloadSpec:
    given: dict[str, Any] = {
        "name": name,
        "shape": find_shape("v5litepod-8"),
        "num_slices": 1,
        "command": ("true",),
        "target": replace(BARE, output_root="gs://b"),
        "image": "i",
        "code": upload.place(SMALL, BARE, BARE),
    }
    return WorkloadSpec(**(given | changes))


def owners(api: FakeApi) -> list[str]:
    """Return the workloads that own the ConfigMap of the code."""
    return [ref["name"] for ref in api.get("ConfigMap", SMALL.name)["metadata"]["ownerReferences"]]


def test_the_destination_of_code(tmp_path: Path) -> None:
    local = replace(BARE, output_root="/clusters/dev/output", on_this_machine=True)
    shared = replace(BARE, output_root=str(tmp_path), shared_folder=str(tmp_path), exclusive=True)
    bucket = replace(shared, output_root="gs://b/p")
    assert upload.place(LARGE, local, bucket).source == "/clusters/dev/output/.code/xpk-code-0123"
    assert upload.place(SMALL, shared, bucket).archive == SMALL.content
    assert upload.place(LARGE, shared, bucket).source == "gs://b/p/.code/xpk-code-0123.tar.gz"
    assert upload.place(LARGE, shared, shared).source == f"{tmp_path}/.code/xpk-code-0123.tar.gz"


@pytest.mark.parametrize("shared_folder", [None, "/a/folder/that/only/nodes/see"])
def test_without_a_destination_the_error_suggests_one(shared_folder: str | None) -> None:
    target = replace(BARE, shared_folder=shared_folder)
    with pytest.raises(UsageError, match=r"takes 700\.0 KiB packed, a ConfigMap holds at most 700\.0 KiB") as caught:
        upload.place(LARGE, target, target)
    assert "--output-root gs://" in caught.value.hint


def test_a_configmap_belongs_to_every_workload_that_names_it() -> None:
    api = FakeApi()
    assert create.create_workload(api, spec("one"), cluster="c")
    assert not create.create_workload(api, spec("two"), cluster="c")
    assert owners(api) == ["one", "two"]
    uids = [ref["uid"] for ref in api.get("ConfigMap", SMALL.name)["metadata"]["ownerReferences"]]
    assert uids == [api.get("JobSet", name)["metadata"]["uid"] for name in ("one", "two")]


class Racing(FakeApi):
    """Another workload adds or removes its reference between our read and our write."""

    def __init__(self, meddle: str) -> None:
        super().__init__()
        self.meddle = meddle

    def create(self, obj: Obj, *, dry_run: bool = False) -> Obj:
        """Let another workload create the ConfigMap first."""
        if obj["kind"] == "ConfigMap" and self.meddle == "created":
            self.meddle = ""
            theirs = {**obj["metadata"], "ownerReferences": [{"name": "other", "uid": "u"}]}
            super().create({**obj, "metadata": theirs})
        return super().create(obj, dry_run=dry_run)

    def patch(self, kind: str, name: str, patch: Obj, namespace: str = "default") -> Obj:
        """Check the version, like a server, after another workload has changed or removed the object."""
        if kind == "ConfigMap" and self.meddle == "owned":
            self.meddle = ""
            there = self.get(kind, name)["metadata"]["ownerReferences"]
            super().patch(kind, name, {"metadata": {"ownerReferences": [*there, {"name": "other", "uid": "u"}]}})
        elif kind == "ConfigMap" and self.meddle == "removed":
            self.meddle = ""
            self.delete(kind, name)
        version = patch["metadata"].pop("resourceVersion", None)
        if version not in (None, self.get(kind, name)["metadata"]["resourceVersion"]):
            raise Modified("changed meanwhile")
        return super().patch(kind, name, patch, namespace)


@pytest.mark.parametrize(
    ("meddle", "left"), [("created", ["other", "two"]), ("owned", ["one", "other", "two"]), ("removed", ["two"])]
)
def test_concurrent_deletes_do_not_remove_used_code(meddle: str, left: list[str]) -> None:
    api = Racing("")
    if meddle != "created":
        create.create_workload(api, spec("one"), cluster="c")
    api.meddle = meddle
    create.create_workload(api, spec("two"), cluster="c")
    assert owners(api) == left


class NoConfigMaps(FakeApi):
    """A user who may read ConfigMaps but not create any."""

    def create(self, obj: Obj, *, dry_run: bool = False) -> Obj:
        """Reject ConfigMaps."""
        if obj["kind"] == "ConfigMap":
            raise AuthorizationError("not authorized to create configmaps")
        return super().create(obj, dry_run=dry_run)


class OneNamespace(FakeApi):
    """A user with permission for one namespace only."""

    def list(self, kind: str, namespace: str | None = "default", selector: Selector | None = None, **more: Any) -> Objs:
        """Reject lists of all namespaces."""
        if namespace is None:
            raise AuthorizationError("not authorized to list jobsets")
        return super().list(kind, namespace, selector)


def test_without_permission_to_list_all_workloads_code_is_kept(tmp_path: Path) -> None:
    shared = replace(BARE, output_root=str(tmp_path), shared_folder=str(tmp_path), exclusive=True)
    api, code = OneNamespace(), upload.place(LARGE, shared, shared)
    (tmp_path / ".code").mkdir()
    (tmp_path / ".code" / "xpk-code-4567.tar.gz").touch()
    os.utime(tmp_path / ".code" / "xpk-code-4567.tar.gz", (0, 0))
    assert upload.upload(api, LARGE, code, shared)
    assert len(list((tmp_path / ".code").iterdir())) == 2


class Forgetful(FakeApi):
    """An API server that executes requests, but whose response is lost."""

    def create(self, obj: Obj, *, dry_run: bool = False) -> Obj:
        made = super().create(obj, dry_run=dry_run)
        if obj["kind"] == "JobSet":
            raise UnavailableError("the connection was lost; it may have been carried out")
        return made


def test_a_workload_whose_create_got_no_response_gets_its_code() -> None:
    api = Forgetful()
    assert create.create_workload(api, spec("one"), cluster="c")
    (code,) = api.list("ConfigMap")
    assert [item["name"] for item in code["metadata"]["ownerReferences"]] == ["one"]


def test_a_workload_without_its_code_is_removed() -> None:
    api = NoConfigMaps()
    with pytest.raises(AuthorizationError):
        create.create_workload(api, spec("one"), cluster="c")
    assert api.list("JobSet") == []


def test_an_archive_is_uploaded_once_and_removed_with_its_last_workload(tmp_path: Path) -> None:
    shared = replace(BARE, output_root=str(tmp_path), shared_folder=str(tmp_path), exclusive=True)
    api, code = FakeApi(), upload.place(LARGE, shared, shared)
    assert upload.upload(api, LARGE, code, shared)
    assert not upload.upload(api, LARGE, code, shared)
    assert Path(code.source).read_bytes() == LARGE.content and Path(code.source).stat().st_mode & 0o777 == 0o644
    create.create_workload(api, spec("one", code=code, target=shared), cluster="c")
    other = replace(LARGE, name="xpk-code-4567")
    long_ago = time.time() - 7200
    os.utime(code.source, (long_ago, long_ago))
    upload.upload(api, other, upload.place(other, shared, shared), shared)
    assert Path(code.source).exists()
    api.delete("JobSet", "one")
    upload.upload(api, other, upload.place(other, shared, shared), shared)
    assert [file.name for file in (tmp_path / ".code").iterdir()] == ["xpk-code-4567.tar.gz"]


def test_code_that_another_cluster_may_use_is_kept(tmp_path: Path) -> None:
    shared = replace(BARE, output_root=str(tmp_path), shared_folder=str(tmp_path))
    theirs = tmp_path / ".code" / "xpk-code-4567.tar.gz"
    theirs.parent.mkdir()
    theirs.touch()
    os.utime(theirs, (0, 0))
    upload.upload(FakeApi(), LARGE, upload.place(LARGE, shared, shared), shared)
    assert theirs.exists()


def test_another_users_archive_of_the_same_code_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time cannot be reset, and the workload that will use it does not exist yet."""
    shared = replace(BARE, output_root=str(tmp_path), shared_folder=str(tmp_path), exclusive=True)
    api, code = FakeApi(), upload.place(LARGE, shared, shared)
    upload.upload(api, LARGE, code, shared)
    os.utime(code.source, (0, 0))

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "utime", refuse)
    assert not upload.upload(api, LARGE, code, shared)
    assert Path(code.source).exists()
