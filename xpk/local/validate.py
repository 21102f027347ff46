"""Fields that the local control plane supports. Any other field is rejected by its path, never silently dropped."""

from __future__ import annotations

import copy
import re
from typing import Any

from xpk.api.base import Obj
from xpk.api.cluster_queues import allotments, cohort_of
from xpk.api.kinds import KINDS
from xpk.local.environment import is_field
from xpk.local.objects import QUEUE_LABEL, coordinator_address, label, quantity
from xpk.model.errors import MissingToolError, UsageError

_ANY = object()  # deliberately ignored, or free-form
_TEXTS = {str: str}
_META = {"labels": _TEXTS, "annotations": _TEXTS}
_ENV = {"name": str, "value": str, "valueFrom": {"fieldRef": {"fieldPath": str, "apiVersion": str}}}
_CONTAINER = {
    **{"name": str, "command": [str], "args": [str], "workingDir": str, "env": [_ENV]},
    "resources": {"limits": _ANY, "requests": _ANY},
    **dict.fromkeys(("image", "imagePullPolicy", "securityContext", "ports"), _ANY),
}
_TERM = {"matchExpressions": [{"key": str, "operator": {"In"}, "values": [str]}]}
_AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_TERM]}}}
_POD = {
    **{"restartPolicy": {"Never"}, "terminationGracePeriodSeconds": int, "nodeSelector": _TEXTS},
    "affinity": _AFFINITY,
    "containers": [_CONTAINER],
    **dict.fromkeys(
        ("automountServiceAccountToken", "tolerations", "topologySpreadConstraints", "securityContext"), _ANY
    ),
    **dict.fromkeys(("serviceAccountName", "imagePullSecrets", "enableServiceLinks"), _ANY),
}
_EXIT_CODES = {"containerName": str, "operator": {"In", "NotIn"}, "values": [int]}
_POD_CONDITION = {"type": str, "status": str}
_POD_RULE = {
    "action": {"FailJob", "Ignore", "Count"},
    "onExitCodes": _EXIT_CODES,
    "onPodConditions": [_POD_CONDITION],
}
_JOB = {
    **{"parallelism": int, "completions": int, "completionMode": {"Indexed"}, "backoffLimit": int},
    **{"podReplacementPolicy": {"Failed"}, "podFailurePolicy": {"rules": [_POD_RULE]}},
    "template": {"metadata": _META, "spec": _POD},
}
_REASONS = {"BackoffLimitExceeded", "PodFailurePolicy"}
_ACTIONS = {
    "FailJobSet",
    *("RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"),
    *("RestartJob", "RestartJobAndIgnoreMaxRestarts"),
}
_RULE = {
    **{"name": str, "action": _ACTIONS, "onJobFailureReasons": [_REASONS]},
    **{"onJobFailureMessagePatterns": [str], "targetReplicatedJobs": [str]},
}
_FAILURE_POLICY = {"maxRestarts": int, "restartStrategy": {"Recreate", "BlockingRecreate"}, "rules": [_RULE]}
_SLICES = {"name": str, "replicas": int, "template": {"metadata": _META, "spec": _JOB}}
_PREEMPTION = {
    **{"withinClusterQueue": {"LowerPriority", "Never"}, "reclaimWithinCohort": {"Any", "LowerPriority", "Never"}},
    "borrowWithinCohort": {"policy": {"LowerPriority", "Never"}},
}
_QUOTA = {"name": str, **dict.fromkeys(("nominalQuota", "borrowingLimit", "lendingLimit"), _ANY)}
_GROUP = {"coveredResources": [str], "flavors": [{"name": str, "resources": [_QUOTA]}]}
_SPECS: dict[str, Any] = {
    "JobSet": {
        **{"suspend": bool, "ttlSecondsAfterFinished": int, "replicatedJobs": [_SLICES]},
        "network": {"enableDNSHostnames": bool, "publishNotReadyAddresses": bool, "subdomain": str},
        "successPolicy": {"operator": {"All", "Any"}, "targetReplicatedJobs": [str]},
        "coordinator": {"replicatedJob": str, "jobIndex": int, "podIndex": int},
        "failurePolicy": _FAILURE_POLICY,
    },
    "ClusterQueue": {
        **{"namespaceSelector": {}, "queueingStrategy": {"BestEffortFIFO"}, "preemption": _PREEMPTION},
        **{"cohortName": str, "resourceGroups": [_GROUP]},
    },
    "LocalQueue": {"clusterQueue": str},
    "ResourceFlavor": {"nodeLabels": _TEXTS},
    "WorkloadPriorityClass": {},
    "Node": _ANY,
    "Event": _ANY,
}
IMMUTABLE = ("replicatedJobs", "network", "failurePolicy", "successPolicy", "coordinator")
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_TYPE_NAMES = {str: "text", int: "a number", bool: "true or false"}


