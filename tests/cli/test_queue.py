"""`xpk queue`: teams that share the slices of a local cluster."""

from __future__ import annotations

from typing import Any

from tests.cli.conftest import Xpk
from tests.waiting import until

FOREVER = "trap 'exit 143' TERM; sleep 1000 & wait"
TYPE = "v5litepod-8"


def quotas(xpk: Xpk) -> dict[str, float]:
    """Return the slices of each queue by name."""
    return {item["name"]: item["shares"][0]["quota"] for item in xpk("queue", "list", "-o", "json").data}


def test_create_list_describe_change_and_delete(dev: Xpk) -> None:
    create = ("queue", "create", "red", "--quota", "1", "-n", "team-red")
    plan = dev(*create, "--dry-run")
    assert plan.code == 0 and "1. set up queue 'red' with a quota of 1 x v5litepod-8" in plan.out
    assert quotas(dev) == {"multislice-queue": 2}
    made = dev(*create)
    assert made.code == 0 and "next: xpk workload create NAME --cluster dev -n team-red --queue red" in made.err
    again = dev(*create)
    assert again.code == 0 and "nothing to do" in again.err
    assert quotas(dev) == {"multislice-queue": 1, "red": 1}
    lines = dev("queue", "list").out.splitlines()
    assert lines[0].split() == ["NAME", "NAMESPACES", "QUOTA", "USED", "ADMITTED", "PENDING", "AGE"]
    assert lines[2].split()[:6] == ["red", "team-red", f"{TYPE}=1", f"{TYPE}=0", "0", "0"]
    assert "RECLAIM" in dev("queue", "list", "-o", "wide").out
    assert dev("queue", "list", "-n", "team-red", "-o", "name").out == "red\n"
    assert dev("queue", "describe", "red", "-o", "yaml").out.startswith("name: red\n")

    more = dev("queue", "create", "red", "--quota", "100%", "--lending-limit", "1")
    assert more.code == 0 and "change queue 'red' from a quota of 1 x v5litepod-8 to a quota of 2" in more.err
    assert "Lending limit:   v5litepod-8=1" in dev("queue", "describe", "red").out
    assert quotas(dev) == {"multislice-queue": 0, "red": 2}
    assert dev("cluster", "describe", "dev", "-o", "json").data["state"] == "Ready"
    refused = dev("cluster", "resize", "dev", "--num-slices", "1")
    assert refused.code == 4 and "queues have been allotted more: red 2" in refused.err
    assert dev("cluster", "resize", "dev", "--num-slices", "3").code == 0
    assert quotas(dev) == {"multislice-queue": 1, "red": 2}

    assert "pass --yes to confirm" in dev("queue", "delete", "red").err
    assert dev("queue", "delete", "red", "--yes").code == 0
    assert quotas(dev) == {"multislice-queue": 3}
    assert dev("queue", "delete", "red", "--ignore-not-found", "--yes").code == 0


def test_teams_and_a_full_scale_job_share_a_cluster(dev: Xpk) -> None:
    assert dev("queue", "create", "red", "--quota", "1", "-n", "team-red").code == 0
    assert dev("queue", "create", "blue", "--quota", "0", "--borrowing-limit", "1", "-n", "team-blue").code == 0

    def sees(name: str, namespace: str) -> dict[str, Any]:
        result: dict[str, Any] = dev("workload", "status", name, "-n", namespace, "-o", "json").data
        return result

    def runs(name: str, namespace: str = "default") -> None:
        until(lambda: sees(name, namespace)["phase"] == "Running")

    def create(name: str, namespace: str, *arguments: str) -> None:
        done = dev("workload", "create", name, "-n", namespace, "--command", FOREVER, *arguments)
        assert done.code == 0, done.err

    create("guest", "team-blue", "--priority", "low")  # the only queue of the namespace
    runs("guest", "team-blue")
    create("full", "default", "--num-slices", "2", "--priority", "high")
    runs("full")
    guest = sees("guest", "team-blue")
    assert guest["phase"] == "Queued" and "preempted by default/full" in guest["reason"]
    create("small", "team-red", "--priority", "very-low")
    runs("small", "team-red")
    until(lambda: sees("guest", "team-blue")["phase"] == "Running")
    message = dev("workload", "status", "full").out
    assert "8 of 8" not in message and "16 needed, 0 free, at most 16 with borrowing" in message
    assert "held by team-blue/guest (8), team-red/small (8)" in message
    used = {item["name"]: item["shares"][0]["used"] for item in dev("queue", "list", "-o", "json").data}
    assert used == {"multislice-queue": 0, "blue": 1, "red": 1}
    assert "small" in dev("queue", "describe", "red").out and "guest" not in dev("queue", "describe", "red").out

    refused = dev("queue", "delete", "red", "--yes")
    assert refused.code == 4 and "workloads are in queue 'red': team-red/small" in refused.err
    assert "xpk workload delete small --cluster dev -n team-red" in refused.err
    asked = dev("queue", "create", "red", "--quota", "0")
    assert asked.code == 2 and "'red' uses 1 slices of v5litepod-8, and would have 0" in asked.err
    assert dev("queue", "delete", "red", "--force").code == 0
    message = dev("workload", "create", "giant", "-n", "team-blue", "--num-slices", "2", "--command", "true").err
    assert "queue 'blue' of cluster 'dev' has 8 in all" in message and "use --num-slices 1" in message
    message = dev("workload", "create", "lost", "-n", "team-red", "--command", "true").err
    assert "`xpk queue create multislice-queue --cluster dev -n team-red`" in message
    dev("cluster", "delete", "dev", "--force")


def test_bad_input_is_a_line_with_a_hint_and_changes_nothing(dev: Xpk) -> None:
    for arguments, code, says in (
        (("create",), 2, "no queue given\n  hint: xpk queue create NAME ..."),
        (("create", "red"), 2, "no quota given"),
        (("create", "red", "--quota", "3"), 5, "cannot have 3 slices of v5litepod-8: the cluster has 2"),
        (("create", "red", "--quota", "v5p-8=1"), 2, "no slices of v5p-8"),
        (("create", "multislice-queue"), 2, "pass -n NAMESPACE to let a namespace use it"),
        (("describe", "red"), 3, "queue 'red' not found"),
        (("delete", "red", "--yes"), 3, "queue 'red' not found"),
        (("delete", "multislice-queue", "--yes"), 2, "it is deleted with the cluster"),
        (("delete", "multislice-queue", "-n", "team-red", "--yes"), 3, "namespace 'team-red' has no queue"),
        (("list", "--cluster", "nope"), 3, "cluster 'nope' not found"),
    ):
        outcome = dev("queue", *arguments)
        assert (outcome.code, outcome.out) == (code, ""), arguments
        assert says in outcome.err and "  hint: " in outcome.err and "Traceback" not in outcome.err
    assert quotas(dev) == {"multislice-queue": 2}


def test_status_is_describe(dev: Xpk) -> None:
    message = dev("queue", "status", "multislice-queue", "-o", "json")
    assert message.code == 0 and message.data == dev("queue", "describe", "multislice-queue", "-o", "json").data
