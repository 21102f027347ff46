"""`xpk workload diff`, on a local cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Xpk

COMMAND = ("--command", "sleep 60")


@pytest.fixture
def running(dev: Xpk) -> Xpk:
    assert dev("workload", "create", "one", *COMMAND, "--env", "A=1").code == 0
    return dev


def test_the_same_options_have_no_diff(running: Xpk) -> None:
    same = running("workload", "diff", "one", *COMMAND, "--env", "A=1")
    assert (same.code, same.out) == (0, "") and "no difference" in same.err
    data = running("workload", "diff", "--workload", "one", *COMMAND, "--env=A=1", "-o", "json").data
    assert data == {"name": "one", "other": None, "equal": True, "fields": [], "diff": ""}


def test_other_options_are_a_diff_and_exit_code_1(running: Xpk) -> None:
    other = running("workload", "diff", "one", *COMMAND, "--env", "A=2", "--num-slices", "2")
    assert other.code == 1 and other.out.startswith("--- running/one\n+++ create/one\n")
    assert (
        "+    replicas: 2\n" in other.out and "-                value: '1'\n+                value: '2'\n" in other.out
    )
    data = running("workload", "diff", "one", *COMMAND, "--env", "A=2", "-o", "json").data
    assert not data["equal"] and data["fields"][0]["before"] == "1" and data["fields"][0]["after"] == "2"
    assert running("workload", "diff", "one", *COMMAND, "-o", "name").out == "one\n"
    assert running("workload", "list", "-o", "name").out == "one\n"  # nothing was created


@pytest.mark.parametrize("option", [("--clusters", "dev,other"), ("--move-after", "5s"), ("--when",)])
def test_options_that_do_not_affect_the_difference_are_not_offered(running: Xpk, option: tuple[str, ...]) -> None:
    refused = running("workload", "diff", "one", *COMMAND, *option)
    assert refused.code == 2 and f"No such option '{option[0]}'" in refused.err


def test_two_running_workloads_are_compared(running: Xpk) -> None:
    running("workload", "create", "two", *COMMAND, "--env", "A=1")
    assert running("workload", "diff", "one", "two").code == 0
    running("workload", "create", "three", *COMMAND, "--env", "A=3")
    assert running("workload", "diff", "one", "three").code == 1
    refused = running("workload", "diff", "one", "two", "--num-slices", "2", "--env", "B=1", "--", "--config", "tiny")
    assert refused.code == 2 and refused.err.count("error: ") == 3


def test_incomparable_fields_are_not_differences(running: Xpk, monkeypatch: pytest.MonkeyPatch, state: Path) -> None:
    for words in (("gone", *COMMAND), ("gone", "one"), ("one", "gone")):
        missing = running("workload", "diff", *words)
        assert missing.code == 3 and "workload 'gone' not found" in missing.err
    assert running("workload", "diff", "one", *COMMAND, "--max-restarts", "-1").code == 2
    assert running("workload", "diff").code == 2
    for name in ("store.db", "store.db-wal", "store.db-shm"):
        (state / "clusters" / "dev" / name).write_bytes(b"no database at all" * 100)
    damaged = running("workload", "diff", "one", "one")
    assert damaged.code == 125 and "damaged" in damaged.err


def test_variables_of_create_count(running: Xpk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XPK_WORKLOAD_CREATE_PRIORITY", "low")
    assert "priority-class: low" in running("workload", "diff", "one", *COMMAND, "--env", "A=1").out
    monkeypatch.delenv("XPK_WORKLOAD_CREATE_PRIORITY")
    running("config", "set", "priority", "high")
    assert "priority-class: high" in running("workload", "diff", "one", *COMMAND, "--env", "A=1").out


def test_a_file_of_create_is_compared(running: Xpk, tmp_path: Path) -> None:
    options = (*COMMAND, "--env", "A=1", "--fresh", "--max-cost", "5", "--dry-run", "-o", "spec")
    (tmp_path / "one.yaml").write_text(running("workload", "create", "one", *options).out)
    same = running("workload", "diff", "-f", str(tmp_path / "one.yaml"))
    assert same.code == 0 and "no difference" in same.err
    assert running("workload", "diff", "one", *COMMAND, "-o", "spec").code == 2
