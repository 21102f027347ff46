"""Replacement of single slices: of workloads whose other hosts can wait, where JobSet can restart one slice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.create.destinations import Older, WithoutGate, config, destination
from xpk.api.base import Obj
from xpk.jobs.create.copies import resolve_copies
from xpk.jobs.create.destination import Destination
from xpk.jobs.create.notice import Notice
from xpk.jobs.create.resolve import resolve
from xpk.jobs.create.submit import preview, submit
from xpk.jobs.create.workload import Workload
from xpk.model.accelerators import find_shape
from xpk.model.errors import QuotaExceeded
from xpk.model.names import SUPERVISOR_KEY
from xpk.render import render_peer_secret, render_workload
from xpk.testing import FakeApi

GATE = config(RestartJob=True)


def request(**more: Any) -> Workload:
    return Workload(**{"name": "w", "command": "python train.py", "image": "i", "num_slices": 2, **more})


def reads(place: Destination) -> int:
    """Return how often JobSet's settings were read."""
    api = place.api
    assert isinstance(api, FakeApi)
    return sum(verb == "get" and kind in ("ConfigMap", "Deployment") for verb, kind, _ in api.calls)


def without_api(place: Destination, *, on_this_machine: bool = False) -> Destination:
    """Return a cluster that was not reached."""
    return replace(place, api=None, target=replace(place.target, on_this_machine=on_this_machine))


def test_a_lost_host_costs_only_its_slice_new_pods(tmp_path: Path) -> None:
    notices: list[Notice] = []
    place = destination(tmp_path, GATE)
    created = submit(request(), place, report=notices.append)
    assert created.spec.replaces_slices
    assert isinstance(place.api, FakeApi) and len(place.api.calls) == 6, "as many as for one slice"
    jobset = place.reached().get("JobSet", "w")
    assert {rule["name"]: rule["action"] for rule in jobset["spec"]["failurePolicy"]["rules"]} == {
        "hostDisrupted": "RestartJobAndIgnoreMaxRestarts",
        "fatalExitCode": "FailJobSet",
    }
    assert reads(place) == 0
    assert notices == []


@pytest.mark.parametrize(
    "more",
    [
        {"num_slices": 1},
        {"launcher": "ray"},
        {"restart_in_place": False},
        *(
            {"command": text}
            for text in ("./train", "./bench --accelerate", "/data/deepspeed/run.sh", "cat python-list")
        ),
    ],
    ids=str,
)
def test_others_get_all_pods_again_and_read_no_settings(tmp_path: Path, more: dict[str, Any]) -> None:
    place = destination(tmp_path, GATE)
    assert not resolve(request(**more), place).spec.replaces_slices
    assert reads(place) == 0


@pytest.mark.parametrize("accelerator_type", ["v5litepod-4", "h100-80gb-8", "n2-standard-32-1"])
@pytest.mark.parametrize("command", ["python3 train.py", "cd src && /usr/bin/torchrun --nnodes 2 train.py"])
def test_a_lost_host_that_is_a_slice_costs_no_other_pods(tmp_path: Path, accelerator_type: str, command: str) -> None:
    place = destination(tmp_path, GATE, accelerator_type=accelerator_type)
    size = {"num_slices": 2} if accelerator_type.startswith("v") else {"num_slices": None, "num_nodes": 2}
    spec = resolve(request(command=command, **size), place).spec
    assert spec.shape.hosts == 1 and spec.num_slices == 2
    assert spec.replaces_slices


def test_one_host_may_lack_the_variables_of_its_slice_where_a_webhook_sets_them(tmp_path: Path) -> None:
    for accelerator_type, is_known in (("v5litepod-4", False), ("v5litepod-8", True)):
        place = destination(tmp_path, GATE, accelerator_type=accelerator_type)
        place = replace(place, target=replace(place.target, sets_slice_environment=False))
        assert resolve(request(), place).spec.replaces_slices == is_known


