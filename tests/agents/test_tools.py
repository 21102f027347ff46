"""Tools of agents, which follow the Python API. A scope limits them, and each failure names the next step."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.agents.conftest import CLUSTER, Agent
from xpk.agents import arguments
from xpk.agents.tool import bounded
from xpk.jobs.create.workload import Workload

READS = [
    *("list_clusters", "describe_cluster", "list_workloads", "usage"),
    *("workload_status", "workload_progress", "workload_report", "workload_logs"),
]
PLANS = [
    *("plan_create_cluster", "plan_resize_cluster", "plan_delete_cluster", "plan_create_workload"),
    *("plan_delete_workloads", "plan_suspend_workload", "plan_resume_workload"),
]


@pytest.mark.parametrize(
    ("scope", "names"), [("read", READS), ("plan", READS + PLANS), ("apply", [*READS, *PLANS, "apply"])]
)
def test_a_scope_has_its_tools_and_those_below(
    scope: Any, names: list[str], with_scope: Callable[[Any], Agent]
) -> None:
    listed = with_scope(scope).tools.listed()
    assert [tool.name for tool in listed] == names
    hints = {tool.name: tool.annotations.read_only_hint for tool in listed if tool.annotations}
    assert {name for name, only in hints.items() if not only} == ({"apply"} if scope == "apply" else set())


def test_descriptions_are_those_of_the_python_api_without_what_agents_do_not_see(
    with_scope: Callable[[Any], Agent],
) -> None:
    for tool in with_scope("apply").tools.listed():
        assert tool.description and len(tool.description) > 20, tool.name
        assert "Raises" not in tool.description and "on_progress" not in tool.description, tool.name
        assert "dry_run" not in json.dumps(tool.input_schema)


def test_every_field_of_a_workload_can_be_set(with_scope: Callable[[Any], Agent]) -> None:
    tools = {tool.name: tool for tool in with_scope("plan").tools.listed()}
    properties = tools["plan_create_workload"].input_schema["properties"]
    assert set(arguments.of_dataclass(Workload)) | {"cluster"} == set(properties)
    assert properties["num_slices"]["description"].startswith("Number of slices")


def test_a_tool_beyond_the_scope_is_refused_by_name(with_scope: Callable[[Any], Agent]) -> None:
    answer = with_scope("plan").call("apply", digest="0")
    assert answer == {
        "error": "'apply' is not allowed: this server has the scope plan",
        "next": "your user can start it with `xpk mcp --scope apply`",
    }


@pytest.mark.parametrize(
    ("tool", "given", "answer"),
    [
        (
            "workload_state",
            {},
            {"error": "tool 'workload_state' not found", "next": "did you mean 'workload_status'?"},
        ),
        (
            "workload_status",
            {"clustr": "dev", "workload": "w"},
            {
                "error": "missing argument 'cluster'",
                "next": "the arguments are cluster, workload, namespace",
                "problems": ["missing argument 'cluster'", "unknown argument 'clustr': did you mean 'cluster'?"],
            },
        ),
        (
            "workload_status",
            {"cluster": "other", "workload": "w"},
            {"error": "cluster 'other' not found", "next": "choose from dev"},
        ),
        (
            "workload_logs",
            {"cluster": "dev", "workload": "w", "tail": "many"},
            {"error": "'tail': Input should be a valid integer, unable to parse string as an integer"},
        ),
    ],
)
def test_invalid_calls_are_explained(tool: str, given: dict[str, Any], answer: Any, agent: Agent) -> None:
    assert agent.call(tool, **given) == answer


def test_usage_is_read_by_cause(agent: Agent) -> None:
    agent.create("w", "true")
    agent.wait("w", "Succeeded")
    answer = agent.call("usage", cluster=CLUSTER, since="2026-01-01T00:00:00Z", by=["workload", "cause"])
    assert answer["cluster"] == CLUSTER and any(row["workload"] == "w" for row in answer["rows"]), answer
    refused = agent.call("usage", cluster=CLUSTER, by=["hue"])
    assert "hue" in refused["error"]
    assert agent.call("usage", cluster=CLUSTER, prices="p.yaml")["error"] == "unknown argument 'prices'"


def test_logs_are_bounded_and_without_control_characters(agent: Agent) -> None:
    agent.create("noisy", "for n in $(seq 1000); do echo $n; done; printf '\\033]0;title\\007end\\n'")
    agent.wait("noisy", "Succeeded")
    lines = agent.of("workload_logs", "noisy")
    assert lines[0] == "s0/h0 1" and len(lines) == 101 and lines[-1] == "... 100 more"
    assert agent.call("workload_logs", cluster=CLUSTER, workload="noisy", tail=-1) == {
        "error": "tail must be 0 or more, got -1",
        "next": "omit it for all lines",
    }
    assert agent.of("workload_logs", "noisy", tail=1) == [r"s0/h0 \x1b]0;title\x07end"]


def test_long_texts_and_lists_are_cut() -> None:
    made = bounded({"hosts": list(range(12_736)), "text": "x" * 10_000})
    assert len(made["hosts"]) == 101 and made["hosts"][-1] == "... 12636 more"
    assert len(made["text"]) < 4_100 and "6000 characters left out" in made["text"]


def test_an_agent_connects_by_the_protocol(agent: Agent, state: Path) -> None:
    from mcp import ClientSession, StdioServerParameters  # takes long to import
    from mcp.client.stdio import stdio_client

    environment = {name: value for name, value in os.environ.items() if name.startswith(("XPK_", "PATH", "PYTHONPATH"))}
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "xpk", "mcp", "--scope", "plan"], env=environment
    )

    async def talk() -> tuple[list[str], Any, str]:
        async with stdio_client(command) as (answers, requests), ClientSession(answers, requests) as session:
            with anyio.fail_after(60):
                instructions = (await session.initialize()).instructions
                tools = [tool.name for tool in (await session.list_tools()).tools]
                result = await session.call_tool("describe_cluster", {"cluster": CLUSTER})
                return tools, result, instructions or ""

    tools, result, instructions = anyio.run(talk)
    assert tools == READS + PLANS and "never an instruction" in instructions
    assert json.loads(result.content[0].text)["num_slices"] == 2
