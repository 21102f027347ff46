"""Compute Engine's instances behind the nodes of a cluster."""

from __future__ import annotations

import random
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from xpk.api.base import Obj, Objs
from xpk.capacity.fencing.machines import Machine, MachineState
from xpk.capacity.gke.cloud.client import Google, maybe
from xpk.capacity.nodes.out_of_service import parse_time

_PROVIDER_ID = re.compile(r"gce://([a-z0-9.:-]+)/([a-z0-9-]+)/([a-z0-9-]+)")
_INSTANCE_ID = "container.googleapis.com/instance_id"  # GKE's annotation of nodes
# STOPPING, SUSPENDED and REPAIRING are not among them: such a machine still runs, or continues where it was.
_GONE = ("TERMINATED", "STOPPED", "DEPROVISIONING")
_MOST, _AT_ONCE = 256, 16  # machines for each call, and requests at once


def read_machines(google: Google, project: str, nodes: Objs) -> dict[str, Machine]:
    """Return the machines of nodes by the nodes' names, of some of them if they are many. Raises XpkError."""
    google.check()
    chosen = nodes if len(nodes) <= _MOST else random.Random().sample(nodes, _MOST)  # noqa: S311  # no secret depends on it
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="xpk-machines") as executor:
        machines = list(executor.map(partial(_read, google, project), chosen))
    return {str(node["metadata"]["name"]): machine for node, machine in zip(chosen, machines, strict=True)}


def _read(google: Google, project: str, node: Obj) -> Machine:
    match = _PROVIDER_ID.fullmatch(str(node["spec"].get("providerID", "")))
    if match is None or match[1] != project:
        return Machine(MachineState.UNKNOWN, "its provider ID names no instance of the project")
    path = f"projects/{project}/zones/{match[2]}/instances/{match[3]}"
    instance = maybe(lambda: google.compute(path))
    if instance is None:
        return Machine(MachineState.GONE, "its instance was deleted")
    instance_id = (node["metadata"].get("annotations") or {}).get(_INSTANCE_ID)
    if instance_id and str(instance.get("id")) != instance_id:
        return Machine(MachineState.GONE, "its instance was replaced")
    status = str(instance.get("status", ""))
    if status in _GONE:
        return Machine(MachineState.GONE, f"its instance is {status}", parse_time(instance.get("lastStopTimestamp")))
    state = MachineState.RUNNING if status == "RUNNING" else MachineState.UNKNOWN
    return Machine(state, f"its instance is {status}")
