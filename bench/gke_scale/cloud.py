"""An emulated project whose clusters have a real API server: xpk's commands on it, and what each of them costs."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.commands import process
from bench.commands.cluster import CACHE
from bench.commands.etcd import Etcd
from e2e.api_server import BINARIES, api_server
from tests.ports import free_ports
from tools.gke_emulator.cluster import ApiServerNodes
from tools.gke_emulator.emulator import GkeEmulator
from tools.gke_emulator.names import Target
from tools.gke_emulator.nodes import node_object
from xpk.api.base import Obj
from xpk.api.kubernetes import KubernetesApi
from xpk.model.errors import XpkError

QUOTAS = {"TPU_LITE_PODSLICE_V5": 200_000, "CPUS": 5_000}
_HARNESS = "harness"  # the user of the benchmark itself, whose requests are not counted
_LOOK_SECONDS = 0.1
# Every request with its user, once it has been answered.
_AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted", "Panic"],
    "rules": [{"level": "None", "userGroups": ["system:nodes"]}, {"level": "Metadata", "users": ["admin"]}],
}


@dataclass(frozen=True, slots=True)
class Cost:
    """One command, and what the emulated cloud did meanwhile."""

    sample: process.Sample
    emulator_cpu_seconds: float
    server_cpu_seconds: float  # of kube-apiserver and etcd
    calls: Mapping[str, int]  # of GKE and Compute Engine, by method
    requests: Mapping[str, int]  # to the API server, by verb and kind


class StoredNodes(ApiServerNodes):
    """Nodes that are written to etcd: a pool of 64 takes milliseconds."""

    def __init__(self, kubeconfig: Path, api: KubernetesApi, etcd: Etcd) -> None:
        super().__init__(kubeconfig, kwok=False)
        self._api, self._etcd = api, etcd
        self._lock = threading.Lock()
        self._managed: list[Obj] = []

    def add(self, cluster: Any, target: Target, pool: Any, names: list[str], *, provision_only: bool = False) -> None:
        """Store the nodes; each has the defaults and managed fields that the server gives to the first."""
        if provision_only:
            raise NotImplementedError("the benchmark creates whole slices, not cubes")
        zones = list(pool.locations)
        nodes = [
            node_object(target, pool, name, zones[index % len(zones)], kwok=False) for index, name in enumerate(names)
        ]
        for node in nodes:
            uid = str(uuid.uuid5(uuid.NAMESPACE_DNS, node["metadata"]["name"]))
            node["metadata"] |= {
                "uid": uid, "creationTimestamp": "2026-11-01T08:00:00Z", "managedFields": self._fields(nodes[0]),
            }  # fmt: skip
        self._etcd.put({f"/registry/minions/{node['metadata']['name']}": node for node in nodes})

    def _fields(self, node: Obj) -> list[Obj]:
        """Return the managed fields of a node, as the server writes them."""
        with self._lock:
            if not self._managed:
                self._managed = self._api.create(node)["metadata"]["managedFields"]
                self._api.delete("Node", node["metadata"]["name"])
            return self._managed


class Project:
    """A project with one API server for its cluster."""

    def __init__(self, folder: Path, gke: GkeEmulator, servers: Sequence[int], environ: Mapping[str, str]) -> None:
        self.gke = gke
        self._folder, self._servers, self._environ = folder, servers, environ

    def run(self, *arguments: str) -> Cost:
        """Run a command and return its cost. Raises RuntimeError if it fails."""
        audit = self._folder / "audit.log"
        before, read = len(self.gke.calls), audit.stat().st_size if audit.exists() else 0
        emulator, servers = time.process_time(), self._server_seconds()
        sample = process.run([sys.executable, "-m", "xpk", *arguments], self._environ)
        emulator, servers = time.process_time() - emulator, self._server_seconds() - servers
        with audit.open("rb") as file:
            file.seek(read)
            events = [json.loads(line) for line in file]
        return Cost(
            sample,
            emulator,
            servers,
            Counter(call.method for call in self.gke.calls[before:]),
            Counter(_request(event) for event in events if event["user"]["username"] == "admin"),
        )

    def _server_seconds(self) -> float:
        total = 0
        for pid in self._servers:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total / os.sysconf("SC_CLK_TCK")


@contextmanager
def project(folder: Path, poll_seconds: float, options: Mapping[str, Any]) -> Iterator[Project]:
    """Serve an empty project. `poll_seconds`: real ones; `options`: of the emulator."""
    server = folder / "server"
    server.mkdir()
    (server / "policy.yaml").write_text(json.dumps(_AUDIT), encoding="utf-8")
    audit = (f"--audit-policy-file={server / 'policy.yaml'}", f"--audit-log-path={server / 'audit.log'}")
    (etcd_port,) = free_ports(1)
    started = list[int]()
    with api_server(
        server, BINARIES, [_HARNESS], etcd_port=etcd_port, flags={"kube-apiserver": audit}, started=started
    ) as kubeconfig:
        admin = KubernetesApi(kubeconfig=kubeconfig)
        admin.create(_harness_role())
        api = KubernetesApi(kubeconfig=kubeconfig, context=_HARNESS)
        nodes = StoredNodes(kubeconfig, api, Etcd(etcd_port))
        with GkeEmulator(nodes=nodes, quotas=QUOTAS, **options) as gke, _available_deployments(api):
            kept = {name: value for name, value in os.environ.items() if not name.startswith("XPK_")}
            kept.pop("PYTHONDONTWRITEBYTECODE", None)
            environ = kept | {
                "XPK_STATE_DIR": str(folder / "state"),
                "XPK_CONFIG_DIR": str(folder / "config"),
                "XPK_GKE_ENDPOINT": gke.grpc_target,
                "XPK_COMPUTE_ENDPOINT": gke.http_url,
                "XPK_GKE_TOKEN": gke.token,
                "XPK_GKE_POLL_SECONDS": str(poll_seconds),
                **_manifests(folder),
            }
            yield Project(server, gke, started, environ)


def _manifests(folder: Path) -> dict[str, str]:
    """Write the releases' manifests without webhooks, which nothing would answer; return xpk's variables for them."""
    environ = {}
    for name in ("jobset", "kueue"):
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        objects = yaml.load_all((CACHE / f"{name}.yaml").read_text(encoding="utf-8"), Loader=loader)
        kept = [obj for obj in objects if obj and not obj["kind"].endswith(("WebhookConfiguration", "APIService"))]
        for obj in kept:
            if obj["kind"] == "CustomResourceDefinition":
                obj["spec"].pop("conversion", None)
        file = folder / f"{name}.yaml"
        file.write_text(yaml.dump_all(kept, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper)), encoding="utf-8")
        environ[f"XPK_{name.upper()}_MANIFEST"] = str(file)
    return environ


@contextmanager
def _available_deployments(api: KubernetesApi) -> Iterator[None]:
    """Report every Deployment as available, as if its program had started."""
    stopped = threading.Event()

    def care() -> None:
        while not stopped.wait(_LOOK_SECONDS):
            for deployment in api.list("Deployment", None):
                meta = deployment["metadata"]
                if deployment.get("status", {}).get("observedGeneration") != meta["generation"]:
                    counts = {"replicas": 1, "readyReplicas": 1, "updatedReplicas": 1, "availableReplicas": 1}
                    status = {"observedGeneration": meta["generation"], **counts}
                    try:
                        api.patch("Deployment", f"{meta['name']}/status", {"status": status}, meta["namespace"])
                    except XpkError:  # changed meanwhile: the next look sees it
                        continue

    thread = threading.Thread(target=care, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _harness_role() -> Obj:
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": _HARNESS},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": _HARNESS}],
    }


def _request(event: Mapping[str, Any]) -> str:
    return f"{event['verb']} {event.get('objectRef', {}).get('resource') or event['requestURI'].partition('?')[0]}"
