"""Plans of agents: nothing changes before a plan that was shown is applied, once, and is still the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.agents.conftest import CLUSTER, Agent

CREATE = {"cluster": CLUSTER, "name": "w", "command": "sleep 600"}


def names(agent: Agent) -> list[str]:
    """Return the names of all workloads."""
    return [one["name"] for one in agent.call("list_workloads", cluster=CLUSTER)]


def test_a_plan_changes_nothing_until_it_is_applied(agent: Agent) -> None:
    plan = agent.call("plan_create_workload", **CREATE)
    assert (
        plan["plan"]["summary"]
        == "workload 'w' of 1 x v5litepod-1, 1 hosts in the queue 'multislice-queue', priority medium"
    )
    assert plan["plan"]["objects"] == ["JobSet w"] and names(agent) == []
    assert agent.call("apply", digest=plan["digest"])["result"] == "workload 'w' is created"
    assert names(agent) == ["w"]


def test_the_same_request_has_the_same_digest_and_another_one_another(agent: Agent) -> None:
    plans = [agent.call("plan_create_workload", **CREATE, priority=priority) for priority in ("low", "low", "high")]
    digests = [plan["digest"] for plan in plans]
    assert digests[0] == digests[1] != digests[2]


def test_a_plan_is_applied_once(agent: Agent) -> None:
    plan = agent.call("plan_create_workload", **CREATE)
    agent.call("apply", digest=plan["digest"])
    again = agent.call("apply", digest=plan["digest"])
    assert again["error"] == f"no plan with the digest '{plan['digest']}' was shown, or it was applied"


def test_an_old_plan_is_refused_and_says_what_changed(agent: Agent) -> None:
    agent.create("w")
    plan = agent.call("plan_delete_workloads", cluster=CLUSTER, all=True)
    agent.create("x")
    answer = agent.call("apply", digest=plan["digest"])
    assert answer["error"].startswith("the plan has changed since it was shown:\n")
    assert '"name": "x"' in answer["error"] and answer["next"].startswith("plan it again")
    assert names(agent) == ["w", "x"]


def test_a_plan_for_a_workload_is_not_applied_to_a_later_one_of_its_name(agent: Agent) -> None:
    agent.create("w", "true")
    agent.wait("w", "Succeeded")
    stale = agent.call("plan_delete_workloads", cluster=CLUSTER, workloads=["w"])
    agent.call(
        "apply", digest=agent.call("plan_delete_workloads", cluster=CLUSTER, workloads=["w"], force=True)["digest"]
    )
    agent.create("w", fresh=True)
    answer = agent.call("apply", digest=stale["digest"])
    assert "has changed" in answer["error"] and '"uid"' in answer["error"] and names(agent) == ["w"]


def test_a_plan_that_became_impossible_is_refused(agent: Agent) -> None:
    plan = agent.call("plan_create_workload", **CREATE)
    agent.create("w", priority="low")
    answer = agent.call("apply", digest=plan["digest"])
    assert answer["error"].startswith("the plan no longer applies: ") and "'w'" in answer["error"]


def test_suspend_and_resume_need_a_running_workload(agent: Agent) -> None:
    agent.create("w")
    agent.wait("w", "Running")
    for tool, phase in (("plan_suspend_workload", "Suspended"), ("plan_resume_workload", "Running")):
        agent.call("apply", digest=agent.of(tool, "w")["digest"])
        agent.wait("w", phase)
    agent.create("done", "true")
    agent.wait("done", "Succeeded")
    assert agent.of("plan_suspend_workload", "done")["error"] == "workload 'done' has ended"


def test_clusters_are_planned_resized_and_deleted(agent: Agent) -> None:
    plan = agent.call("plan_resize_cluster", cluster=CLUSTER, num_slices=3)
    assert plan["plan"]["steps"] and agent.call("describe_cluster", cluster=CLUSTER)["num_slices"] == 2
    agent.call("apply", digest=plan["digest"])
    assert agent.call("describe_cluster", cluster=CLUSTER)["num_slices"] == 3
    agent.call("apply", digest=agent.call("plan_delete_cluster", cluster=CLUSTER)["digest"])
    assert agent.call("list_clusters") == {"clusters": []}


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"num_slices": 9}, "has 2 in all"),
        ({"queue": "team-z"}, "queue 'team-z' not found in namespace 'default'"),
        ({"priority": "urgent", "max_restarts": -1}, "unknown priority 'urgent'"),
    ],
)
def test_what_cannot_be_created_cannot_be_planned(given: dict[str, Any], error: str, agent: Agent) -> None:
    answer = agent.call("plan_create_workload", **CREATE, **given)
    assert error in "\n".join([answer["error"], *answer.get("problems", ())]), answer


def test_output_of_an_earlier_workload_is_neither_resumed_nor_replaced_by_accident(agent: Agent, state: Path) -> None:
    agent.create("w", 'touch "$XPK_OUTPUT_DIR/model"')
    agent.wait("w", "Succeeded")
    agent.call("apply", digest=agent.call("plan_delete_workloads", cluster=CLUSTER, workloads=["w"])["digest"])
    assert "output" in agent.call("plan_create_workload", **CREATE)["error"]
    plan = agent.call("plan_create_workload", **CREATE, fresh=True)["plan"]
    assert os.listdir(plan["output"]) == ["model"]
