"""Namespaces that enforce Pod Security: violations are rejected, or fixed, before anything is created."""

from __future__ import annotations

from typing import Any

import pytest

from xpk.api.base import Obj
from xpk.jobs.create.pod_security import fit_namespace
from xpk.model.accelerators import find_shape
from xpk.model.errors import AuthorizationError, UsageError
from xpk.model.specs import Target, WorkloadSpec
from xpk.render import render_workload
from xpk.testing import FakeApi

ON_GKE = Target(emulated=False, sets_slice_environment=False, output_root="gs://bucket/output")
ON_KIND = Target(emulated=True, sets_slice_environment=True, output_root="/output", shared_folder="/output")
HERE = Target(emulated=True, sets_slice_environment=True, output_root="/output", on_this_machine=True)


def spec(target: Target = ON_GKE, **changes: Any) -> WorkloadSpec:
    given: dict[str, Any] = {"name": "w", "num_slices": 1, "command": ("true",), "image": "i", "namespace": "ml"}
    return WorkloadSpec(shape=find_shape("v5litepod-8"), target=target, **(given | changes))


def enforcing(level: str) -> FakeApi:
    labels = {"pod-security.kubernetes.io/enforce": level} if level else {}
    return FakeApi([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml", "labels": labels}}])


def security(fitted: WorkloadSpec) -> Obj | None:
    pod = render_workload(fitted)[-1]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    result: Obj | None = pod.get("securityContext")
    return result


@pytest.mark.parametrize(
    ("level", "changes", "expected"),
    [
        ("restricted", {}, {"runAsNonRoot": True}),
        ("baseline", {}, None),
        ("", {}, None),
        (
            "restricted",
            {"run_as_user": 1000},
            {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 1000, "fsGroupChangePolicy": "OnRootMismatch"},
        ),
    ],
)
def test_pods_satisfy_the_security_level_of_the_namespace(
    level: str, changes: dict[str, Any], expected: Obj | None
) -> None:
    assert security(fit_namespace(enforcing(level), spec(**changes))) == expected


@pytest.mark.parametrize("level", ["baseline", "restricted"])
def test_host_paths_are_rejected_in_restricted_namespaces(level: str) -> None:
    """The JobSet would be created, but none of its pods."""
    for goal in (spec(ON_KIND), spec(node_folder="/dev/shm")):
        with pytest.raises(UsageError, match=f"namespace 'ml' enforces Pod Security '{level}'"):
            fit_namespace(enforcing(level), goal)
        assert fit_namespace(enforcing("privileged"), goal) == goal


def test_without_permission_or_pods_the_security_is_unchanged() -> None:
    class Shy(FakeApi):
        """An API server that does not show namespaces."""

        def get(self, kind: str, name: str, namespace: str = "default") -> Obj:
            """See `ObjectApi.get`."""
            raise AuthorizationError("user 'ann' may not get namespaces")

    assert fit_namespace(Shy([]), spec(ON_KIND)) == spec(ON_KIND)
    assert fit_namespace(enforcing("restricted"), spec(HERE)) == spec(HERE)
