"""A user's machine with a kubeconfig, and the cluster of another tool."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.api.kubeconfigs import kubeconfig
from tests.capacity.adapted.nodes import node
from tests.capacity.machine import CONTROLLER, _react
from xpk.api.base import Obj, ObjectApi
from xpk.capacity.adapted.options import AdaptedOptions
from xpk.capacity.adapted.provider import AdaptedProvider
from xpk.capacity.nodes.emulated import Adaptation
from xpk.capacity.plan.plan import Plan
from xpk.model.accelerators import NODEPOOL_LABEL
from xpk.testing import FakeApi


def gke() -> list[Obj]:
    """Return two complete slices, one with a missing host, and one other node."""
    pools = {"tpu-np-0": 2, "tpu-np-1": 2, "tpu-np-2": 1}
    hosts = [
        node(f"{pool}-{host}", pool, 4, providerID="gce://p/z/i")
        for pool, count in pools.items()
        for host in range(count)
    ]
    default = node("default-0")
    default["metadata"]["labels"][NODEPOOL_LABEL] = "default-pool"
    return [default, *hosts]


class Site:
    """A user's machine: a kubeconfig with one context, and its cluster."""

    def __init__(self, folder: Path, nodes: list[Obj]) -> None:
        self.state, self.opened = folder / "state", list[object]()
        self.api = FakeApi(nodes, react=_react_but_gke)
        self.user = folder / "user-kubeconfig"
        self.user.write_text(yaml.safe_dump(kubeconfig("theirs", current="theirs")))
        self.manifests: dict[str, str] = {}
        for name, version in (("jobset", "v0.12.0"), ("kueue", "v0.19.2")):
            file = folder / f"{name}.yaml"
            file.write_text(CONTROLLER.format(name=name, version=version))
            self.manifests[f"{name}_manifest"] = str(file)

    @property
    def provider(self) -> AdaptedProvider:
        return AdaptedProvider(
            self.state,
            options=AdaptedOptions(**self.manifests),
            user_kubeconfig=self.user,
            connect=self._connect,
            pause=lambda seconds: None,
        )

    def adapt(self, *, emulated: bool = False, **wanted: object) -> list[str]:
        done: list[str] = []
        self.plan(emulated=emulated, **wanted).carry_out(done.append)
        return done

    def plan(self, **wanted: object) -> Plan:
        return self.provider.plan_adapt(Adaptation(name="mine", **wanted))  # type: ignore[arg-type]

    def _connect(self, kubeconfig: Path | None, context: str | None = None) -> ObjectApi:
        self.opened.append(kubeconfig or context)
        return self.api


def _react_but_gke(kind: str, obj: Obj) -> None:
    if kind == "Deployment" or (kind == "Node" and obj["metadata"]["name"].startswith("worker")):
        _react(kind, obj)
