"""A host's process: arguments, environment and working folder, as the kubelet would set them."""

from __future__ import annotations

import os
import re
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path

import xpk_run
from xpk.api.base import Obj
from xpk.local import objects as o
from xpk.local.shim import LAST_WORD
from xpk.model.errors import UsageError
from xpk.model.names import LAUNCH_PORT, PEER_SECRET_VARIABLE, SUPERVISOR_FILE
from xpk_shared import supervisor
from xpk_shared.supervisor.names import PORT as SUPERVISOR_PORT
from xpk_shared.supervisor.names import PROGRESS, REGISTRY, SLICE_ATTEMPT
from xpk_shared.supervisor.progress import progress_path

MARK = "XPK_LOCAL_POD"  # lets a host be found by its environment when its supervisor is gone
_SUPERVISOR = str(Path(supervisor.__file__).with_name("__main__.py"))  # takes the place of the file in pods
# Below the ports that systems choose for connections.
_SUPERVISOR_PORTS, _PROGRAM_PORTS = range(20_000, 24_000), range(24_000, 32_000, 4)
_COORDINATOR, _LAUNCH_PORTS = "XPK_COORDINATOR_ADDRESS", ("MASTER_PORT", "JAX_COORDINATOR_PORT")
_EMPTY = "work"  # in the pod's folder: the default working folder of a host, as in a container
_MODULES = "modules"  # in the pod's folder
_INHERITED = ("HOME", "USER", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "TZ")
_REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")
_FIELD = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
_FIELDS = {
    "metadata.name": ("metadata", "name"),
    "metadata.namespace": ("metadata", "namespace"),
    "metadata.uid": ("metadata", "uid"),
    "status.podIP": ("status", "podIP"),
    "spec.nodeName": ("spec", "nodeName"),
}


def expand(text: str, values: Mapping[str, str]) -> str:
    """Expand `$(NAME)`; `$$` stands for `$`, and an unknown name is left unchanged."""
    return _REFERENCE.sub(lambda m: "$" if m[1] is None else values.get(m[1], m[0]), text)


def is_field(path: str) -> bool:
    """Return whether the local downward API supports a field."""
    return path in _FIELDS or bool(_FIELD.fullmatch(path))


def _field(pod: Obj, path: str) -> str:
    match = _FIELD.fullmatch(path)
    if match:
        return str(pod["metadata"].get(match[1], {}).get(match[2], ""))
    if path not in _FIELDS:
        raise UsageError(f"fieldPath '{path}' is not supported by the local control plane")
    section, key = _FIELDS[path]
    return str(pod.get(section, {}).get(key, ""))


def _resolve(text: str, pod: Obj, addresses: Mapping[str, str]) -> str:
    """Replace DNS names of a JobSet's pods by their loopback addresses."""
    subdomain, namespace = re.escape(pod["spec"]["subdomain"]), re.escape(pod["metadata"]["namespace"])
    suffix = rf"(?:\.{namespace}\.svc(?:\.cluster\.local)?)?"
    name = re.compile(rf"(?<![\w.-])([a-z0-9-]+)\.{subdomain}{suffix}(?![\w-])(?!\.\w)")
    return name.sub(lambda m: addresses.get(m[1], m[0]), text)


