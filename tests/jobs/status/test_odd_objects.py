"""Any field of an object replaced by any value: other workloads are read as before."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.jobs.objects import NOW, RUNNING, cluster_queue, event, jobset, local_queue, pod, workload
from xpk.api.answers import page_of
from xpk.api.kinds import KINDS
from xpk.jobs.status.fields import Snapshot
from xpk.jobs.status.reader import read
from xpk.model.status import Phase, WorkloadStatus

Obj = dict[str, Any]
_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.just({}),
    st.just([]),
)
_ANYTHING = st.recursive(
    _LEAVES, lambda item: st.lists(item, max_size=2) | st.dictionaries(st.text(max_size=4), item, max_size=2)
)
_RUNNING = workload("w", "u", Admitted=("True", "Admitted", ""), QuotaReserved=("True", "QuotaReserved", ""), uses=8)
_WAITS = ("False", "Pending", "insufficient quota")


def _of_another(obj: Obj, name: str, uid: str) -> Obj:
    made = copy.deepcopy(obj)
    made["metadata"] |= {"name": name, "uid": uid}
    for key, value in list((made["metadata"].get("labels") or {}).items()):
        made["metadata"]["labels"][key] = uid if value == "u" else value
    return made


def _objects() -> dict[str, list[Obj]]:
    """Return a running workload, and one that is pending in the same queue."""
    return {
        "JobSet": [jobset(), _of_another(jobset(), "odd", "u2")],
        "Workload": [_RUNNING, workload("odd", "u2", QuotaReserved=_WAITS, uses=8)],
        "LocalQueue": [local_queue(), _of_another(local_queue(), "odd", "q2")],
        "ClusterQueue": [cluster_queue(8), _of_another(cluster_queue(8), "odd", "c2")],
        "Pod": [pod(0, RUNNING, node="n"), pod(1, RUNNING, node="n"), _of_another(pod(0, RUNNING), "odd", "p2")],
        "Event": [
            event("JobSet", "w", "FailedCreate", "a quota", 5, uid="u"),
            {**event("Pod", "odd", "FailedMount", "no volume", 6), "series": {"count": 2, "lastObservedTime": NOW}},
        ],
    }  # fmt: skip


def _read(objects: dict[str, list[Obj]]) -> dict[str, WorkloadStatus]:
    """Return the workloads read from a server that lists these objects."""
    lists = {
        kind: page_of("http://x", KINDS[kind], {"metadata": {}, "items": items})[0] for kind, items in objects.items()
    }
    snapshot = Snapshot(
        jobsets=lists["JobSet"], workloads=lists["Workload"], local_queues=lists["LocalQueue"],
        cluster_queues=lists["ClusterQueue"], pods=lists["Pod"], events=lists["Event"],
    )  # fmt: skip
    return {item["metadata"]["name"]: read(item, snapshot) for item in snapshot.jobsets}


def _paths(read_status: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = (
        read_status.items()
        if isinstance(read_status, dict)
        else enumerate(read_status)
        if isinstance(read_status, list)
        else []
    )
    return [item for key, value in inside for item in ((*path, key), *_paths(value, (*path, key)))]


@settings(max_examples=150, deadline=None)
@given(data=st.data(), kind=st.sampled_from(list(_objects())), value=_ANYTHING)
def test_an_invalid_object_affects_only_its_own_workload(data: st.DataObject, kind: str, value: object) -> None:
    objects = _objects()
    assert _read(copy.deepcopy(objects))["w"].phase is Phase.RUNNING
    odd = objects[kind][-1]
    *parents, last = data.draw(st.sampled_from(_paths(odd)))
    place: Any = odd
    for item in parents:
        place = place[item]
    place[last] = value
    read_status = _read(objects)["w"]
    assert read_status.phase is Phase.RUNNING and len(read_status.hosts) == 2
