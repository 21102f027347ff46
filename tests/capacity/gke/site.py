"""A Google Cloud project on this machine: the emulator of its control plane, and an API server in memory."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict

from tests.capacity.machine import CONTROLLER, _react
from tools.gke_emulator.emulator import GkeEmulator
from tools.gke_emulator.nodes import as_cube
from xpk.api.base import Keep, Obj, ObjectApi, Selector
from xpk.capacity.gke.api_access import ClusterLocation
from xpk.capacity.gke.cloud.configuration import Endpoints
from xpk.capacity.gke.observed.gpudirect import INSTALLERS
from xpk.capacity.gke.observed.state import shape_of_pool
from xpk.capacity.gke.provider import GkeProvider
from xpk.capacity.gke.request.options import GkeOptions
from xpk.capacity.plan.plan import Plan
from xpk.model import super_slices
from xpk.model.accelerators import NODEPOOL_LABEL, find_shape
from xpk.model.specs import ClusterSpec
from xpk.testing import FakeApi

QUOTAS = {"TPU_LITE_PODSLICE_V5": 200_000, "PREEMPTIBLE_TPU_LITE_PODSLICE_V5": 200_000, "CPUS": 5_000}


class Site:
    """A replacement for Google Cloud for a provider. `options` of each call are fields of `GkeOptions`."""

    def __init__(self, folder: Path, gke: GkeEmulator, api: RegisteredApi | None = None) -> None:
        self.folder, self.gke, self.api = folder, gke, api or RegisteredApi(gke)
        self.lock = threading.Lock()
        self.environ = {
            "XPK_GKE_ENDPOINT": gke.grpc_target,
            "XPK_COMPUTE_ENDPOINT": gke.http_url,
            "XPK_GKE_POLL_SECONDS": "0.03",
            "CLOUDSDK_CONFIG": str(folder / "no-gcloud"),
        }
        for name, version in (("jobset", "v0.12.0"), ("kueue", "v0.19.2")):
            file = folder / f"{name}.yaml"
            file.write_text(CONTROLLER.format(name=name, version=version))
            self.environ[f"XPK_{name.upper()}_MANIFEST"] = str(file)

        for name, source in {item for several in INSTALLERS.values() for item in several}:
            path = folder / "gpudirect" / source
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(
                f"{{apiVersion: apps/v1, kind: DaemonSet, metadata: {{name: {name}, namespace: kube-system}}}}"
            )
        self.environ["XPK_GPUDIRECT_MANIFESTS"] = str(folder / "gpudirect")

    def options(self, **options: Any) -> GkeOptions:
        """Return options in this project."""
        manifests = {f"{name}_manifest": str(self.folder / f"{name}.yaml") for name in ("jobset", "kueue")}
        own = {"project": "p", "zone": "us-central1-a", "gpudirect_manifests": self.environ["XPK_GPUDIRECT_MANIFESTS"]}
        return GkeOptions(**{**own, **manifests, **options})

    def provider(self, **options: Any) -> GkeProvider:
        """Return a provider with these options."""
        endpoints = Endpoints.read(self.environ)
        return GkeProvider(
            self.folder / "state", options=self.options(**options), endpoints=endpoints, connect=self._connect
        )

    def plan(self, num_slices: int, tpu_type: str = "v5litepod-16", *, name: str = "c", **options: Any) -> Plan:
        """Create a cluster and return the executed plan."""
        if not {"spot", "flex", "reservation"} & set(options):
            options["on_demand"] = True
        spec = ClusterSpec(name=name, shape=find_shape(tpu_type), num_slices=num_slices)
        return self.provider(**options).plan_create(spec)

    def create(self, num_slices: int, tpu_type: str = "v5litepod-16", **options: Any) -> list[str]:
        """Create a cluster and return what was done."""
        done: list[str] = []
        self.plan(num_slices, tpu_type, **options).carry_out(done.append)
        return done

    @property
    def place(self) -> ClusterLocation:
        """Return the location of cluster `c`."""
        return ClusterLocation(project="p", location="us-central1", zone="us-central1-a")

    @property
    def cluster(self) -> dict[str, Any]:
        """Return cluster `c` from the emulator."""
        result: dict[str, Any] = self.provider()._google.call(
            "get_cluster", {"name": "projects/p/locations/us-central1/clusters/c"}
        )
        return result

    def pools(self) -> dict[str, str]:
        """Return the status of each node pool of cluster `c`."""
        return {pool["name"]: pool["status"] for pool in self.cluster.get("node_pools", [])}

    def asked(self, method: str) -> int:
        """Return the number of calls of a method."""
        return Counter(call.method for call in self.gke.calls)[method]

    def quotas(self) -> dict[str, int]:
        """Return the queue's quota by flavor."""
        groups = self.api.get("ClusterQueue", "cluster-queue")["spec"]["resourceGroups"]
        return {
            flavor["name"]: int(flavor["resources"][0]["nominalQuota"])
            for group in groups
            for flavor in group["flavors"]
        }

    def run_workload(self, name: str, pool: str) -> None:
        """Place a workload on a slice."""
        meta = {"name": f"{name}-0", "namespace": "default", "labels": {"xpk.google.com/workload": name}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"nodeName": f"{pool}-0", "containers": []}}
        self.api.create({**pod, "status": {"phase": "Running"}})

    def _connect(self, kubeconfig: Path | None) -> ObjectApi:
        assert kubeconfig and "gke_" in kubeconfig.read_text()
        return self.api


class RegisteredApi(FakeApi):
    """An API server with which the nodes of the emulator's pools register, unless they are `late`."""

    def __init__(self, gke: GkeEmulator) -> None:
        super().__init__(react=_react_deployments)
        self._gke, self.late = gke, set[str]()

    def list(
        self,
        kind: str,
        namespace: str | None = "default",
        selector: Selector | None = None,
        *,
        fields: Selector | None = None,
        keep: Keep | None = None,
    ) -> list[Obj]:
        """See `ObjectApi.list`."""
        if kind == "Node":
            self._register()
        return super().list(kind, namespace, selector, fields=fields, keep=keep)

    def _register(self) -> None:
        store = self._gke.plane.store
        with store.lock:
            there = {pool.message.name: pool for pool in store.pools.values()}
            expected = {f"{name}-{host}" for name, pool in there.items() for host in range(len(pool.nodes))} - self.late
            for gone in [key for key in self.objects if key[0] == "Node" and key[2] not in expected]:
                del self.objects[gone]
            missing = expected - {key[2] for key in self.objects if key[0] == "Node"}
            for name in {node.rpartition("-")[0] for node in missing}:
                body = MessageToDict(there[name].message, preserving_proto_field_name=True)
                shape = shape_of_pool(body)
                labels = body["config"].get("labels", {}) | dict(shape.node_labels if shape else {})
                has = {shape.resource: str(shape.resource_per_host)} if shape else {}
                for node in missing & {f"{name}-{host}" for host in range(len(there[name].nodes))}:
                    obj = _node(name, node, labels, has)
                    host = int(node.rpartition("-")[2])
                    self.create(as_cube(obj, name, host) if super_slices.LABEL in labels else obj)


def _react_deployments(kind: str, obj: Obj) -> None:
    if kind == "Deployment":
        _react(kind, obj)


def _node(pool: str, name: str, labels: Mapping[str, str], has: Mapping[str, str]) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {NODEPOOL_LABEL: pool, **labels},
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"providerID": f"gce://p/us-central1-a/{name}"},
        "status": {"capacity": has, "allocatable": has, "conditions": [{"type": "Ready", "status": "True"}]},
    }
