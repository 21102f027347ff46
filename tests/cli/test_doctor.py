"""`xpk doctor`: prerequisites, missing ones, and remedies."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from tests.cli.conftest import Xpk
from xpk.api.base import Obj
from xpk.capacity.inspect.doctor import Prerequisite, of_cluster
from xpk.model.errors import AuthorizationError, UnavailableError
from xpk.testing import FakeApi


def test_the_local_provider_has_no_prerequisites(dev: Xpk) -> None:
    message = dev("doctor", "--cluster", "dev", "-o", "json")
    assert message.code == 0
    result = {item["name"]: item for item in message.data}
    assert result["cluster"]["ok"] and not any(item["needed"] for name, item in result.items() if name != "cluster")
    assert {"docker", "kind", "kubectl", "kubernetes", "google-cloud-container", "jax", "ray"} < set(result)


def test_missing_prerequisites_give_exit_code_7(xpk: Xpk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    message = xpk("doctor", "--provider", "kind")
    assert (
        message.code == 7
        and "missing for provider kind: docker, kind" in message.err
        and "install Docker" in message.err
    )
    (line,) = (line for line in message.out.splitlines() if line.startswith("kubectl"))
    assert "not found" in line and "install kubectl" in line
    assert xpk("doctor").code == 0


def test_versions_of_programs_and_packages_are_shown(xpk: Xpk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"kind": "kind version 0.30.0", "docker": "unreadable"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\necho {text}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    checks = {each["name"]: each for each in xpk("doctor", "--provider", "kind", "-o", "json").data}
    assert (checks["kind"]["ok"], checks["kind"]["version"]) == (True, "0.30.0")
    assert (checks["docker"]["ok"], checks["docker"]["version"]) == (True, "")
    assert (checks["kubectl"]["ok"], checks["kubectl"]["version"]) == (False, "")
    assert checks["jax"]["version"] == version("jax")


def test_unknown_names_are_reported(xpk: Xpk) -> None:
    assert xpk("doctor", "--provider", "none").code == 2
    assert xpk("doctor", "--cluster", "none").code == 3


class Cluster(FakeApi):
    """A cluster with only JobSet, whose user may do everything except delete."""

    def create(self, obj: Obj, *, dry_run: bool = False) -> Obj:
        """Answer access reviews, which are not stored."""
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
    result = {item.name: item for item in of_cluster(lambda: Cluster([jobset()]), "gke", "c", "ml")}
    assert (result["JobSet"].ok, result["JobSet"].version) == (True, "0.12.0")
    assert not result["Kueue"].ok and result["Kueue"].detail.startswith("install Kueue")
    assert result["permission to create jobsets"].detail == "yes in namespace 'ml'"
    refused = result["permission to delete jobsets"]
    assert not refused.ok and "`xpk docs permissions`" in refused.next
    assert result["permission to list nodes"].detail == "yes"
    assert result["Kueue"].next == "`xpk cluster adapt c`"


def test_forbidden_checks_are_unknown() -> None:
    class Shy(Cluster):
        def get(self, kind: str, name: str, namespace: str = "default") -> Obj:
            raise AuthorizationError("user 'ann' may not get deployments.apps")

    result = {item.name: item for item in of_cluster(lambda: Shy([]), "adapted", "context:c", "ml")}
    assert (result["JobSet"].ok, result["JobSet"].needed) == (None, False)
    assert "may not get" in result["JobSet"].detail and result["cluster"].ok


def test_an_unresponsive_cluster_is_reported() -> None:
    def gone() -> FakeApi:
        raise UnavailableError("connection refused", hint="is it up?")

    assert of_cluster(gone, "gke", "c", "default") == [
        Prerequisite(name="cluster", ok=False, needed=True, detail="connection refused", next="is it up?")
    ]
