"""Clusters that workloads are created on, and the settings of their JobSet."""

from __future__ import annotations

from pathlib import Path

import yaml

from xpk.api.base import Obj
from xpk.jobs.create.create import read_queue
from xpk.jobs.create.destination import Destination
from xpk.model.accelerators import find_shape
from xpk.model.errors import AuthorizationError, UsageError
from xpk.model.specs import ClusterSpec, Target
from xpk.render import render_queues
from xpk.testing import FakeApi


def config(**gates: bool) -> Obj:
    text = yaml.safe_dump({"apiVersion": "config.jobset.x-k8s.io/v1alpha1", "featureGates": gates or None})
    meta = {"name": "jobset-manager-config", "namespace": "jobset-system"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"controller_manager_config.yaml": text}}


def deployment(*args: str) -> Obj:
    meta = {"name": "jobset-controller-manager", "namespace": "jobset-system"}
    pod = {"containers": [{"name": "manager", "args": list(args)}]}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": {"template": {"spec": pod}}}


class WithoutGate(FakeApi):
    """An API server whose JobSet refuses to restart single slices, in the words of its webhook."""

    refusal = (
        "the cluster refuses JobSet 'w': RestartJob and RestartJobAndIgnoreMaxRestarts failure policy actions are not "
        "allowed when RestartJob feature gate is disabled (webhook vjobset.kb.io)"
    )

    def create(self, obj: Obj, *, dry_run: bool = False) -> Obj:
        """See `ObjectApi.create`."""
        rules = obj["spec"]["failurePolicy"]["rules"] if obj["kind"] == "JobSet" else ()
        if any(rule["action"] == "RestartJobAndIgnoreMaxRestarts" for rule in rules):
            self.calls.append(("create", "JobSet", obj["metadata"]["name"]))
            raise UsageError(self.refusal)
        return super().create(obj, dry_run=dry_run)


class Older(WithoutGate):
    """An API server with a version of JobSet that does not know the action."""

    refusal = (
        "the cluster refuses JobSet 'w': JobSet.jobset.x-k8s.io \"w\" is invalid: spec.failurePolicy.rules[0].action: "
        'Unsupported value: "RestartJobAndIgnoreMaxRestarts": supported values: "FailJobSet", "RestartJobSet"'
    )


class WithoutConfig(FakeApi):
    """An API server that does not show the controller's configuration."""

    def get(self, kind: str, name: str, namespace: str = "default") -> Obj:
        """See `ObjectApi.get`."""
        if kind == "ConfigMap":
            raise AuthorizationError("user 'ann' cannot get configmaps")
        return super().get(kind, name, namespace)


def destination(
    folder: Path, *objects: Obj, kind: type[FakeApi] = FakeApi, accelerator_type: str = "v5litepod-8"
) -> Destination:
    """Return a cluster `c` of four slices."""
    queues = render_queues(ClusterSpec(name="c", shape=find_shape(accelerator_type), num_slices=4))
    api, shared = kind([*queues, *objects]), str(folder)
    target = Target(emulated=True, sets_slice_environment=True, output_root=shared, shared_folder=shared)
    return Destination("c", target, read_queue(api, None, "default", cluster="c"), api)
