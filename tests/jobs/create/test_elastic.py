"""--min-slices: who may use it, and what the cluster's JobSet must be able to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.create.destinations import WithoutConfig, config, deployment, destination
from xpk.api.base import Obj
from xpk.jobs.create.notice import Notice
from xpk.jobs.create.submit import submit
from xpk.jobs.create.workload import Workload
from xpk.model.errors import MissingToolError, UsageError
from xpk.testing import FakeApi


def request(**more: Any) -> Workload:
    return Workload(**{"name": "w", "image": "i", "num_slices": 4, "min_slices": 2, **more})


GATE_ON = (
    [config(RestartJob=True)],
    [config(), deployment("--zap-log-level=2", "--feature-gates=A=false,RestartJob=true")],
)


@pytest.mark.parametrize("settings", GATE_ON, ids=["configuration", "argument"])
def test_slices_restart_alone_where_jobset_can_do_that(tmp_path: Path, settings: list[Obj]) -> None:
    notices: list[Notice] = []
    place = destination(tmp_path, *settings)
    submit(request(), place, report=notices.append)
    policy = place.reached().get("JobSet", "w")["spec"]["failurePolicy"]
    assert [rule["action"] for rule in policy["rules"]] == [
        "RestartJobAndIgnoreMaxRestarts",
        "FailJobSet",
        "RestartJob",
    ]
    assert notices == []


@pytest.mark.parametrize("found", [config(), config(RestartJob=False, InPlaceRestart=True)])
def test_a_jobset_without_the_gate_is_rejected_before_anything_is_created(tmp_path: Path, found: Obj) -> None:
    place = destination(tmp_path, found, deployment("--feature-gates=RestartJob=false"))
    with pytest.raises(MissingToolError, match="JobSet of cluster 'c' lacks feature gate RestartJob") as raised:
        submit(request(), place)
    assert "xpk cluster adapt c" in raised.value.hint
    assert place.reached().list("JobSet") == []
    submit(request(min_slices=None), place)


@pytest.mark.parametrize("kind", [FakeApi, WithoutConfig], ids=["absent", "forbidden"])
def test_an_unreadable_configuration_is_a_warning(tmp_path: Path, kind: type[FakeApi]) -> None:
    notices: list[Notice] = []
    submit(request(), destination(tmp_path, kind=kind), report=notices.append)
    (notice,) = notices
    assert notice.is_warning and "JobSet may lack feature gate RestartJob" in notice.text


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"command": "true"}, "--min-slices and --command exclude each other"),
        ({"launcher": "ray"}, "--min-slices and --launcher ray exclude each other"),
        ({"command": "true", "launcher": "ray"}, "--min-slices and --command and --launcher ray exclude each other"),
        ({"min_slices": 5}, r"--min-slices must be between 1 and --num-slices \(4\), got 5"),
        ({"min_slices": 0}, r"--min-slices must be between 1 and --num-slices \(4\), got 0"),
        ({"num_slices": 1, "min_slices": 1}, "--min-slices requires at least 2 slices, got --num-slices 1"),
        ({"args": ["--set", "data.global_batch=32", "--set", "mesh.dp=6"]}, "mesh.dp = 6 is not divisible by the 4"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, more: dict[str, Any], text: str) -> None:
    place = destination(tmp_path, config(RestartJob=True))
    with pytest.raises(UsageError) as raised:
        submit(request(**more), place)
    assert re.search(text, "\n".join(raised.value.problems))
    assert raised.value.hint
    assert place.reached().list("JobSet") == []


def test_all_problems_are_reported_together(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        submit(request(command="true", min_slices=9, max_restarts=-1), destination(tmp_path, config(), deployment()))
    text = "\n".join(raised.value.problems)
    for part in ("exclude each other", "got 9", "--max-restarts must be between", "lacks feature gate RestartJob"):
        assert part in text
