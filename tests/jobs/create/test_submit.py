"""Submitting a workload from a program: everything is checked first, and nothing is printed."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest

from xpk.jobs.create.create import read_queue
from xpk.jobs.create.destination import Destination
from xpk.jobs.create.notice import Notice
from xpk.jobs.create.resolve import resolve
from xpk.jobs.create.submit import check, preflight, submit
from xpk.jobs.create.trainer_preflight import InProcessRunner
from xpk.jobs.create.workload import Workload
from xpk.model.accelerators import find_shape
from xpk.model.errors import CapacityError, NameTaken, OutputExists, Problems, QuotaExceeded, UsageError
from xpk.model.options import options_of
from xpk.model.specs import ClusterSpec, Target, WorkloadSpec
from xpk.render import render_queues
from xpk.testing import FakeApi

SHAPE = find_shape("v5litepod-8")


@pytest.fixture
def api() -> FakeApi:
    """Return a cluster of two slices."""
    return FakeApi(render_queues(ClusterSpec(name="c", shape=SHAPE, num_slices=2)))


@pytest.fixture
def destination(api: FakeApi, tmp_path: Path) -> Destination:
    """Return the cluster's own queue; output is written to a folder that the nodes share."""
    shared = str(tmp_path)
    target = Target(emulated=True, sets_slice_environment=True, output_root=shared, shared_folder=shared)
    queue = read_queue(api, None, "default", cluster="c")
    api.calls.clear()
    return Destination("c", target, queue, api)


def written(api: FakeApi) -> list[tuple[str, str]]:
    """Return the verbs and kinds of the writes."""
    return [(verb, kind) for verb, kind, _ in api.calls if verb not in ("get", "list")]


def test_a_submission_checks_creates_and_reports(api: FakeApi, destination: Destination) -> None:
    notices: list[Notice] = []
    request = Workload(name="w", command="true", num_slices=2, env={"A": "1"}, labels={"team": "red"}, num_nodes=3)
    submitted = submit(request, destination, report=notices.append)
    assert (submitted.spec.num_hosts, submitted.spec.num_chips, submitted.cost) == (4, 16, None)
    assert written(api) == [("create", "JobSet"), ("create", "Secret")] and len(api.calls) <= 5
    assert notices[0] == Notice("--num-nodes has no effect: a slice of v5litepod-8 has 2 hosts", is_warning=True)
    assert [notice.is_warning for notice in notices] == [True, False] and "python:3.11-slim" in notices[1].text
    with pytest.raises(NameTaken, match="with the same settings"):
        submit(request, destination)


def test_a_workload_above_the_cost_limit_is_not_created(api: FakeApi, destination: Destination) -> None:
    def price(spec: WorkloadSpec, max_cost: float | None) -> str | None:
        if max_cost is not None and max_cost < spec.num_chips:
            raise CapacityError("too dear")
        return f"{spec.num_chips} dollars"

    with pytest.raises(CapacityError, match="too dear"):
        submit(Workload(name="w", command="true", max_cost=7), destination, price=price)
    assert written(api) == []
    assert submit(Workload(name="w", command="true", max_cost=8), destination, price=price).cost == "8 dollars"


def test_a_check_returns_all_refusals_and_creates_nothing(
    api: FakeApi, destination: Destination, tmp_path: Path
) -> None:
    def price(spec: WorkloadSpec, max_cost: float | None) -> str | None:
        raise CapacityError("too dear")

    submit(Workload(name="w", command="true"), destination)
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "metrics.jsonl").write_text("{}\n")
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "metrics.jsonl").write_text("{}\n")
    api.calls.clear()
    taken = resolve(Workload(name="w", command="true", num_slices=3), destination)
    _, refusals = check(taken, destination, price=price)
    assert list(map(type, refusals)) == [QuotaExceeded, NameTaken, CapacityError]
    _, refusals = check(resolve(Workload(name="v", command="true"), destination), destination)
    assert list(map(type, refusals)) == [OutputExists]
    assert written(api) == []
    unreached = replace(destination, api=None)
    _, refusals = check(resolve(Workload(name="w", command="true"), unreached), unreached, price=price)
    assert [error.message for error in refusals] == ["too dear"]


