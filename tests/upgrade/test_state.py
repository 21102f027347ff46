"""A local cluster and preferences of an earlier version that was killed while workloads were in all states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Xpk
from tests.upgrade import local_state
from tests.upgrade.comparison import in_both
from tests.waiting import until

ENDED = {"lm": "Succeeded", "done": "Succeeded", "red-done": "Succeeded", "failed": "Failed", "retried": "Failed"}


@pytest.fixture
def before(version: Path, state: Path) -> Any:
    """Put the earlier version's files in the place of this one's; return what it told of them."""
    return local_state.unpack(version, state.parent)


def listed(xpk: Xpk) -> dict[str, Any]:
    return {item["name"]: item for item in xpk("workload", "list", "--all-namespaces", "-o", "json").data}


def phase(xpk: Xpk, name: str) -> str:
    return str(xpk("workload", "status", name, "-o", "json").data["phase"])


def test_all_workloads_of_the_earlier_version_are_listed(before: Any, xpk: Xpk) -> None:
    now, then = listed(xpk), {item["name"]: item for item in before["list"]}
    assert now.keys() == then.keys(), "the deleted one stays deleted"
    assert {name: now[name]["phase"] for name in ENDED} == ENDED
    for name in ENDED:
        assert in_both(then[name], now[name]) == then[name]
    assert (now["waiting"]["phase"], now["waiting"]["position"]) == ("Queued", 1)
    assert now["paused"]["phase"] == "Suspended"
    assert "hello" in xpk("workload", "logs", "done").out
    clusters = {item["name"]: item for item in xpk("cluster", "list", "-o", "json").data}
    for cluster in before["clusters"]:
        same = {key: value for key, value in cluster.items() if key != "slices"}  # the killed host has left its slice
        assert in_both(same, clusters[cluster["name"]]) == same
        assert len(clusters[cluster["name"]]["slices"]) == len(cluster["slices"])
    quotas = [(queue["name"], queue["shares"][0]["quota"]) for queue in xpk("queue", "list", "-o", "json").data]
    assert quotas == [(queue["name"], queue["shares"][0]["quota"]) for queue in before["queues"]]


def test_workloads_of_the_earlier_version_continue(before: Any, xpk: Xpk, state: Path) -> None:
    output = state / "clusters" / "dev" / "output"
    until(lambda: (phase(xpk, "running"), phase(xpk, "once")) == ("Running", "Failed"), report=lambda: listed(xpk))
    running, once = (xpk("workload", "status", name, "-o", "json").data for name in ("running", "once"))
    assert (running["restarts"], running["restarts_counted"], running["max_restarts"]) == (1, 1, 1)
    assert (once["restarts"], once["hosts"][0]["exit_code"]) == (0, 137), "it may not restart"
    assert phase(xpk, "waiting") == "Queued"
    (output / "running" / "go").touch()
    until(lambda: (phase(xpk, "running"), phase(xpk, "waiting")) == ("Succeeded",) * 2, report=lambda: listed(xpk))
    assert xpk("workload", "logs", "running").out.count("attempt 1") == 2
    assert xpk("workload", "logs", "running", "--previous").out.count("attempt 0") == 2
    assert xpk("workload", "logs", "waiting").out.count("started") == 4
    (output / "paused" / "go").touch()
    assert xpk("workload", "resume", "paused").code == 0
    until(lambda: phase(xpk, "paused") == "Succeeded", report=lambda: listed(xpk))
    assert xpk("workload", "delete", "--all", "--yes").code == 0
    until(lambda: [*listed(xpk)] == ["red-done"])


def test_preferences_of_the_earlier_version_apply(before: Any, xpk: Xpk, state: Path) -> None:
    shown = {item["name"]: item["value"] for item in xpk("config", "list", "-o", "json").data}
    assert local_state.PREFERENCES.items() <= shown.items()
    assert xpk("workload", "create", "new", "--command", "true").code == 0  # there are two clusters
    created = xpk("workload", "status", "new", "--cluster", "dev", "-o", "json").data
    assert (created["priority"], created["max_restarts"]) == ("high", 1)


def test_a_report_has_the_figures_of_the_earlier_version(before: Any, xpk: Xpk) -> None:
    assert in_both(before["report"], xpk("workload", "report", "lm", "-o", "json").data) == before["report"]
