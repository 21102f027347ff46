"""An agent's tools on a local cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.conftest import state as state
from tests.waiting import until
from xpk import create_cluster
from xpk.agents.tool import Scope

if TYPE_CHECKING:
    from xpk.agents.server import Tools

CLUSTER = "dev"


@dataclass
class Agent:
    """Calls tools as an agent does; the answers are JSON."""

    scope: Scope
    calls: int = 0
    tools: Tools = field(init=False)

    def __post_init__(self) -> None:
        from xpk.agents.server import Tools  # takes long to import, and few processes of a test run need it

        self.tools = Tools(self.scope)

    def call(self, tool: str, **arguments: Any) -> Any:
        """Return the answer of a call, failed or not."""
        self.calls += 1
        (content,) = self.tools.call(tool, arguments).content
        return json.loads(content.text)  # type: ignore[union-attr]

    def of(self, tool: str, workload: str, **arguments: Any) -> Any:
        """Call a tool for a workload of the cluster."""
        return self.call(tool, cluster=CLUSTER, workload=workload, **arguments)

    def create(self, name: str, command: str = "sleep 600", **arguments: Any) -> Any:
        """Plan a workload of one slice, and apply the plan."""
        plan = self.call("plan_create_workload", cluster=CLUSTER, name=name, command=command, **arguments)
        assert "digest" in plan, plan
        return self.call("apply", digest=plan["digest"])

    def wait(self, name: str, *phases: str, seconds: float = 60.0) -> Any:
        """Return the status once a workload is in one of these phases."""

        def status() -> Any:
            answer = self.of("workload_status", name)
            return answer["phase"] in phases and answer

        return until(status, seconds=seconds, report=lambda: self.of("workload_status", name))


@pytest.fixture
def agent(state: Path) -> Agent:
    """Return an agent of scope apply, and a cluster of two slices with one host each."""
    create_cluster(CLUSTER, "v5litepod-1", num_slices=2)
    return Agent("apply")


@pytest.fixture
def with_scope(state: Path) -> Callable[[Scope], Agent]:
    """Return a function that makes an agent of a scope."""
    return Agent
