"""Workloads that may run on several clusters, on two local clusters."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Xpk
from tests.waiting import until
from xpk.capacity.provider import provider_of
from xpk.client import Cluster
from xpk.local.api import LocalApi

FOREVER = "trap 'exit 143' TERM; while :; do sleep 0.05; done"
STEPS = 80  # so many that the run does not end before the test has taken its node away
TRAINER = (
    "--config", "tiny", "--set", f"run.steps={STEPS}", "--set", "checkpoint.every=5", "--set", "run.eval_every=0",
    "--set", "run.log_every=1", "--set", "data.max_bytes=400000", "--set", "data.global_batch=16",
    "--set", "model.seq_len=64", "--set", "model.layers=1",
)  # fmt: skip


@pytest.fixture
def pair(xpk: Xpk) -> Xpk:
    """Return a command line with clusters `a` and `b` of one slice with one host each."""
    for name in ("a", "b"):
        assert xpk("cluster", "create", name, "--tpu-type", "v5litepod-4").code == 0
    return xpk


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Return a folder that both clusters see."""
    return str(tmp_path / "runs")


def states(xpk: Xpk, name: str, cluster: str = "a") -> dict[str, str]:
    """Return the state of each copy of a workload."""
    status = xpk("workload", "status", name, "--cluster", cluster, "-o", "json").data
    return {placed["cluster"]: placed["state"] for placed in status["placements"]}


def place(xpk: Xpk, name: str, *arguments: str, cluster: str = "a") -> list[dict[str, Any]]:
    """Do what is due for a workload; return its placements."""
    placed = xpk("workload", "place", name, "--cluster", cluster, "--once", "-o", "json", *arguments)
    assert placed.code == 0, placed.err
    rows: list[dict[str, Any]] = placed.data
    return rows


def settled(xpk: Xpk, name: str, expected: dict[str, str]) -> bool:
    """Place a workload until its copies have the wanted states."""

    def is_settled() -> bool:
        return {row["cluster"]: row["state"] for row in place(xpk, name)} == expected

    return until(is_settled, seconds=60, report=lambda: states(xpk, name))


def test_a_workload_starts_on_the_first_cluster_and_its_copy_elsewhere_is_held(pair: Xpk, root: str) -> None:
    created = pair("workload", "create", "w", "--clusters", "a,b", "--output-root", root, "--command", FOREVER)
    assert created.code == 0, created.err
    assert "workload 'w' is queued on 'a', with held copies elsewhere" in created.err
    until(lambda: states(pair, "w", "b") == {"a": "running", "b": "held"})
    (held,) = pair("workload", "list", "--cluster", "b", "-o", "json").data
    assert (held["phase"], held["hosts"], held["clusters"]) == ("Suspended", [], ["a", "b"])
    assert pair("workload", "suspend", "w", "--cluster", "b").code == 0
    settled(pair, "w", {"a": "suspended", "b": "held"})  # its user's decision, so it is not moved
    refused = pair("workload", "create", "w", "--clusters", "a,b", "--output-root", root, "--command", FOREVER)
    assert refused.code == 4
    assert "already exists" in refused.err
    gone = pair("workload", "delete", "w", "--cluster", "b", "--yes")
    assert gone.code == 0, gone.err
    assert [pair("workload", "list", "--cluster", one, "-o", "json").data for one in "ab"] == [[], []]


def test_a_workload_moves_where_there_is_capacity_and_back(pair: Xpk, root: str) -> None:
    assert pair("workload", "create", "blocker", "--cluster", "a", "--command", FOREVER).code == 0
    options = ("--output-root", root, "--move-after", "1s")
    assert pair("workload", "create", "w", "--clusters", "a,b", *options, "--command", f"echo up; {FOREVER}").code == 0
    settled(pair, "w", {"a": "held", "b": "running"})
    until(lambda: "up" in pair("workload", "logs", "w", "--cluster", "a").out)
    shown = pair("workload", "status", "w", "--cluster", "a")
    assert "w: Running" in shown.out
    assert "  clusters   b: running\n             a: held\n" in shown.out
    unknown = pair("workload", "place", "w", "--cluster", "a", "--to", "c", "--once")
    assert (unknown.code, "no copy on cluster 'c'" in unknown.err, "a, b" in unknown.err) == (2, True, True)
    assert pair("workload", "delete", "blocker", "--cluster", "a", "--yes").code == 0
    place(pair, "w", "--to", "a")
    settled(pair, "w", {"a": "running", "b": "held"})
    planned = pair("workload", "delete", "w", "--cluster", "a", "--dry-run")
    assert planned.out == "workload 'w' would be deleted on a, b\n"
    # Whoever deletes the copy that runs, by any tool, deletes the workload.
    api("a").delete("JobSet", "w")
    assert "was deleted" in pair("workload", "place", "w", "--cluster", "b", "--once").err
    assert pair("workload", "list", "--cluster", "b", "-o", "json").data == []


