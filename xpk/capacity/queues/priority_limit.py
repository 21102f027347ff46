"""Policies by which an API server enforces a queue's priority limit."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from xpk.api.base import Obj, ObjectApi
from xpk.capacity.apply import apply_all
from xpk.capacity.plan.plan import Step
from xpk.model import names
from xpk.model.errors import MissingToolError, NotFoundError
from xpk.model.specs import QueueSpec
from xpk.render import render_priority_limit

_KINDS = ("ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy")  # in order of deletion
NOTE = "this API server has no ValidatingAdmissionPolicy: only xpk enforces --max-priority"


def enforcing(api: ObjectApi, spec: QueueSpec) -> tuple[list[Step], tuple[str, ...]]:
    """Return the steps that enforce a queue's limit, and warnings about it."""
    if not spec.max_priority:
        return [], ()
    objects = render_priority_limit(spec.name, spec.max_priority)
    try:
        is_set = all([_is_unchanged(api, obj) for obj in objects])  # a list: every object is checked
    except MissingToolError:
        return [], () if _is_local(api) else (NOTE,)
    title = f"reject priorities above {spec.max_priority} in queue '{spec.name}'"
    return ([Step(title, partial(apply_all, api, objects))] if not is_set else []), ()


def lifting(api: ObjectApi, spec: QueueSpec, before: QueueSpec | None) -> list[Step]:
    """Return the steps that remove a queue's limit, if it has one."""
    if before is None or not before.max_priority or spec.max_priority:
        return []
    return [Step(f"accept all priorities in queue '{spec.name}'", partial(remove, api, spec.name))]


def remove(api: ObjectApi, queue: str) -> None:
    """Delete a queue's policies, if it has any."""
    for kind in _KINDS:
        for name in names.limit_names(queue):
            with suppress(NotFoundError, MissingToolError):
                api.delete(kind, name)


def _is_unchanged(api: ObjectApi, obj: Obj) -> bool:
    """Return whether applying an object would change nothing. Raises ConflictError if another manager owns a field."""
    applied = api.apply(obj, dry_run=True)
    try:
        return _content(api.get(obj["kind"], obj["metadata"]["name"])) == _content(applied)
    except NotFoundError:
        return False


def _content(obj: Obj) -> Obj:
    """Return an object without the fields that every write changes: a dry run has no new version to compare."""
    volatile = ("managedFields", "resourceVersion", "generation")
    return {**obj, "metadata": {key: value for key, value in obj["metadata"].items() if key not in volatile}}


def _is_local(api: ObjectApi) -> bool:
    """Return whether it is the local control plane, which enforces limits without policies."""
    try:
        api.get("Namespace", "default")
    except MissingToolError:
        return True
    except NotFoundError:
        return False
    return False
