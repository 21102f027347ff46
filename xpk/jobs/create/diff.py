"""Differences between two workloads as the API server stores them: two that run, or one and what `create` would make.

Fields that controllers write while a JobSet runs are ignored: its suspension, and the placement by Kueue.
"""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypedDict

from xpk.api.base import Obj, ObjectApi
from xpk.jobs.create import slice_replacement
from xpk.jobs.status.reader import not_found
from xpk.model import names
from xpk.model.errors import ConflictError, NotFoundError
from xpk.model.redaction import GONE, SECRET_NAME, redact, redact_words
from xpk.model.specs import WorkloadSpec
from xpk.render import render_workload, to_yaml

_KUEUE = "kueue.x-k8s.io/"
# Annotations that Kueue adds to pods, the second for a ProvisioningRequest; other kueue annotations are xpk's.
_ADMITTED = (f"{_KUEUE}workload", "autoscaling.x-k8s.io/")
_LETTERS = "xyzabcdefg"
# Variables in which xpk puts the workload's name. In any other the name is the user's own text.
_NAMED = (
    *("XPK_WORKLOAD", "XPK_OUTPUT_DIR", "XPK_COORDINATOR_ADDRESS"),
    *("MEGASCALE_COORDINATOR_ADDRESS", "TPU_WORKER_HOSTNAMES", "MASTER_ADDR", "JAX_COORDINATOR_ADDRESS"),
)


class FieldDifference(TypedDict):
    """A field of two objects and its values, null where it is missing."""

    field: str  # path of the field
    before: Any  # value in the running workload
    after: Any  # value in the other workload


@dataclass(frozen=True, slots=True)
class Difference:
    """A unified diff of YAML, "" if both are equal, and the fields that differ."""

    text: str
    fields: tuple[FieldDifference, ...] = ()


def running(api: ObjectApi, name: str, namespace: str) -> Obj:
    """Return the JobSet of a workload. Raises NotFoundError naming those there are."""
    try:
        return api.get("JobSet", name, namespace)
    except NotFoundError:
        raise not_found(api, name, namespace) from None


def with_create(api: ObjectApi, have: Obj, spec: WorkloadSpec) -> Difference:
    """Return the difference between a running JobSet and that of `create`, by a dry-run request."""
    _, created = slice_replacement.accepted(spec, lambda one: _as_stored(api, render_workload(one)[-1]))
    before, after = _stated(have), _stated(created)
    for left_pod, right_pod in zip(_templates(before), _templates(after), strict=False):
        _forget_placement(left_pod, right_pod)
    return _compare(before, after, f"running/{spec.name}", f"create/{spec.name}")


def of_two(left: Obj, right: Obj) -> Difference:
    """Return the difference between two workloads, ignoring their names."""
    before, after = (_unnamed(_stated(jobset), jobset["metadata"]["name"]) for jobset in (left, right))
    return _compare(before, after, *(f"running/{jobset['metadata']['name']}" for jobset in (left, right)))


def _as_stored(api: ObjectApi, obj: Obj) -> Obj:
    """Return an object as the server would store it, under a free name, since its own is taken."""
    name = obj["metadata"]["name"]
    for letter in _LETTERS:
        free = f"{name[:-1]}{letter}"  # as long as its own: length limits apply to both
        if free == name:
            continue
        try:
            return api.create({**obj, "metadata": {**obj["metadata"], "name": free}}, dry_run=True)
        except ConflictError:
            continue
    raise ConflictError(
        f"no name like '{name}' is free for a dry run", hint="`xpk workload list` shows the names in use"
    )


def _stated(jobset: Obj) -> Obj:
    """Return the fields of a JobSet that its creator sets."""
    meta = jobset["metadata"]
    annotations = {key: value for key, value in (meta.get("annotations") or {}).items() if key != names.USER_ANNOTATION}
    spec = {key: value for key, value in jobset["spec"].items() if key != "suspend"}
    stated: Obj = copy.deepcopy(
        {"metadata": {"labels": meta.get("labels") or {}, "annotations": annotations}, "spec": spec}
    )
    for template in _templates(stated):
        inner = template.get("metadata") or {}
        for part, is_theirs in (("labels", _KUEUE), ("annotations", _ADMITTED)):
            own_fields = {key: value for key, value in (inner.get(part) or {}).items() if not key.startswith(is_theirs)}
            inner.pop(part, None)
            if own_fields:
                inner[part] = own_fields
        inner.pop("creationTimestamp", None)  # null in a template, and not every server returns it
        gates = [gate for gate in template["spec"].pop("schedulingGates", None) or () if _KUEUE not in gate["name"]]
        if gates:
            template["spec"]["schedulingGates"] = gates
    return stated


def _templates(stated: Obj) -> Iterator[Obj]:
    """Yield the pods of each replicated job."""
    for job in stated["spec"].get("replicatedJobs") or ():
        yield job["template"]["spec"]["template"]