def test_wait_places_a_workload_until_it_ends(pair: Xpk, root: str) -> None:
    ended = pair(
        "workload", "create", "w", "--clusters", "b,a", "--output-root", root, "--command", "true", "--wait",
        "-o", "json",
    )  # fmt: skip
    assert (ended.code, ended.data["phase"]) == (0, "Succeeded"), ended.err
    assert pair("workload", "list", "--cluster", "a", "-o", "json").data == [], "its held copy is gone"


def test_wait_returns_the_end_on_the_cluster_where_the_workload_ended(pair: Xpk, root: str) -> None:
    assert pair("workload", "create", "blocker", "--cluster", "a", "--command", FOREVER).code == 0
    options = ("--clusters", "a,b", "--output-root", root, "--move-after", "1s", "--wait", "-o", "json")
    ended = pair("workload", "create", "w", *options, "--command", "true")
    assert (ended.code, ended.data["phase"]) == (0, "Succeeded"), ended.err
    failed = pair("workload", "create", "f", *options, "--max-restarts", "0", "--command", "exit 1")
    assert (failed.code, failed.data["phase"]) == (8, "Failed"), failed.err
    assert "`xpk workload logs f --cluster b`" in failed.err


@pytest.mark.parametrize("words", [("wait",), ("logs", "-f", "--no-prefix")])
def test_wait_and_followed_logs_continue_where_a_workload_is_moved(
    pair: Xpk, root: str, tmp_path: Path, words: tuple[str, ...]
) -> None:
    go = tmp_path / "go"
    command = f"echo on $XPK_PLACEMENT_CLUSTER; trap 'exit 143' TERM; while [ ! -e {go} ]; do sleep 0.05; done; exit 3"
    options = ("--clusters", "a,b", "--output-root", root, "--max-restarts", "0", "--command", command)
    assert pair("workload", "create", "w", *options).code == 0
    until(lambda: states(pair, "w") == {"a": "running", "b": "held"})
    argv = [sys.executable, "-m", "xpk", "workload", words[0], "w", "--cluster", "a", *words[1:]]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as following:
        assert following.stdout and following.stderr
        begins = following.stderr if words[0] == "wait" else following.stdout
        assert any("Running" in line or line == "on a\n" for line in begins)
        place(pair, "w", "--to", "b")
        settled(pair, "w", {"a": "held", "b": "running"})
        go.touch()
        # Until the copy that is left is deleted, too; one pass may only notice the end.
        until(lambda: place(pair, "w", cluster="b")[1]["state"] == "ended" and following.poll() is not None, seconds=60)
        out, err = following.communicate(timeout=60)
    assert following.returncode == 8, err
    assert "workload 'w' was moved to cluster 'b'" in err
    assert " w --cluster b`" in err
    assert words[0] == "wait" or "on b\n" in out


def test_a_python_wait_continues_where_a_workload_is_moved(pair: Xpk, root: str) -> None:
    assert pair("workload", "create", "blocker", "--cluster", "a", "--command", FOREVER).code == 0
    options = ("--clusters", "a,b", "--output-root", root, "--move-after", "1s", "--command", "true")
    assert pair("workload", "create", "w", *options).code == 0
    handle = Cluster("a").workload("w", output_root=root)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(handle.wait, 60.0)
        until(lambda: place(pair, "w", cluster="b")[1]["state"] == "ended", seconds=60)
        assert waiting.result().phase == "Succeeded"


