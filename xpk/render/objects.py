"""Objects of workloads, clusters and queues, rendered from specs as plain dicts.

Templates hold no logic: their values are computed here, every value goes through `tojson`, an unknown name is an
error, and the text is parsed back before use.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from xpk.model import capacities, names, sub_slices, super_slices
from xpk.model.accelerators import NODEPOOL_LABEL
from xpk.model.specs import ClusterSpec, ImageCacheSpec, QueueSpec, SliceQuota, WorkloadSpec
from xpk.render import mounts
from xpk.render.elastic import elastic_values, restart_policy
from xpk.render.environment import host_fields, host_values
from xpk.render.pause_program import hold_program
from xpk.render.peer_secret import mounted_peer_secret
from xpk.render.priority_limit import limit_view
from xpk.render.provisioning import admission_checks, flavor_labels, managed_resources, topologies, topology_of
from xpk.render.supervisor import START, is_supervised, restart_values
from xpk.render.template import render_template
from xpk_shared.supervisor.names import EXHAUSTED, MOVED

COORDINATOR_PORT = 8476  # JAX's default on TPU pods
MEGASCALE_PORT = 8080  # the DCN transport's default on GKE
CODE_FOLDER = "/xpk/code"  # where hosts in pods find the user's code
_NOBODY = 65532  # the usual name in images without users of their own
_SAVED = 143  # exit code of a host that was ended by SIGTERM after it had saved
_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"  # one Job on one node pool: a slice is never split
_ARCHIVE_FOLDER, _ARCHIVE = "/xpk/archive", "code.tar.gz"


def render_workload(spec: WorkloadSpec) -> list[dict[str, Any]]:
    """Return the objects of one workload: its code if that is a ConfigMap, then its JobSet."""
    code = [_code_object(spec)] if spec.code and spec.code.archive is not None else []
    return [*code, *render_template("jobset.yaml.j2", w=spec, h=_host_view(spec))]


def render_queues(
    *specs: ClusterSpec, namespace: str = "default", promised: Mapping[str, float] | None = None
) -> list[dict[str, Any]]:
    """Return the Kueue objects of a cluster: a flavor and a quota for each type, queue and priorities.

    `promised`: slices of each type allotted to other queues, which lend theirs and borrow the rest; None: there are
    no other queues.
    """
    unallotted = [
        SliceQuota(
            shape=spec.shape,
            num_slices=max(0, spec.quota_slices - promised_slices),
            queued=spec.queued,
            super_slicing=spec.super_slicing,
        )
        for spec, promised_slices in ((item, (promised or {}).get(item.shape.name, 0)) for item in specs)
    ]
    total = {spec.shape.name: spec.quota_slices for spec in specs}
    # Unallotted quota goes by priority, also when it is reclaimed.
    own_queue = _cluster_queue(names.CLUSTER_QUEUE, unallotted, "LowerPriority", cohort=promised is not None)
    if promised is not None:
        own_queue["annotations"] = {names.SLICES_ANNOTATION: json.dumps(total)}
    view = {
        "flavors": [
            {
                "name": spec.shape.name,
                "labels": flavor_labels(spec),
                "queued": spec.queued,
                "topology": topology_of(spec),
            }
            for spec in specs
        ],
        "namespace": namespace,
        "managed_resources": managed_resources(specs),
        "priorities": names.PRIORITIES,
        "topologies": list(topologies(specs)),
        "forms_slices": any(spec.super_slicing for spec in specs),
    }
    return render_template("kueue/queues.yaml.j2", q=view, c=own_queue)


def render_priorities() -> list[dict[str, Any]]:
    """Return PriorityClasses with the names of Google's xpk: pods of its workloads need them."""
    return render_template("kueue/priorities.yaml.j2", priorities=names.PRIORITIES)


def render_queue(spec: QueueSpec) -> list[dict[str, Any]]:
    """Return the objects of a queue with its own quota: a ClusterQueue, and a LocalQueue in each namespace."""
    queue = _cluster_queue(spec.name, spec.quotas, spec.reclaim, cohort=True)
    if spec.max_priority:
        queue["annotations"] = {names.MAX_PRIORITY_ANNOTATION: spec.max_priority}
    return render_template("kueue/queue.yaml.j2", q=spec, c=queue)


