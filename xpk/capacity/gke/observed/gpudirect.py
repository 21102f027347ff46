"""Objects for the data NICs of GPU hosts: network objects and NCCL plugins.

The plugins come from Google's DaemonSets at a fixed commit; `--gpudirect-manifests` names a folder or https URL with
the same files instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from xpk.api.base import Obj, ObjectApi
from xpk.capacity.controllers import install, release_manifest
from xpk.capacity.gke.desired.networks import DATA_NICS
from xpk.capacity.gke.observed.state import shape_of_pool
from xpk.capacity.plan.executor import Step
from xpk.model.errors import MissingToolError, NotFoundError, UsageError
from xpk.model.specs import ClusterSpec

Connect = Callable[[], ObjectApi]
Config = Mapping[str, Any]

_COMMIT = "992db81257553607f1477945f1b3219632991829"  # of 2026-06-09
_URL = f"https://raw.githubusercontent.com/GoogleCloudPlatform/container-engine-accelerators/{_COMMIT}"
_TCPX = ("nccl-tcpx-installer", "gpudirect-tcpx/nccl-tcpx-installer.yaml")
_TCPXO = ("nccl-tcpxo-installer", "gpudirect-tcpxo/nccl-tcpxo-installer.yaml")
_RDMA = ("nccl-rdma-installer", "gpudirect-rdma/nccl-rdma-installer.yaml")
_DEVICES = ("device-injector", "nri_device_injector/nri-device-injector.yaml")  # GPUs in the daemon's container
INSTALLERS = {
    "h100-80gb": (_TCPX, _DEVICES),
    "h100-mega-80gb": (_TCPXO, _DEVICES),
    "h200-141gb": (_RDMA,),
    "b200": (_RDMA,),
}
_SHA256 = {
    "gpudirect-tcpx/nccl-tcpx-installer.yaml": "8bbaeb56fccc3e42abcb09a3e56086ff813ed57721dd4c09aa7ac9894922d7b5",
    "gpudirect-tcpxo/nccl-tcpxo-installer.yaml": "c5eee59c22b48e01cddabd7d2a51a4903baeb4cf93e6949bc72aa2135771653e",
    "gpudirect-rdma/nccl-rdma-installer.yaml": "0c60c38129ff19bbe471252ab07dcda353192ff1bdbeb51c2138d3405de9db5a",
    "nri_device_injector/nri-device-injector.yaml": "44b410770b9528737172b61f5ad64f0c53e469e5066ac471863caa0ef2965d18",
}
_FROM_FOLDER = "pass --gpudirect-manifests FOLDER, a folder that has it"
_NAMESPACE = "kube-system"
_API = "networking.gke.io/v1"
_READY_SECONDS, _POLL_SECONDS = 300.0, 2.0


def network_configs(pools: Iterable[Mapping[str, Any]]) -> list[Config]:
    """Return the data networks of A3 High's and Mega's node pools, one per NIC: those of the pool with most."""
    ours = (pool for pool in pools if (shape := shape_of_pool(pool)) and shape.family in DATA_NICS)
    configs = [pool.get("network_config", {}).get("additional_node_network_configs", []) for pool in ours]
    return max(configs, key=len, default=[])


def network_objects(configs: Sequence[Config]) -> list[Obj]:
    """Return the objects by which pods refer to data networks: `vpc1`, `vpc2` and so on, as in Google's documents."""
    objects: list[Obj] = []
    for number, config in enumerate(configs, start=1):
        name = f"vpc{number}"
        subnetwork, network = (str(config[key]).rpartition("/")[2] for key in ("subnetwork", "network"))
        spec = {"vpc": network, "vpcSubnet": subnetwork, "deviceMode": "NetDevice"}
        reference = {"group": "networking.gke.io", "kind": "GKENetworkParamSet", "name": name}
        objects += [
            {"apiVersion": _API, "kind": "GKENetworkParamSet", "metadata": {"name": name}, "spec": spec},
            {
                "apiVersion": _API,
                "kind": "Network",
                "metadata": {"name": name},
                "spec": {"type": "Device", "parametersRef": reference},
            },
        ]
    return objects


def steps_for(
    api: ObjectApi | None,
    planned: Sequence[ClusterSpec],
    configs: Sequence[Config],
    *,
    connect: Connect,
    after: Sequence[str],
    manifests: str | None,
    pause: install.Pause,
) -> list[Step]:
    """Return the missing steps for the data NICs of GPU hosts.

    `api`: None if it is not reachable yet. `manifests`: folder or URL with the plugins' manifests, None for Google's.
    """
    steps: list[Step] = []
    objects = [] if _named(api, configs) else network_objects(configs)
    objects = [obj for obj in objects if _lacks(api, obj["kind"], obj["metadata"]["name"])]
    if objects:
        title = f"let pods use the data networks vpc1 to vpc{len(configs)}"
        apply = partial(_apply, connect, objects, pause)
        then = "# then, in the cluster: a GKENetworkParamSet and a Network for each data network"
        steps.append(Step(title, apply, key="gpudirect:networks", after=tuple(after), commands=(then,)))
    installers = dict(pair for spec in planned for pair in INSTALLERS.get(spec.shape.family, ()))
    for name, file in installers.items():
        if _lacks(api, "DaemonSet", name, _NAMESPACE):
            source = f"{manifests or _URL}/{file}"
            if problems := release_manifest.problems_of(name, source, pinned=_SHA256[file]):
                raise UsageError(problems[0], problems=problems, hint=_FROM_FOLDER)
            install_it = partial(_install, connect, name, source, _SHA256[file], pause)
            commands = (f"kubectl apply --server-side -f {_URL}/{file}",)
            steps.append(
                Step(f"install {name}", install_it, key=f"install:{name}", after=tuple(after), commands=commands)
            )
    return steps


def _named(api: ObjectApi | None, configs: Sequence[Config]) -> bool:
    """Return whether other objects already expose the data networks to pods, under other names."""
    try:
        objects = api.list("GKENetworkParamSet") if api and configs else []
    except (NotFoundError, MissingToolError):  # a cluster without multi-networking has no such kind
        return False
    named = {obj["spec"].get("vpcSubnet") for obj in objects if not obj["metadata"]["name"].startswith("vpc")}
    return any(str(config["subnetwork"]).rpartition("/")[2] in named for config in configs)


def _lacks(api: ObjectApi | None, kind: str, name: str, namespace: str | None = None) -> bool:
    if api is None:
        return True
    try:
        api.get(kind, name, *([namespace] if namespace else []))
    except (NotFoundError, MissingToolError):
        return True
    return False


def _install(connect: Connect, name: str, source: str, sha256: str, pause: install.Pause) -> None:
    _apply(connect, release_manifest.read_objects(name, source, hint=_FROM_FOLDER, pinned=sha256), pause)


def _apply(connect: Connect, objects: Sequence[Obj], pause: install.Pause) -> None:
    """Apply objects; a new cluster may define their kinds only a while after it starts."""
    api, waited = connect(), 0.0
    for obj in objects:
        while True:
            try:
                api.apply(obj)
                break
            except (NotFoundError, MissingToolError):
                if waited >= _READY_SECONDS:
                    raise
            pause(_POLL_SECONDS)
            waited += _POLL_SECONDS