def test_the_trainers_settings_are_checked_before_anything_is_created(api: FakeApi, destination: Destination) -> None:
    with pytest.raises(UsageError, match="invalid trainer configuration") as raised:
        submit(Workload(name="w", image="i", args=["--set", "optim.learning_rat=1"]), destination)
    assert "learning_rat" in raised.value.problems[0]
    assert written(api) == []


def test_the_calling_process_is_not_changed(destination: Destination, monkeypatch: pytest.MonkeyPatch) -> None:
    own = types.ModuleType("trainer")
    monkeypatch.setitem(sys.modules, "trainer", own)
    monkeypatch.setattr(os, "chdir", lambda folder: pytest.fail(f"the working folder becomes {folder}"))
    with pytest.raises(UsageError, match="invalid trainer configuration"):
        submit(Workload(name="w", image="i", args=["--set", "optim.learning_rat=1"]), destination)
    submit(Workload(name="w", image="i"), destination)
    assert sys.modules["trainer"] is own


def test_a_warning_of_the_trainer_is_reported_once(destination: Destination) -> None:
    notices: list[Notice] = []
    submit(Workload(name="w", image="i", args=["--set", "checkpoint.keep=2"]), destination, report=notices.append)
    text = "setting 'checkpoint.keep' is deprecated; use 'checkpoint.max_to_keep'"
    assert notices == [Notice(text, is_warning=True)]


def test_the_command_line_starts_no_process_for_the_bundled_trainer(
    destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *argv, **_: pytest.fail(f"starts {argv}"))
    resolved = resolve(Workload(name="w", image="i", args=["--set", "optim.learning_rat=1"]), destination)
    with pytest.raises(UsageError, match="invalid trainer configuration"):
        preflight(resolved, runner=InProcessRunner())


def test_earlier_output_is_continued_archived_or_rejected(destination: Destination, tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(OutputExists) as raised:
        submit(Workload(name="w", command="true"), destination)
    assert raised.value.resource == str(tmp_path / "w")
    with pytest.raises(UsageError, match="exclude each other"):
        submit(Workload(name="w", command="true", resume=True, fresh=True), destination)
    notices: list[Notice] = []
    submit(Workload(name="w", command="true", fresh=True), destination, report=notices.append)
    assert any("the earlier output is now 'w." in notice.text for notice in notices)
    assert not (tmp_path / "w").exists()


def test_earlier_problems_are_raised_with_those_of_the_request(destination: Destination) -> None:
    problems = Problems()
    problems.add("--env 'X' has no '='")
    with pytest.raises(UsageError) as raised:
        resolve(Workload(name="w", command="true", accelerator_type="v5p-8"), destination, problems=problems)
    first, second = raised.value.problems
    assert "--env" in first and "not v5p-8" in second


def test_problems_of_fields_are_raised_with_those_of_the_folder_and_of_the_cluster(destination: Destination) -> None:
    wrong = {"name": "Bad_Name", "command": " ", "script_dir": "/nope", "priority": "x", "resume": True, "fresh": True}
    of_fields = ("'Bad_Name' is not a DNS label", "--command is empty", "'/nope'", "priority 'x'", "exclude each other")
    for more, of_cluster in (
        ({}, ()),
        ({"accelerator_type": "v5p-8"}, ("not v5p-8",)),
        ({"accelerator_type": "v5p-7"}, ("v5p-7",)),
        ({"capacity": "spot", "run_as_user": 0}, ("--spot is supported on GKE only", "run_as_user must be between 1")),
    ):
        with pytest.raises(UsageError, match="cannot be created") as raised:
            submit(Workload(**wrong | more), destination)  # type: ignore[arg-type]  # any fields
        parts = (*of_fields, *of_cluster)
        for part in parts:
            assert sum(part in problem for problem in raised.value.problems) == 1, (part, raised.value.problems)
        assert len(raised.value.problems) == len(parts), raised.value.problems


@pytest.mark.parametrize("capacity", ["cheap", "reservation=", "reservation=a/b", "Spot"])
def test_an_unknown_capacity_is_rejected(destination: Destination, capacity: str) -> None:
    with pytest.raises(UsageError, match="invalid capacity"):
        resolve(Workload(name="w", command="true", capacity=capacity), destination)


def test_each_option_is_written_once() -> None:
    options = [option for _, option in options_of(Workload)]
    parameters = [option.parameter for option in options]
    assert len(set(parameters)) == len(parameters) >= 25
    assert all(option.help.endswith((".", "]")) for option in options)
