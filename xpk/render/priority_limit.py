"""ValidatingAdmissionPolicies, in CEL, that reject priorities above a queue's limit."""

from __future__ import annotations

import json
from typing import Any

from xpk.model import names


def limit_view(queue: str, limit: str) -> dict[str, Any]:
    """Return the values of `kueue/max-priority.yaml.j2`.

    JobSets are rejected at once, by their label; Kueue's Workloads by their effective priority, whatever set it.
    A workload that is already in the queue may keep its priority, so that it can be updated, and end.
    """
    priority, quoted_queue = names.PRIORITIES[limit], json.dumps(queue)
    higher = json.dumps([name for name, value in names.PRIORITIES.items() if value > priority])
    same = " && ".join(f"({_label('oldObject', key)} == {_label('object', key)})" for key in _LABELS)
    keeps_priority = "has(oldObject.spec.queueName) && oldObject.spec.queueName == object.spec.queueName"
    keeps_priority += " && has(oldObject.spec.priority) && object.spec.priority <= oldObject.spec.priority"
    return {
        "message": names.limit_message(queue, limit),
        "policies": [
            {
                "name": names.limit_names(queue)[0],
                "group": "jobset.x-k8s.io",
                "resource": "jobsets",
                "of_queue": f"{_label('object', names.QUEUE_LABEL)} == {quoted_queue}",
                "allowed": f"!({_label('object', names.PRIORITY_LABEL)} in {higher}) || (oldObject != null && {same})",
            },
            {
                "name": names.limit_names(queue)[1],
                "group": "kueue.x-k8s.io",
                "resource": "workloads",
                "of_queue": f"has(object.spec.queueName) && object.spec.queueName == {quoted_queue}",
                "allowed": f"!has(object.spec.priority) || object.spec.priority <= {priority} "
                f"|| (oldObject != null && {keeps_priority})",
            },
        ],
    }


_LABELS = (names.QUEUE_LABEL, names.PRIORITY_LABEL)


def _label(of: str, key: str) -> str:
    """Return the CEL of a label, '' if it is not set."""
    labels = f"{of}.metadata.labels"
    return f"(has({labels}) && {json.dumps(key)} in {labels} ? {labels}[{json.dumps(key)}] : '')"