def launch_spec(pod: Obj, addresses: Mapping[str, str], folder: Path, workloads: str, secret: Path) -> Obj:
    """Return the launch parameters for a host's supervisor; `addresses` maps host names.

    `secret`: the file with the secret that the hosts of its JobSet share.
    """
    container = pod["spec"]["containers"][0]
    variables: dict[str, str] = {}
    for item in container.get("env", ()):
        source = item.get("valueFrom", {}).get("fieldRef")
        variables[item["name"]] = (
            _field(pod, source["fieldPath"]) if source else expand(item.get("value", ""), variables)
        )
    command = [expand(part, variables) for part in [*container["command"], *container.get("args", ())]]
    job = variables.get("XPK_JOB_ID", "")
    if SLICE_ATTEMPT in variables:
        addresses = {**addresses, _first_host(pod): _workload_address(job)}
    variables = {name: _resolve(value, pod, addresses) for name, value in variables.items()}
    variables |= _own_ports(variables, job)
    inherited = {k: v for k, v in os.environ.items() if k in _INHERITED or k.startswith("LC_")}
    interpreter = os.path.dirname(sys.executable)
    # The bundled packages, and for a Python other than xpk's own a folder with nothing but xpk_run.
    paths = (workloads, variables.get("PYTHONPATH"), _write_modules(folder))
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    base = {"PATH": f"{interpreter}:{os.environ.get('PATH', os.defpath)}", MARK: str(folder)}
    base |= {PEER_SECRET_VARIABLE: str(secret), "XPK_TERMINATION_LOG": str(folder / LAST_WORD)}
    if REGISTRY in variables:
        variables[REGISTRY] = f"{_workload_address(job)}:{variables[REGISTRY].rpartition(':')[2]}"
    base[SUPERVISOR_PORT] = str(_port(_SUPERVISOR_PORTS, job))  # workloads of CPU types may share a host's address
    output, empty = variables.get("XPK_OUTPUT_DIR", ""), folder / _EMPTY
    if os.path.isabs(output):
        os.makedirs(output, exist_ok=True)
    if progress := progress_path(variables):
        base[PROGRESS] = progress  # also for commands that no supervisor runs
    for path in (folder, empty):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {
        "command": [_resolve(part, pod, addresses).replace(SUPERVISOR_FILE, _SUPERVISOR) for part in command],
        "environment": {**inherited, **base, **variables},
        "folder": container.get("workingDir") or str(empty),
    }


def _write_modules(folder: Path) -> str:
    """Create the folder of the module by which programs report their progress; return its path."""
    source = Path(xpk_run.__file__)
    modules = folder / _MODULES
    modules.mkdir(mode=0o700, parents=True, exist_ok=True)
    (modules / source.name).write_bytes(source.read_bytes())
    return str(modules)


def _own_ports(variables: Mapping[str, str], job: str) -> dict[str, str]:
    """Return the variables that name ports, with ports of the workload's own.

    JAX and PyTorch listen at all addresses of a machine, also at those of the hosts of other workloads.
    """
    port, own = _port(_PROGRAM_PORTS, job), {}
    if address := variables.get(_COORDINATOR, "").rpartition(":")[0]:
        own[_COORDINATOR] = f"{address}:{port}"  # the bundled trainer uses the next one, too
    return own | {name: str(port + 2) for name in _LAUNCH_PORTS if variables.get(name) == str(LAUNCH_PORT)}


def _port(ports: range, job: str) -> int:
    return ports[zlib.crc32(job.encode()) % len(ports)]


def _workload_address(job: str) -> str:
    """Return an address of the workload's own, which stays the same when slice 0 moves to other nodes.

    Hosts do not resolve names again. Addresses of nodes begin at 127.16.
    """
    number = zlib.crc32(job.encode())
    return f"127.{1 + number % 15}.{number // 15 % 256}.{1 + number // 3840 % 254}"


def _first_host(pod: Obj) -> str:
    """Return the name of slice 0 host 0 of a pod's workload."""
    return o.label(pod, f"{o.JOBSET}coordinator").partition(".")[0]


def own_addresses(pod: Obj) -> list[str]:
    """Return the addresses at which a host's programs may listen. Slice 0 host 0 may also have its workload's."""
    own = [str(address)] if (address := pod["status"].get("podIP")) else []
    has_another = any(item["name"] == SLICE_ATTEMPT for item in pod["spec"]["containers"][0].get("env", ()))
    if has_another and pod["spec"]["hostname"] == _first_host(pod):
        own.append(_workload_address(o.label(pod, f"{o.JOBSET}jobset-uid")))
    return own


def addresses_of(pods: list[Obj]) -> dict[str, str]:
    """Return the address of each host name."""
    newest = sorted(pods, key=lambda pod: str(pod["metadata"]["uid"]))
    return {pod["spec"]["hostname"]: str(pod["status"].get("podIP", "")) for pod in newest if not o.is_terminating(pod)}