def _forget_placement(have: Obj, new: Obj) -> None:
    """Drop the nodes that Kueue's flavor added when it admitted a workload."""
    selector, tolerations = have["spec"].get("nodeSelector"), have["spec"].get("tolerations")
    if selector:
        labels = new["spec"].get("nodeSelector") or {}
        have["spec"]["nodeSelector"] = {key: value for key, value in selector.items() if key in labels}
    if tolerations:
        known = {toleration.get("key") for toleration in new["spec"].get("tolerations") or ()}
        have["spec"]["tolerations"] = [toleration for toleration in tolerations if toleration.get("key") in known]


def _unnamed(stated: Obj, name: str) -> Obj:
    """Return a workload with its name replaced by NAME."""
    # Not as a part of a longer name, except a host's: `NAME-slice-job-0-0.NAME`. In a path only at the end.
    anywhere = re.compile(rf"(?<![a-z0-9-]){re.escape(name)}(?=-{names.SLICE_JOB}-|[^a-z0-9-]|$)")
    at_end = re.compile(rf"(?<=[/.]){re.escape(name)}/?$")
    subdomain = names.subdomain(name)

    def without(holder: Any, key: str, pattern: re.Pattern[str] = anywhere) -> None:
        if isinstance(holder.get(key), str):
            holder[key] = pattern.sub("NAME", holder[key])
            if subdomain != name and pattern is anywhere:
                holder[key] = holder[key].replace(subdomain, "NAME")

    without(stated["metadata"]["labels"], names.WORKLOAD_LABEL)
    without(stated["metadata"]["annotations"], names.OUTPUT_ANNOTATION, at_end)
    without(stated["spec"].get("network") or {}, "subdomain")
    for template in _templates(stated):
        without((template.get("metadata") or {}).get("labels") or {}, names.WORKLOAD_LABEL)
        for volume in template["spec"].get("volumes") or ():
            if volume.get("secret", {}).get("secretName") == names.peer_secret(name):
                without(volume["secret"], "secretName")
    for _, entry in _variables(stated):
        if entry["name"] in _NAMED:
            without(entry, "value", at_end if entry["name"] == "XPK_OUTPUT_DIR" else anywhere)
    return stated


def _compare(before: Obj, after: Obj, left: str, right: str) -> Difference:
    _hide_secrets(before, after)
    words = {word: set(_texts(obj)) for word, obj in (("after", before), ("before", after))}
    before, after = (_redacted(obj, word, words[word]) for obj, word in ((before, "before"), (after, "after")))
    old, new = (to_yaml([_sorted(obj)]).splitlines(keepends=True) for obj in (before, after))
    return Difference("".join(difflib.unified_diff(old, new, left, right)), tuple(_fields(before, after)))


def _hide_secrets(before: Obj, after: Obj) -> None:
    """Redact values of variables with a secret's name; whether they differ stays visible."""
    pairs = [dict(_variables(before)), dict(_variables(after))]
    values = [{key: entry.get("value") for key, entry in pair.items()} for pair in pairs]
    for entries, word in zip(pairs, ("before", "after"), strict=True):
        for key, entry in entries.items():
            if "value" in entry and SECRET_NAME.search(entry["name"]):
                same = values[0].get(key) == values[1].get(key)
                entry["value"] = "***" if same else f"*** ({word})"


def _redacted(value: Any, word: str, others: set[str]) -> Any:
    """Return an object without secrets. A redacted text that the other object lacks is marked with `word`."""
    if isinstance(value, dict):
        return {key: _redacted(item, word, others) for key, item in value.items()}
    if not isinstance(value, (list, str)):
        return value
    if isinstance(value, list):
        hidden = [
            old if old == new else GONE if old in others else f"{GONE} ({word})"
            for old, new in zip(value, redact_words(value), strict=True)
        ]
        return [_redacted(item, word, others) for item in hidden]
    without = redact(value)
    return without if without == value or value in others else f"{without} ({word})"


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _variables(value: Any, path: str = "") -> Iterator[tuple[str, Obj]]:
    """Yield each environment variable, with the path of its container."""
    if isinstance(value, dict):
        for entry in value.get("env") or ():
            yield f"{path}/{entry['name']}", entry
        for key, inner in value.items():
            yield from _variables(inner, f"{path}/{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _variables(inner, f"{path}/{_called(inner, index)}")


def _fields(before: Any, after: Any, path: str = "") -> Iterator[FieldDifference]:
    """Yield the fields that differ, None for a missing value. List items are matched by name."""
    left, right = _parts(before), _parts(after)
    if left is None or right is None:
        if before != after:
            yield {"field": path, "before": before, "after": after}
        return
    for key in dict.fromkeys([*left, *right]):
        inner = f"{path}{key}" if key.startswith("[") else f"{path}.{key}".lstrip(".")
        yield from _fields(left.get(key), right.get(key), inner)


def _parts(value: Any) -> dict[str, Any] | None:
    if isinstance(value, dict):
        return value
    if isinstance(value, list):
        return {f"[{_called(item, index)}]": item for index, item in enumerate(value)}
    return None


def _called(item: Any, index: int) -> str:
    return str(item["name"]) if isinstance(item, dict) and "name" in item else str(index)


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value
