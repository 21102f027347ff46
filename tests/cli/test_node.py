"""`xpk node` on a local cluster."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.conftest import Xpk
from tests.waiting import until

CRASH = (
    'if [ "$MEGASCALE_SLICE_ID/$TPU_WORKER_ID" = 0/1 ] && [ "$XPK_RESTART_ATTEMPT" -lt 2 ]; then kill -SEGV $$; fi; '
    "trap 'exit 143' TERM; sleep 1000 & wait"
)


def states(xpk: Xpk) -> dict[str, str]:
    """Return the state of each node."""
    return {item["name"]: item["state"] for item in xpk("node", "list", "-o", "json").data}


def test_a_slice_is_quarantined_by_hand_and_returned(dev: Xpk) -> None:
    dry = dev("node", "quarantine", "dev-np-0-1", "--dry-run")
    assert dry.code == 0 and "slice dev-np-0 would be quarantined" in dry.err
    assert set(states(dev).values()) == {"InService"}
    made = dev("node", "quarantine", "dev-np-0-1", "--reason", "loose\ncable", "-o", "json")
    assert made.code == 0 and made.data[0]["slice"] == "dev-np-0" and made.data[0]["reason"] == "loose cable"
    assert states(dev) == {
        "dev-np-0-0": "Quarantined", "dev-np-0-1": "Quarantined", "dev-np-1-0": "InService", "dev-np-1-1": "InService",
    }  # fmt: skip
    assert "in the slice of dev-np-0-1: loose cable" in dev("node", "list").out
    assert "Quarantined" in dev("cluster", "health", "dev").out
    placed = dev("workload", "create", "a", "--command", "sleep 1000")
    assert placed.code == 0

    def nodes() -> set[str]:
        return {host["node"] for host in dev("workload", "status", "a", "-o", "json").data["hosts"] if host["node"]}

    until(lambda: len(nodes()) == 2)
    assert nodes() == {"dev-np-1-0", "dev-np-1-1"}, "the queue does not use the quarantined slice"
    early = dev("node", "return", "dev-np-0-0")
    assert early.code != 0 and "slice dev-np-0 has passed 0 of 2 preflight checks" in early.err
    assert "`xpk node return dev-np-0-0 --preflight` checks it; --force returns it without" in early.err
    dry = dev("node", "return", "dev-np-0-0", "--preflight", "--dry-run")
    assert dry.code == 0 and "slice dev-np-0 would be checked and returned to service" in dry.err
    back = dev("node", "return", "dev-np-0-0", "--force")
    assert back.code == 0 and "slice dev-np-0 returned to service" in back.err
    assert set(states(dev).values()) == {"InService"}


def test_the_status_names_the_quarantined_slice_of_a_workload_that_stays_there(dev: Xpk) -> None:
    assert dev("workload", "create", "a", "--num-slices", "2", "--command", "sleep 1000").code == 0
    until(lambda: dev("workload", "status", "a", "-o", "json").data["phase"] == "Running")
    assert dev("node", "quarantine", "dev-np-0-1", "--reason", "loose cable").code == 0
    (suspect,) = dev("workload", "status", "a", "-o", "json").data["suspects"]
    assert (suspect["node"], suspect["host"], suspect["score"]) == ("dev-np-0-1", 1, 0.0)
    line = f"host s{suspect['slice']}/h1 is on quarantined node dev-np-0-1: loose cable (xpk node list)"
    assert line in dev("workload", "status", "a").out
    assert dev("node", "return", "dev-np-0-1", "--force").code == 0
    assert dev("workload", "status", "a", "-o", "json").data["suspects"] == []


def test_the_slice_of_a_host_that_crashes_twice_is_quarantined_and_its_workload_moves(dev: Xpk) -> None:
    assert dev("workload", "create", "a", "--max-restarts", "5", "--command", CRASH).code == 0

    def suspects() -> list[dict[str, Any]]:
        return [item for item in dev("node", "list", "-o", "json").data if item["state"] == "Suspect"]

    until(lambda: bool(suspects()))
    (suspect,) = suspects()
    assert {one["kind"] for one in suspect["evidence"]} == {"signal"}
    dry = dev("node", "quarantine", "--by-evidence", "--dry-run", "-o", "name")
    assert dry.out == f"{suspect['name']}\n" and states(dev)[suspect["name"]] == "Suspect"
    assert "2 signal" in dev("node", "quarantine", "--by-evidence").out
    assert f"host s0/h1 is on quarantined node {suspect['name']}, score 1.2: " in dev("workload", "status", "a").out
    assert dev("node", "quarantine", suspect["name"], "--evict").code == 0
    quarantined = {name for name, state in states(dev).items() if state == "Quarantined"}
    assert len(quarantined) == 2 and suspect["name"] in quarantined

    def nodes() -> set[str]:
        hosts = dev("workload", "status", "a", "-o", "json").data["hosts"]
        return {host["node"] for host in hosts if host["node"] and host["phase"] == "Running"}

    until(lambda: len(nodes()) == 2 and not nodes() & quarantined)
    assert "no suspect" in dev("node", "quarantine", "--by-evidence").err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("quarantine",), "no node given"),
        (("quarantine", "dev-np-7-0"), "no slice has a node 'dev-np-7-0'"),
        (("quarantine", "dev-np-0-0", "--by-evidence"), "pass either a node or --by-evidence, not both"),
        (("quarantine", "--by-evidence", "--reason", "x"), "--reason requires a node"),
        (("quarantine", "dev-np-0-0", "--watch"), "--watch requires --by-evidence"),
        (("quarantine", "--by-evidence", "--watch", "-o", "json"), "--watch only prints lines"),
        (("quarantine", "--by-evidence", "--interval", "1s"), "--interval must be between 10 and 86400 seconds"),
        (("quarantine", "--by-evidence", "--interval", "1m"), "--interval requires --watch"),
        (("quarantine", "dev-np-0-0", "--max-percent", "10"), "--max-percent requires --by-evidence"),
        (("quarantine", "--by-evidence", "--max-percent", "101"), "Invalid value for '--max-percent'"),
        (("return", "dev-np-0-0"), "node 'dev-np-0-0' is not quarantined"),
        (("return", "dev-np-0-0", "--preflight"), "node 'dev-np-0-0' is not quarantined"),
        (("return", "dev-np-0-0", "--preflight", "--timeout", "soon"), "--timeout 'soon' is not a time"),
        (("return", "dev-np-0-0", "--preflight", "--force"), "--preflight and --force exclude each other"),
        (("return", "dev-np-0-0", "--queue", "red", "--min-ici-gbps", "1"), "--min-ici-gbps requires --preflight"),
    ],
)
def test_wrong_arguments_are_refused(dev: Xpk, arguments: tuple[str, ...], words: str) -> None:
    result = dev("node", *arguments)
    assert result.code != 0 and words in result.err and "hint: " in result.err
