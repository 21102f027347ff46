"""`xpk doctor`: what is there, what is missing, and what to do about it."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from tests.cli.conftest import Xpk
from xpk.api.base import Obj
from xpk.capacity.inspect.doctor import Prerequisite, of_cluster
from xpk.model.errors import AuthorizationError, UnavailableError
from xpk.testing import FakeApi


def test_the_local_provider_needs_nothing_else(dev: Xpk) -> None:
    told = dev("doctor", "--cluster", "dev", "-o", "json")
    assert told.code == 0
    found = {each["name"]: each for each in told.data}
    assert found["cluster"]["ok"] and not any(each["needed"] for name, each in found.items() if name != "cluster")
    assert {"docker", "kind", "kubectl", "kubernetes", "google-cloud-container", "jax", "ray"} < set(found)


def test_what_a_provider_needs_is_exit_code_7(xpk: Xpk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    told = xpk("doctor", "--provider", "kind")
    assert told.code == 7 and "missing for provider kind: docker, kind" in told.err and "install Docker" in told.err
    (line,) = (line for line in told.out.splitlines() if line.startswith("kubectl"))
    assert "not found" in line and "install kubectl" in line
    assert xpk("doctor").code == 0


def test_versions_of_programs_and_packages_are_shown(xpk: Xpk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"kind": "kind version 0.30.0", "docker": "unreadable"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\necho {text}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = {each["name"]: each for each in xpk("doctor", "--provider", "kind", "-o", "json").data}
    assert (found["kind"]["ok"], found["kind"]["version"]) == (True, "0.30.0")
    assert (found["docker"]["ok"], found["docker"]["version"]) == (True, "")
    assert (found["kubectl"]["ok"], found["kubectl"]["version"]) == (False, "")
    assert found["jax"]["version"] == version("jax")


def test_unknown_names_are_said(xpk: Xpk) -> None:
    assert xpk("doctor", "--provider", "none").code == 2
    assert xpk("doctor", "--cluster", "none").code == 3


class Cluster(FakeApi):
    """A cluster with JobSet alone, whose user may do all but delete."""

    def create(self, obj: Obj, *, dry_run: bool = False) -> Obj:
        """Answer reviews, which are not kept."""
        assert obj["kind"] == "SelfSubjectAccessReview", "nothing is changed"
        return {**obj, "status": {"allowed": obj["spec"]["resourceAttributes"]["verb"] != "delete"}}


def jobset() -> Obj:
    pod = {"containers": [{"image": "registry.k8s.io/jobset/jobset:v0.12.0"}]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "jobset-controller-manager", "namespace": "jobset-system"},
        "spec": {"template": {"spec": pod}},
        "status": {"updatedReplicas": 1, "availableReplicas": 1, "observedGeneration": 1},
    }


def test_controllers_and_permissions_of_a_cluster() -> None:
    found = {each.name: each for each in of_cluster(lambda: Cluster([jobset()]), "gke", "c", "ml")}
    assert (found["JobSet"].ok, found["JobSet"].version) == (True, "0.12.0")
    assert not found["Kueue"].ok and found["Kueue"].detail.startswith("install Kueue")
    assert found["permission to create jobsets"].detail == "yes in namespace 'ml'"
    refused = found["permission to delete jobsets"]
    assert not refused.ok and "`xpk docs permissions`" in refused.next
    assert found["permission to list nodes"].detail == "yes"
    assert found["Kueue"].next == "`xpk cluster adapt c`"


def test_what_may_not_be_looked_at_is_unknown() -> None:
    class Shy(Cluster):
        def get(self, kind: str, name: str, namespace: str = "default") -> Obj:
            raise AuthorizationError("user 'ann' may not get deployments.apps")

    found = {each.name: each for each in of_cluster(lambda: Shy([]), "adapted", "context:c", "ml")}
    assert (found["JobSet"].ok, found["JobSet"].needed) == (None, False)
    assert "may not get" in found["JobSet"].detail and found["cluster"].ok


def test_a_cluster_that_does_not_answer() -> None:
    def gone() -> FakeApi:
        raise UnavailableError("connection refused", hint="is it up?")

    assert of_cluster(gone, "gke", "c", "default") == [
        Prerequisite(name="cluster", ok=False, needed=True, detail="connection refused", next="is it up?")
    ]
