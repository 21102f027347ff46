"""A test machine with Docker and kind, on which their programs create and delete clusters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from xpk.api.base import Obj, ObjectApi
from xpk.capacity.kind.options import KindOptions
from xpk.capacity.kind.provider import KindProvider
from xpk.model.accelerators import find_shape
from xpk.model.specs import ClusterSpec
from xpk.proc import Result
from xpk.testing import FakeApi, FakeRunner

CONTROLLER = """
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}-controller-manager, namespace: {name}-system}}
spec:
  replicas: 1
  template: {{spec: {{containers: [{{name: manager, image: "registry.k8s.io/{name}/{name}:{version}"}}]}}}}
---
apiVersion: v1
kind: Namespace
metadata: {{name: {name}-system}}
"""


class Machine:
    """A machine without real Docker or kind, for the provider."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.clusters: dict[str, FakeApi] = {}
        self.networks: set[str] = set()
        self.images = {"xpk-trainer:given"}
        self.fails: set[str] = set()  # prefixes of commands that fail
        self.runner = FakeRunner(
            {
                "docker version": lambda argv: 1 if "docker version" in self.fails else "28.0",
                "kind version": "kind v0.30.0 go1.25 linux/amd64",
                "kind get clusters": lambda argv: "\n".join(self.clusters),
                "kind create cluster": self._create,
                "kind delete cluster": self._delete,
                "docker network inspect": lambda argv: 0 if argv[-1] in self.networks else 1,
                "docker network rm": self._remove_network,
                "docker update": lambda argv: 1 if "docker update" in self.fails else argv[-1],
                "docker image inspect": lambda argv: 0 if argv[-1] in self.images else 1,
            }
        )
        self.manifests: dict[str, str] = {}
        for name, version in (("jobset", "v0.12.0"), ("kueue", "v0.19.2")):
            file = folder / f"{name}.yaml"
            file.write_text(CONTROLLER.format(name=name, version=version))
            self.manifests[f"{name}_manifest"] = str(file)

    def provider(self, **options: Any) -> KindProvider:
        """Return a provider on this machine. `options`: fields of `KindOptions`."""
        given = {"trainer_image": "xpk-trainer:given", **self.manifests, **options}
        return KindProvider(
            self.state,
            runner=self.runner,
            options=KindOptions(**given),
            connect=self._connect,
            pause=lambda seconds: None,
        )

    def api(self, name: str) -> FakeApi:
        """Return the spec of a user's request."""
        return self.clusters[name]

    def _connect(self, kubeconfig: Path | None) -> ObjectApi:
        assert kubeconfig
        return self.clusters[kubeconfig.read_text()]

    def _create(self, argv: tuple[str, ...]) -> Result | str:
        given = dict(zip(argv[3::2], argv[4::2], strict=False))
        name = given["--name"]
        config = yaml.safe_load(Path(given["--config"]).read_text())
        self.networks.add(f"xpk-{name}")
        self.clusters[name] = FakeApi(_nodes(config), react=_react)
        if "kind create cluster" in self.fails:
            return Result(argv, 1, "", "ERROR: failed to create cluster: port taken\nCommand Output: a\nb")
        Path(given["--kubeconfig"]).write_text(name)
        return ""

    def _delete(self, argv: tuple[str, ...]) -> Result | str:
        if "kind delete cluster" in self.fails:
            return Result(argv, 1, "", "ERROR: failed to delete nodes")
        self.clusters.pop(argv[argv.index("--name") + 1], None)
        return ""

    def _remove_network(self, argv: tuple[str, ...]) -> str:
        self.networks.remove(argv[-1])
        return ""


def spec(tpu_type: str = "v5litepod-8", num_slices: int = 2, name: str = "dev") -> ClusterSpec:
    """Return what a user asks for."""
    return ClusterSpec(name=name, shape=find_shape(tpu_type), num_slices=num_slices)


def _nodes(config: Mapping[str, Any]) -> list[Obj]:
    nodes = []
    for index, node in enumerate(config["nodes"]):
        name = f"{config['name']}-worker{index}" if index else f"{config['name']}-control-plane"
        meta = {"name": name, "labels": node.get("labels", {}), "creationTimestamp": "2026-01-01T00:00:00Z"}
        status = {"capacity": {"cpu": "2"}, "conditions": [{"type": "Ready", "status": "True"}]}
        nodes.append({"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {}, "status": status})
    return nodes


def _react(kind: str, obj: Obj) -> None:
    """Act like the kubelet and the Deployment controller."""
    if kind == "Node":
        obj["status"]["allocatable"] = dict(obj["status"]["capacity"])
    if kind == "Deployment":
        obj["status"] = {"updatedReplicas": 1, "availableReplicas": 1}
        obj["metadata"]["managedFields"] = [{"manager": "xpk", "operation": "Apply"}]
