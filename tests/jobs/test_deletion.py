"""Deletion of several workloads and of copies: its order, and its failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.objects import ADMITTED, WAITS, jobset, workload
from xpk.jobs.create.notice import Notice
from xpk.jobs.deletion import Deletion, carry_out, delete_copies, plan_all, plan_named
from xpk.jobs.output.roots import OutputRoots
from xpk.model.errors import AuthorizationError, UnavailableError
from xpk.model.specs import Target
from xpk.testing import FakeApi


def named(name: str, uid: str) -> dict[str, Any]:
    """A JobSet that xpk created."""
    made = jobset(labels={"kueue.x-k8s.io/queue-name": "multislice-queue", "app.kubernetes.io/managed-by": "xpk"})
    made["metadata"] |= {"name": name, "uid": uid}
    return {"kind": "JobSet", **made}


def test_queued_workloads_are_deleted_first() -> None:
    # The end of a running workload would admit them.
    waits = {"kind": "Workload", **workload("b", "queued", QuotaReserved=WAITS)}
    api = FakeApi([named("a", "u"), named("b", "queued"), {"kind": "Workload", **ADMITTED}, waits])
    assert [each.name for each in plan_named(api, ["a", "b"], "default", cluster="c")] == ["b", "a"]
    assert [each.name for each in plan_all(api, "default")] == ["b", "a"]


class Protected(FakeApi):
    """A server that refuses to delete JobSet `b`."""

    def delete(self, kind: str, name: str, namespace: str = "default", *, grace_seconds: int | None = None) -> None:
        """Refuse one object."""
        if name == "b":
            raise AuthorizationError("denied the request: b is protected")
        super().delete(kind, name, namespace, grace_seconds=grace_seconds)


def test_a_workload_that_cannot_be_deleted_does_not_keep_the_output_of_others(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in "abc"}
    for folder in folders.values():
        folder.mkdir()
        (folder / "config.json").write_text("{}", encoding="utf-8")
    told: list[str] = []
    api = Protected([named(name, name) for name in "abc"])
    deletions = [Deletion(name, str(folder)) for name, folder in folders.items()]
    with pytest.raises(AuthorizationError, match="b is protected"):
        carry_out(api, deletions, "default", report=lambda notice: told.append(notice.text))
    assert told == ["workload 'a' deleted", "workload 'c' deleted"]
    assert {name for name, folder in folders.items() if folder.exists()} == {"b"}


class Clusters:
    """Two clusters with copies of workload `w`, whose lease is in a folder."""

    def __init__(self, output_dir: str) -> None:
        self.roots = OutputRoots(
            lambda: Target(emulated=True, sets_slice_environment=True, output_root="", on_this_machine=True)
        )
        self.apis = {name: FakeApi([self.copy(name, output_dir)]) for name in "ab"}

    def copy(self, cluster: str, output_dir: str) -> dict[str, Any]:
        """Return the copy on a cluster."""
        spec = {"run": "r", "cluster": cluster, "clusters": ["a", "b"], "queue": "q", "move_after_seconds": 30}
        made = named("w", f"w-{cluster}")
        made["metadata"]["annotations"] = {"xpk.dev/copy": json.dumps(spec), "xpk.dev/output-dir": output_dir}
        return made

    def delete(self, *names: str) -> list[str]:
        """Delete the copies of workloads on other clusters than `a`; return the warnings."""
        told: list[Notice] = []
        deletions = [Deletion(name, clusters=("a", "b")) for name in names]
        delete_copies(
            self.apis["a"],
            deletions,
            "default",
            self.roots,
            connect=self.apis.__getitem__,
            usage=lambda cluster: None,  # type: ignore[arg-type, return-value]
            report=told.append,
        )
        assert all(notice.is_warning for notice in told)
        return [notice.text for notice in told]


def test_copies_are_deleted_although_their_lease_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "w" / "placement.json.1").mkdir(parents=True)  # where its first version should be a file
    clusters = Clusters(str(tmp_path / "w"))
    (warning,) = clusters.delete("w")
    assert warning.startswith("cannot write the lease of 'w': ")
    assert clusters.apis["b"].list("JobSet") == []


def test_copies_are_deleted_although_another_workload_is_gone(tmp_path: Path) -> None:
    clusters = Clusters(str(tmp_path / "w"))
    assert clusters.delete("gone", "w") == [
        "the copies of 'gone' on other clusters are not deleted: JobSet 'gone' not found"
    ]
    assert clusters.apis["b"].list("JobSet") == []


def test_a_copy_on_an_unreachable_cluster_is_named(tmp_path: Path) -> None:
    clusters = Clusters(str(tmp_path / "w"))

    class Down(FakeApi):
        def get(self, kind: str, name: str, namespace: str = "default") -> dict[str, Any]:
            raise UnavailableError("no route to host")

    clusters.apis["b"] = Down()
    assert clusters.delete("w") == ["the copy of 'w' on 'b' is not deleted: no route to host"]