def _walk(value: object, schema: Any, path: str, problems: list[str]) -> None:
    """Compare a value with its schema: a type, a set of choices, a list of one, or a dict of fields."""
    if isinstance(schema, set):
        if value not in schema:
            choices = " or ".join(sorted(schema))
            problems.append(f"{path} {value!r} is not supported by the local control plane (use {choices})")
    elif isinstance(schema, list):
        if not isinstance(value, list):
            problems.append(f"{path} must be a list")
            return
        for i, item in enumerate(value):
            _walk(item, schema[0], f"{path}[{i}]", problems)
    elif isinstance(schema, dict):
        if not isinstance(value, dict):
            problems.append(f"{path} must be an object")
            return
        for key, item in value.items():
            if key in schema or str in schema:
                _walk(item, schema.get(key, schema.get(str)), f"{path}.{key}", problems)
            else:
                problems.append(f"{path}.{key} is not supported by the local control plane")
    elif schema is not _ANY and type(value) is not schema:
        problems.append(f"{path} must be {_TYPE_NAMES[schema]}")


def _check_pod(pod: Obj, path: str, problems: list[str]) -> None:
    containers = pod.get("containers") or []
    if len(containers) != 1:
        problems.append(f"{path}.containers must hold exactly one container")
        return
    if not containers[0].get("command"):
        problems.append(f"{path}.containers[0].command is required: image entrypoints are not used here")
    for item in containers[0].get("env", ()):
        field = item.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "metadata.name")
        if not is_field(field):
            problems.append(f"{path}.containers[0].env: the field {field} is not supported by the local control plane")
    for part in ("limits", "requests"):
        for name, amount in containers[0].get("resources", {}).get(part, {}).items():
            try:
                quantity(amount)
            except UsageError as error:
                problems.append(f"{path}.containers[0].resources.{part}.{name}: {error}")


def _check_slices(name: str, job: Obj, path: str, problems: list[str]) -> None:
    """Check one replicated job; `name` is the JobSet's."""
    spec = job["template"]["spec"]
    hosts = spec["parallelism"]
    if spec["completions"] != hosts:
        problems.append(f"{path}.template.spec.completions must equal parallelism")
    if job["replicas"] < 1 or hosts < 1:
        problems.append(f"{path} needs at least one replica and one pod each")
    longest = f"{name}-{job['name']}-{job['replicas'] - 1}-{hosts - 1}-xxxxx"
    if len(longest) > 63:
        over = len(longest) - 63
        problems.append(f"JobSet.metadata.name is {over} characters too long: pods would be '{longest}'")
    _check_pod(spec["template"]["spec"], f"{path}.template.spec.template.spec", problems)


def _check_jobset(obj: Obj, problems: list[str]) -> None:
    spec = obj["spec"]
    jobs = {job["name"]: job for job in spec["replicatedJobs"]}
    for i, job in enumerate(spec["replicatedJobs"]):
        _check_slices(obj["metadata"]["name"], job, f"JobSet.spec.replicatedJobs[{i}]", problems)
    leader = spec.get("coordinator")
    if leader:
        job = jobs.get(leader.get("replicatedJob"), {"replicas": 0})
        hosts = job["template"]["spec"]["parallelism"] if job["replicas"] else 0
        if leader.get("jobIndex", 0) >= job["replicas"] or leader.get("podIndex", 0) >= hosts:
            problems.append("JobSet.spec.coordinator names a pod that this JobSet does not have")
        elif len(coordinator_address(obj)) > 63:
            problems.append(
                f"JobSet.metadata.name is too long: '{coordinator_address(obj)}' must fit into 63 characters"
            )
    policy = spec.get("failurePolicy", {})
    targets = [*spec["successPolicy"].get("targetReplicatedJobs", ())]
    for rule in policy.get("rules", ()):
        targets += rule.get("targetReplicatedJobs", ())
        for pattern in rule.get("onJobFailureMessagePatterns", ()):
            try:
                re.compile(pattern)
            except re.error as error:
                problems.append(f"JobSet.spec.failurePolicy: {pattern!r} is not a regular expression: {error}")
    problems += [f"replicated job '{name}' not found" for name in targets if name not in jobs]