def render_priority_limit(queue: str, limit: str) -> list[dict[str, Any]]:
    """Return the policies by which an API server rejects workloads above a queue's priority limit."""
    return render_template("kueue/max-priority.yaml.j2", m=limit_view(queue, limit))


def render_local_queue(namespace: str) -> dict[str, Any]:
    """Return the LocalQueue that admits a namespace's workloads to the cluster's own queue."""
    return next(obj for obj in render_queues(namespace=namespace) if obj["kind"] == "LocalQueue")


def _cluster_queue(name: str, quotas: Sequence[SliceQuota], reclaim: str, *, cohort: bool) -> dict[str, Any]:
    """Return the values of `cluster-queue.yaml.j2`. Beyond a queue's own quota, priority decides."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for quota in quotas:
        entry: dict[str, Any] = {"name": quota.shape.resource, "nominalQuota": _units(quota, quota.num_slices)}
        if quota.borrowing_limit is not None:
            entry["borrowingLimit"] = _units(quota, quota.borrowing_limit)
        if quota.lending_limit is not None:
            entry["lendingLimit"] = _units(quota, quota.lending_limit)
        groups.setdefault(quota.shape.resource, []).append({"name": quota.shape.name, "resources": [entry]})
    preemption: dict[str, Any] = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Never"}
    if cohort:
        preemption["reclaimWithinCohort"] = reclaim
        preemption["borrowWithinCohort"] = {"policy": "Never" if reclaim == "Never" else "LowerPriority"}
    return {
        "name": name,
        "annotations": None,
        "cohort": names.COHORT if cohort else None,
        "preemption": preemption,
        "checks": admission_checks(quotas),
        "groups": groups,
    }


def _units(quota: SliceQuota, num_slices: float) -> int:
    return round(num_slices * quota.shape.units)


def render_kind(spec: ClusterSpec, *, nodes_per_slice: int, spare_slices: int, shared_folder: str) -> dict[str, Any]:
    """Return kind's configuration: a control plane, and worker nodes labeled as GKE labels a slice's."""
    labels = {names.TYPE_ANNOTATION: spec.shape.name, **spec.shape.node_labels}
    workers = []
    for index in range(spec.num_slices + spare_slices):
        spare = {names.SPARE_LABEL: "true"} if index >= spec.num_slices else {}
        pool = {NODEPOOL_LABEL: names.node_pool_name(spec.name, index)}
        workers += [pool | labels | spare] * nodes_per_slice
    view = {
        "name": spec.name,
        "workers": workers,
        "resource": spec.shape.resource,
        "shared_folder": shared_folder,
    }
    (config,) = render_template("kind/cluster.yaml.j2", k=view)
    return config


def render_image_cache(spec: ImageCacheSpec) -> list[dict[str, Any]]:
    """Return the objects that make nodes pull images: a Job with a deadline, the program to run, a DaemonSet.

    The Job comes first and will own the others; the owner reference needs its UID, so it cannot be rendered here.
    """
    selector = {names.IMAGE_CACHE_LABEL: spec.name}
    labels = {"app.kubernetes.io/managed-by": "xpk", **selector}
    view = {
        "metadata": {"name": spec.name, "namespace": spec.namespace, "labels": labels},
        "selector": selector,
        "seconds": spec.seconds,
        "pools": sorted(spec.pools),
        "taints": sorted(spec.taints),
        "images": {f"image-{index}": image for index, image in enumerate(spec.images)},
        "have_first": spec.have_first,
        "image_pull_secret": spec.image_pull_secret,
        "program": {"hold": base64.b64encode(hold_program(spec.architecture)).decode()},
        # Pod security "restricted".
        "pod_security": {
            "runAsNonRoot": True,
            "runAsUser": _NOBODY,
            "runAsGroup": _NOBODY,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "container_security": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    return render_template("image-cache.yaml.j2", c=view)


def to_yaml(objects: list[dict[str, Any]]) -> str:
    """Return objects as the multi-document YAML that `kubectl apply -f -` takes."""
    # ASCII: PyYAML folds U+0085 and its like when it may write them as they are.
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, allow_unicode=False, width=120, explicit_start=True)


class _Dumper(yaml.SafeDumper):
    """YAML dumper that writes programs as literal blocks where YAML allows."""


_NUMBER = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F]+|0[oObB]?[0-9]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)")


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if text.count("\n") > 1 else "'" if _needs_quotes(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _needs_quotes(text: str) -> bool:
    """Return whether kubectl's parser may take an unquoted text for a boolean or a number; PyYAML knows fewer."""
    return text in ("y", "Y", "n", "N") or _NUMBER.fullmatch(text.replace("_", "")) is not None