def test_all_problems_of_all_clusters_are_reported_before_anything_is_created(pair: Xpk, root: str) -> None:
    command = ("--command", "true")
    wrong = pair("workload", "create", "w", "--clusters", "a,c", "--num-slices", "9", "--move-after", "soon", *command)
    assert wrong.code == 2
    assert "cluster 'c' not found" in wrong.err
    assert "queue 'multislice-queue' of cluster 'a' has 4 in all" in wrong.err
    assert "soon" in wrong.err
    assert "different output roots" in pair("workload", "create", "w", "--clusters", "a,b", *command).err
    one = pair("workload", "create", "w", "--clusters", "a", "--output-root", root, *command)
    assert "requires at least two clusters" in one.err
    both = pair("workload", "create", "w", "--clusters", "a,b", "--cluster", "a", "--when", *command)
    assert "--clusters excludes --cluster and --context" in both.err
    assert "--when requires a single cluster" in both.err
    twice = pair("workload", "create", "w", "--clusters", "a,b,a", "--output-root", root, *command)
    assert "names a twice" in twice.err
    assert [pair("workload", "list", "--cluster", name, "-o", "json").data for name in "ab"] == [[], []]
    assert "has only one cluster" in single(pair).err
    assert not Path(root).exists()


def single(xpk: Xpk) -> Any:
    """Return the refusal to place a workload of one cluster."""
    assert xpk("workload", "create", "alone", "--cluster", "a", "--command", FOREVER).code == 0
    refused = xpk("workload", "place", "alone", "--cluster", "a", "--once")
    assert refused.code == 4
    return refused


def test_a_dry_run_prints_the_objects_of_all_copies(pair: Xpk, root: str) -> None:
    options = ("--clusters", "a,b", "--output-root", root, "--command", "true")
    printed = pair("workload", "create", "w", *options, "--dry-run=client")
    jobsets = [obj for obj in yaml.safe_load_all(printed.out) if obj["kind"] == "JobSet"]
    copies = [json.loads(obj["metadata"]["annotations"]["xpk.dev/copy"]) for obj in jobsets]
    assert [copy["cluster"] for copy in copies] == ["a", "b"]
    assert copies[0]["run"] == copies[1]["run"]
    for obj in jobsets:
        assert obj["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "xpk-held"
        assert obj["spec"]["suspend"] is True


def api(cluster: str) -> LocalApi:
    """Return the API of a local cluster."""
    connected = provider_of(cluster).connect(cluster)
    assert isinstance(connected, LocalApi)
    return connected


def losses(root: str, name: str) -> dict[int, str]:
    """Return the last loss of each step, in hexadecimal."""
    lines = Path(root, name, "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return {row["step"]: row["loss_hex"] for row in rows if "loss_hex" in row}


def reached(root: str, name: str, step: int) -> bool:
    """Return whether a run has logged a step."""
    file = Path(root, name, "metrics.jsonl")
    return file.exists() and max(losses(root, name), default=0) >= step


@pytest.fixture
def placing(pair: Xpk) -> Iterator[Xpk]:
    """Return the command line; the blocker of cluster `a` holds its only slice."""
    assert pair("workload", "create", "blocker", "--cluster", "a", "--command", FOREVER).code == 0
    until(lambda: pair("workload", "status", "blocker", "--cluster", "a", "-o", "json").data["phase"] == "Running")
    yield pair


@pytest.mark.slow
def test_a_run_moves_after_a_stock_out_and_goes_on_bit_exactly(placing: Xpk, root: str) -> None:
    xpk = placing
    calm = xpk("workload", "create", "calm", "--cluster", "b", "--output-root", root, "--wait", "--", *TRAINER)
    assert calm.code == 0, calm.err
    options = ("--clusters", "a,b", "--output-root", root, "--move-after", "5s", "--max-restarts", "0")
    created = xpk("workload", "create", "moved", *options, "--", *TRAINER)
    assert created.code == 0, created.err
    settled(xpk, "moved", {"a": "held", "b": "running"})
    place_of_run = api("b")
    (node,) = place_of_run.list("Node")
    until(lambda: reached(root, "moved", 12), seconds=120)
    # The place fails: its node is gone, and the other one is free again.
    place_of_run.delete("Node", node["metadata"]["name"])
    assert xpk("workload", "delete", "blocker", "--cluster", "a", "--yes").code == 0
    settled(xpk, "moved", {"a": "running", "b": "held"})
    for step in range(10, STEPS + 1, 10):
        until(lambda step=step: reached(root, "moved", step), seconds=120)  # type: ignore[misc]
    until(lambda: xpk("workload", "status", "moved", "--cluster", "a", "-o", "json").data["phase"] == "Succeeded")
    assert losses(root, "moved") == losses(root, "calm")
    assert sorted(losses(root, "moved")) == list(range(1, STEPS + 1))
    lines = Path(root, "moved", "events", "s0-h0.jsonl").read_text(encoding="utf-8").splitlines()
    (restore,) = [event for event in map(json.loads, lines) if event["event"] == "restore" and event["read"]]
    assert restore["step"] >= 10