def _check_queue(obj: Obj, problems: list[str]) -> None:
    groups = obj["spec"].get("resourceGroups", [])
    if len(groups) > 1 or any(len(group.get("flavors", ())) != 1 for group in groups):
        problems.append("ClusterQueue.spec.resourceGroups: only one group of one flavor is supported here")
        return
    for (_, resource), allotment in allotments(obj).items():
        limits = (allotment.nominal, allotment.borrowing_limit or 0, allotment.lending_limit or 0)
        if min(limits) < 0:
            problems.append(f"ClusterQueue.spec.resourceGroups: the quota of {resource} cannot be negative")
        if (allotment.borrowing_limit, allotment.lending_limit) != (None, None) and not cohort_of(obj):
            problems.append(f"ClusterQueue.spec.resourceGroups: limits of {resource} need a cohortName")
        if allotment.lending_limit is not None and allotment.lending_limit > allotment.nominal:
            problems.append(
                f"ClusterQueue.spec.resourceGroups: the lendingLimit of {resource} is over its nominalQuota"
            )
    policies = obj["spec"].get("preemption", {})
    borrowing = policies.get("borrowWithinCohort", {}).get("policy", "Never")
    if borrowing != "Never" and policies.get("reclaimWithinCohort", "Never") == "Never":
        problems.append("ClusterQueue.spec.preemption: borrowWithinCohort needs a reclaimWithinCohort")


def defaulted(obj: Obj) -> Obj:
    """Return a copy with the defaults of JobSet's webhook; the same input gives the same copy."""
    obj = copy.deepcopy(obj)
    meta = obj.setdefault("metadata", {})
    if KINDS[obj["kind"]].namespaced:
        meta.setdefault("namespace", "default")
    if obj["kind"] != "Node":
        obj.pop("status", None)
    if obj["kind"] == "JobSet":
        spec = obj["spec"]
        spec.setdefault("successPolicy", {}).setdefault("operator", "All")
        network = spec.setdefault("network", {})
        network.setdefault("subdomain", meta.get("name"))
        for job in spec.get("replicatedJobs", ()):
            job.setdefault("replicas", 1)
            template = job.setdefault("template", {}).setdefault("spec", {})
            template.setdefault("completionMode", "Indexed")
            template.setdefault("backoffLimit", 6)
            template.setdefault("parallelism", 1)
            template.setdefault("completions", template["parallelism"])
    return obj


def validated(obj: Obj) -> Obj:
    """Return an object with its defaults. Raises UsageError with all problems, MissingToolError."""
    kind = obj.get("kind")
    if kind not in KINDS:
        raise MissingToolError(f"the local control plane has no kind '{kind}'")
    if obj.get("apiVersion") != KINDS[kind].api_version:
        raise UsageError(f"{kind}.apiVersion must be {KINDS[kind].api_version}")
    if kind not in _SPECS:
        raise UsageError(f"a {kind} can only be created by the control plane")
    problems: list[str] = []
    name = obj.get("metadata", {}).get("name", "")
    if kind == "JobSet" and not _NAME.fullmatch(name):
        problems.append(
            f"JobSet.metadata.name '{name}' must be lowercase letters, digits and dashes, and start with a letter"
        )
    elif not name:
        problems.append(f"{kind}.metadata.name is required")
    if "spec" not in obj and _SPECS[kind] not in ({}, _ANY):
        problems.append(f"{kind}.spec is required")
    _walk(obj.get("spec", {}), _SPECS[kind], f"{kind}.spec", problems)
    _walk(obj.get("metadata", {}).get("labels", {}), _TEXTS, f"{kind}.metadata.labels", problems)
    if kind == "JobSet" and not obj.get("spec", {}).get("replicatedJobs"):
        problems.append("JobSet.spec.replicatedJobs is required")
    if not problems:
        obj = defaulted(obj)
        if kind == "JobSet":
            _check_jobset(obj, problems)
        elif kind == "ClusterQueue":
            _check_queue(obj, problems)
    if problems:
        raise UsageError("\n".join(problems), problems=problems)
    return obj


def check_unchanged(old: Obj, new: Obj) -> None:
    """Raise UsageError for a change of a field that is immutable in a JobSet."""
    if old["kind"] != "JobSet":
        return
    fields = [field for field in IMMUTABLE if old["spec"].get(field) != new["spec"].get(field)]
    problems = [f"JobSet.spec.{field} is immutable" for field in fields]
    if not new["spec"].get("suspend") and label(old, QUEUE_LABEL) != label(new, QUEUE_LABEL):
        problems.append(f"JobSet.metadata.labels[{QUEUE_LABEL}] is immutable unless the JobSet is suspended")
    if problems:
        raise UsageError(
            "\n".join(problems),
            problems=problems,
            hint=f"delete '{old['metadata']['name']}' first, or use another name",
        )
