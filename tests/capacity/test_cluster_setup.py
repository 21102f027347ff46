"""The record of how workloads run on a cluster, and that of its slices, as anyone may have edited them."""

from __future__ import annotations

from typing import Any

import pytest

from xpk.api.base import Obj
from xpk.capacity.cluster_setup import config_map, remove_priorities, set_up, target_of
from xpk.capacity.queues.reading import Queues
from xpk.model import names
from xpk.model.accelerators import find_shape
from xpk.model.errors import XpkError
from xpk.model.specs import ClusterSpec
from xpk.render import render_queues
from xpk.testing import FakeApi

WHOLE = {"output-root": "gs://b/x", "emulated": "false", "sets-slice-environment": "true"}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({}, "it has no 'output-root'"),
        (WHOLE | {"capacities": "["}, "invalid 'capacities'"),
        (WHOLE | {"capacities": "[]"}, "invalid 'capacities'"),
        (WHOLE | {"capacities": '{"v5litepod-8": 3}'}, "invalid 'capacities'"),
        (WHOLE | {"autoprovisioned": '{"v5litepod-8": []}'}, "invalid 'autoprovisioned'"),
    ],
)
def test_a_damaged_record_is_named(data: dict[str, str], problem: str) -> None:
    with pytest.raises(XpkError, match=f"ConfigMap xpk-cluster in namespace default is damaged: {problem}") as caught:
        target_of(FakeApi([config_map(data)]), "adapt it")
    assert caught.value.hint


def test_a_record_of_an_older_version_is_enough() -> None:
    target = target_of(FakeApi([config_map(WHOLE)]), "adapt it")
    assert (target.output_root, target.fenced, target.trainer_image) == ("gs://b/x", False, None)


@pytest.mark.parametrize("text", ["[", "[]", '{"v5litepod-8": "x"}', '{"v5litepod-8": NaN}', '{"v5litepod-8": -1}'])
def test_a_damaged_number_of_slices_is_replaced_by_the_quotas(text: str) -> None:
    api = FakeApi(render_queues(ClusterSpec(name="c", shape=find_shape("v5litepod-8"), num_slices=2)))
    api.patch("ClusterQueue", "cluster-queue", {"metadata": {"annotations": {names.SLICES_ANNOTATION: text}}})
    assert Queues.read(api).total() == {"v5litepod-8": 2}


def test_two_clients_that_set_up_a_cluster_or_remove_it_at_the_same_time_both_succeed() -> None:
    class Late(FakeApi):
        """An API server that lists what existed before the other client's change."""

        def list(self, kind: str, *args: Any, **more: Any) -> list[Obj]:
            return before if kind == "PriorityClass" else super().list(kind, *args, **more)

    spec, api, before = ClusterSpec(name="c", shape=find_shape("v5litepod-8"), num_slices=2), Late(), list[Obj]()
    set_up(api, [spec])
    set_up(api, [spec])
    before += FakeApi.list(api, "PriorityClass", None)
    remove_priorities(api)
    remove_priorities(api)
    assert FakeApi.list(api, "PriorityClass", None) == []