_Dumper.add_representer(str, _text)


def _host_view(spec: WorkloadSpec) -> dict[str, Any]:
    """Return the values of `jobset.yaml.j2` other than the fields of the spec."""
    coordinator, supervised = names.host_name(spec.name, 0, 0), is_supervised(spec)
    hosts = (names.host_name(spec.name, "$(MEGASCALE_SLICE_ID)", host) for host in range(spec.shape.hosts))
    unpack, command = _unpack(spec), [_literal(part) for part in spec.command]
    fatal = {*spec.fatal_exit_codes, *([EXHAUSTED] if spec.restart_in_place else [])}
    uncounted = [*([MOVED] if spec.copy else []), _SAVED]
    return {
        "queue": names.HELD_QUEUE if spec.copy else spec.queue,
        "subdomain": names.subdomain(spec.name),
        "annotations": _annotations(spec),
        "pod_annotations": _pod_annotations(spec),
        "fatal_exit_codes": sorted(fatal),
        "uncounted_exit_codes": uncounted,
        "uncounted_messages": ["condition DisruptionTarget", *(f"exit code {code} " for code in uncounted)],
        "judged_exit_codes": sorted({*uncounted, *fatal}),  # codes that have rules of their own
        "node_selector": {
            **_type_selector(spec),
            **capacities.node_selector(spec.capacity),
        },
        "node_affinity": _node_affinity(spec),
        "no_topology": names.NO_TOPOLOGY_LABEL,
        "tolerated": {**capacities.tolerated(spec.capacity), **_tolerated_quarantine(spec)},
        "command": [*START] if supervised else command,
        "args": command if supervised else [],
        "working_dir": CODE_FOLDER if unpack else spec.working_dir,
        "pod_security": _pod_security(spec),
        "container_security": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            **({"readOnlyRootFilesystem": True} if spec.read_only_root else {}),
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "unpack": unpack,
        "output_dir": _literal(spec.output_dir),
        "node_folder": None if spec.target.on_this_machine else spec.node_folder,
        "volumes": mounts.volumes(spec.mounts),
        "mounts": mounts.volume_mounts(spec.mounts),
        "temporary_folder": mounts.temporary_folder(spec),
        # Ray's, in memory: a pod has 64 MiB of that otherwise.
        "object_store": spec.ray and not spec.target.on_this_machine and spec.node_folder != names.NODE_MEMORY,
        "coordinator_address": f"{coordinator}:{COORDINATOR_PORT}",
        "megascale_address": f"{coordinator}:{MEGASCALE_PORT}",
        "worker_hostnames": ",".join(hosts),
        "restart": restart_policy(spec),
        "restarts": restart_values(spec) | elastic_values(spec, coordinator, COORDINATOR_PORT),
        "env": {key: _literal(value) for key, value in host_values(spec).items()},
        "env_fields": host_fields(spec),
        "peer_secret": mounted_peer_secret(spec),  # the local control plane creates its own
    }


def _pod_security(spec: WorkloadSpec) -> dict[str, Any] | None:
    """Return the pods' security context, None to keep the image's user; containers have their own."""
    if spec.run_as_user is None:
        return {"runAsNonRoot": True} if spec.non_root else None
    uid = spec.run_as_user
    # Volumes of its own are writable for it. Large claims are not walked through at each start.
    groups = {"fsGroup": uid, "fsGroupChangePolicy": "OnRootMismatch"}
    return {"runAsNonRoot": True, "runAsUser": uid, **groups}