def test_parts_of_slices_get_new_pods_together(tmp_path: Path) -> None:
    place = destination(tmp_path, GATE, accelerator_type="v6e-16")
    place = replace(place, target=replace(place.target, sub_slicing="v6e-16"))
    result = resolve(request(accelerator_type="v6e-8"), place).spec
    assert result.within == find_shape("v6e-16") and result.shape.hosts > 1
    assert not result.replaces_slices


def test_elastic_slices_continue_and_their_settings_are_read_once(tmp_path: Path) -> None:
    place = destination(tmp_path, GATE)
    assert not resolve(request(command=None, min_slices=1), place).spec.replaces_slices
    assert reads(place) == 1


@pytest.mark.parametrize("kind", [WithoutGate, Older])
def test_a_jobset_that_cannot_restart_one_slice_gives_all_new_pods(tmp_path: Path, kind: type[FakeApi]) -> None:
    notices: list[Notice] = []
    place = destination(tmp_path, kind=kind)
    created = submit(request(), place, report=notices.append)
    assert not created.spec.replaces_slices
    jobset = place.reached().get("JobSet", "w")
    actions = {rule["name"]: rule["action"] for rule in jobset["spec"]["failurePolicy"]["rules"]}
    assert actions["hostDisrupted"] == "RestartJobSetAndIgnoreMaxRestarts"
    assert jobset["spec"] == render_workload(created.spec)[-1]["spec"], "with the variables of its own actions"
    (expected,), (made,) = render_peer_secret(created.spec), place.reached().list("Secret")
    assert made["data"][SUPERVISOR_KEY] == expected["data"][SUPERVISOR_KEY]
    assert notices == []
    assert reads(place) == 0


@pytest.mark.parametrize("kind", [WithoutGate, Older])
def test_a_dry_run_shows_what_the_jobset_of_the_cluster_accepts(tmp_path: Path, kind: type[FakeApi]) -> None:
    place = destination(tmp_path, kind=kind)
    planned = preview(request(), place)
    assert not planned.spec.replaces_slices
    assert place.reached().list("JobSet") == []
    assert preview(request(), destination(tmp_path)).spec.replaces_slices


def test_other_refusals_are_not_tried_again(tmp_path: Path) -> None:
    class Full(FakeApi):
        def create(self, obj: Obj, *, dry_run: bool = False) -> Obj:
            if obj["kind"] == "JobSet":
                self.calls.append(("create", "JobSet", "w"))
                raise QuotaExceeded("JobSet 'w' exceeds a quota of its namespace")
            return super().create(obj, dry_run=dry_run)

    place = destination(tmp_path, kind=Full)
    with pytest.raises(QuotaExceeded):
        submit(request(), place)
    assert isinstance(place.api, FakeApi) and place.api.calls.count(("create", "JobSet", "w")) == 1
    assert preview(request(), place).spec.replaces_slices, "a dry run shows what is tried"


def test_of_a_cluster_that_was_not_reached_only_a_local_one_is_known(tmp_path: Path) -> None:
    place = destination(tmp_path, GATE)
    assert not resolve(request(), without_api(place)).spec.replaces_slices
    assert resolve(request(), without_api(place, on_this_machine=True)).spec.replaces_slices


def test_local_clusters_need_no_gate(tmp_path: Path) -> None:
    place = destination(tmp_path)
    here = replace(place, target=replace(place.target, on_this_machine=True))
    assert resolve(request(), here).spec.replaces_slices
    assert reads(here) == 0


def test_copies_on_several_clusters_get_new_pods_together(tmp_path: Path) -> None:
    places = {name: replace(destination(tmp_path, GATE), cluster=name) for name in ("a", "b")}
    here = {name: replace(place, target=replace(place.target, on_this_machine=True)) for name, place in places.items()}
    resolved = resolve_copies(request(), ("a", "b"), here.__getitem__)
    assert [(one.spec.num_slices, one.spec.replaces_slices) for one in resolved.copies] == [(2, False), (2, False)]