def _annotations(spec: WorkloadSpec) -> dict[str, str]:
    exclusive = {} if spec.within else {_EXCLUSIVE: NODEPOOL_LABEL}  # Kueue places parts of slices by itself
    output = {names.OUTPUT_ANNOTATION: spec.output_dir} if spec.output_dir else {}
    annotations = {**exclusive, **output, names.TYPE_ANNOTATION: spec.shape.name}
    if spec.code:
        annotations[names.CODE_ANNOTATION] = spec.code.name
    if spec.max_run_seconds:
        annotations[names.RUN_SECONDS_ANNOTATION] = str(spec.max_run_seconds)
    if spec.user:
        annotations[names.USER_ANNOTATION] = spec.user
    if spec.ray:
        annotations[names.LAUNCHER_ANNOTATION] = "ray"
    if spec.copy:
        annotations |= {names.COPY_ANNOTATION: json.dumps(asdict(spec.copy)), names.EPOCH_ANNOTATION: "0"}
    return annotations


def _pod_annotations(spec: WorkloadSpec) -> dict[str, str]:
    # Kueue may declare the pod dead if its node is lost; without this the JobSet waits forever.
    fenced = {"kueue.x-k8s.io/safe-to-forcefully-delete": "true"} if spec.target.fenced else {}
    return fenced | mounts.pod_annotations(spec.mounts) | _placement(spec)


def _placement(spec: WorkloadSpec) -> dict[str, str]:
    """Return the pod annotations of a workload on parts of slices, or on slices formed from cubes."""
    if spec.within is None:
        return {}
    return super_slices.placement(spec.shape) if _is_formed(spec) else sub_slices.placement(spec.shape)


def _tolerated_quarantine(spec: WorkloadSpec) -> dict[str, str]:
    return {names.QUARANTINE_TAINT: "true"} if spec.tolerates_quarantine else {}


def _node_affinity(spec: WorkloadSpec) -> dict[str, Any] | None:
    """Return the affinity to the chosen slices, None if any will do."""
    if not spec.node_pools:
        return None
    term = {"matchExpressions": [{"key": NODEPOOL_LABEL, "operator": "In", "values": list(spec.node_pools)}]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}


def _type_selector(spec: WorkloadSpec) -> Mapping[str, str]:
    """Return the node labels of the slices that a workload uses."""
    return super_slices.node_selector(spec.shape) if _is_formed(spec) else (spec.within or spec.shape).node_labels


def _is_formed(spec: WorkloadSpec) -> bool:
    """Return whether the workload's slices are formed from cubes."""
    return spec.within is not None and spec.within.family == super_slices.FAMILY


def _unpack(spec: WorkloadSpec) -> dict[str, Any] | None:
    """Return the command of the init container that unpacks the code; None where none is needed."""
    code = spec.code
    if code is None or spec.target.on_this_machine:
        return None
    configmap = code.name if code.archive is not None else None
    source = f"{_ARCHIVE_FOLDER}/{_ARCHIVE}" if configmap else code.source
    command = ["python3", "-c", _unpack_program(), source, code.name, CODE_FOLDER]
    return {
        "command": [_literal(part) for part in command],
        "configmap": configmap,
        "archive_folder": _ARCHIVE_FOLDER,
        "folder": CODE_FOLDER,
        # The only user variable that affects how a bucket is reached.
        "env": {key: _literal(value) for key, value in spec.env.items() if key == "STORAGE_EMULATOR_HOST"},
    }


@cache
def _unpack_program() -> str:
    return Path(__file__).with_name("unpack.py").read_text(encoding="utf-8")


def _code_object(spec: WorkloadSpec) -> dict[str, Any]:
    """Return the ConfigMap of a workload's code. No template: YAML is slow over a megabyte of base64."""
    if spec.code is None or spec.code.archive is None:
        raise ValueError("the code of this workload travels otherwise")
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": spec.code.name,
            "namespace": spec.namespace,
            "labels": {"app.kubernetes.io/managed-by": "xpk", names.KIND_LABEL: spec.code.name},
        },
        "immutable": True,
        "binaryData": {_ARCHIVE: base64.b64encode(spec.code.archive).decode()},
    }


def _literal(value: str) -> str:
    """Escape a value so that Kubernetes' expansion of `$(NAME)` leaves it unchanged."""
    return re.sub(r"\$(?=[$(])", "$$", value)
