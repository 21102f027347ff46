"""`xpk usage` on a local cluster."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import xpk as api
from tests.cli.conftest import Xpk
from tests.cli.conftest import dev as dev
from tests.cli.conftest import state as state
from tests.cli.conftest import xpk as xpk
from tests.jobs.report.runs import RunWriter
from tests.waiting import until
from xpk.jobs.output.roots import OutputRoots
from xpk.usage import usage_of, usage_source


def test_deleted_workloads_and_their_causes_stay_in_the_ledger(dev: Xpk, tmp_path: Path) -> None:
    began = tmp_path / "began"  # of the last host
    dev("workload", "create", "run", "--num-slices", "2", "--command", f"date +%s.%N > {began}; sleep 1")
    status = dev("workload", "wait", "run", "--timeout", "60", "-o", "json").data
    run = RunWriter(Path(status["output_dir"]), now=float(began.read_text()))
    run.folder.mkdir(parents=True, exist_ok=True)
    run.bring_up(0, init=0.1, restore=0.1, compile_=0.1)
    run.steps(1, 5, step_seconds=0.05)
    run.write()
    assert dev("workload", "delete", "run", "--yes", "--with-output").code == 0
    assert not run.folder.exists()
    used = dev("usage", "--since", "1h", "--by", "workload,cause", "-o", "json").data
    causes = {row["cause"]: row for row in used["rows"] if row["workload"] == "run" and row["held_chip_hours"]}
    assert causes["steps"]["productive_chip_hours"] == pytest.approx(16 * 0.25 / 3600, rel=0.01)
    assert {"init", "restore", "compile"} <= causes.keys() and "running" not in causes
    total, capacity = used["total"], used["capacity"]
    assert total["productive_chip_hours"] + total["lost_chip_hours"] == pytest.approx(total["held_chip_hours"])
    assert capacity["held_chip_hours"] + capacity["free_chip_hours"] == pytest.approx(capacity["capacity_chip_hours"])
    assert used["problems"] == []
    assert dev("usage", "--since", "1h", "--by", "workload,cause", "-o", "json").data["rows"] == used["rows"]


def test_usage_as_a_table_as_csv_and_with_prices(dev: Xpk, tmp_path: Path) -> None:
    dev("workload", "create", "run", "--command", "sleep 1")
    dev("workload", "wait", "run", "--timeout", "60")
    prices = tmp_path / "prices.yaml"
    prices.write_text("chip_hour: {v5litepod: {us-central1: 3600}}\n")
    table = dev("usage", "--by", "user,team", "--prices", str(prices))
    header, row = table.out.splitlines()[:2]
    assert header.split()[:5] == ["USER", "TEAM", "HELD", "PRODUCTIVE", "LOST"] and header.endswith("COST")
    assert row.split()[1] == "default" and "  the capacity of 6d23h is not recorded" in table.out
    (record,) = csv.DictReader(io.StringIO(dev("usage", "--prices", str(prices), "-o", "csv").out))
    assert record["team"] == "default" and "user" not in record
    assert float(record["cost"]) == pytest.approx(3600 * float(record["held_chip_hours"]), abs=0.02)
    dev("config", "set", "prices", str(prices))
    assert dev("usage", "-o", "json").data["total"]["cost"] is not None
    assert dev("usage", "--prices", "list", "-o", "json").data["prices"][0]["dollars"] is None
    dev("config", "unset", "prices")
    prices.write_text("chip_hour: {v6e: {us-central1: 3600}}\n")
    assert "prices.yaml has no price of v5litepod that is" in dev("usage", "--prices", str(prices)).err
    prices.write_text("chip_hour: [1]\n")
    assert "is not a price table" in dev("usage", "--prices", str(prices)).err


def test_list_prices_are_the_default_where_the_region_is_known(dev: Xpk) -> None:
    dev("workload", "create", "run", "--command", "sleep 1")
    dev("workload", "wait", "run", "--timeout", "60")
    local = dev("usage", "-o", "json").data
    assert (local["prices"], local["total"]["cost"]) == ([], None) and "COST" not in dev("usage").out
    source = usage_source("dev")
    in_region = replace(source.roots.target(), region="us-central1")
    used = usage_of(replace(source, roots=OutputRoots(lambda: in_region)))
    (price,) = used.prices
    assert (price.family, price.dollars, price.region, price.confirmed) == ("v5litepod", 1.2, "us-central1", True)
    assert price.source.startswith("https://") and price.as_of[:3] == "202"
    assert used.total.cost == pytest.approx(1.2 * used.total.held_chip_hours, abs=0.01)
    elsewhere = replace(in_region, region="nowhere1")
    unknown = usage_of(replace(source, roots=OutputRoots(lambda: elsewhere)))
    assert (unknown.prices[0].dollars, unknown.total.cost, unknown.problems) == (None, None, ())


def test_prices_are_shown_with_their_source_and_date(dev: Xpk, tmp_path: Path) -> None:
    dev("workload", "create", "run", "--command", "true")
    dev("workload", "wait", "run", "--timeout", "60")
    file = tmp_path / "prices.yaml"
    file.write_text("{chip_hour: {v5litepod: {us-central1: 2.5}}, sources: our contract, as_of: 2026-11-01}")
    line = "v5litepod: 2.5 US dollars a chip-hour on demand (2026-11-01: our contract)\n"
    assert f"  price     {line}" in dev("usage", "--prices", str(file)).out
    rows = dev("usage", "--prices", str(file), "-o", "csv")
    assert rows.err == line and rows.out.splitlines()[1].rpartition(",")[2]
    unknown = dev("usage", "--prices", "list")
    assert "the built-in table has no price of v5litepod that is the same in all regions" in unknown.err
    assert "  price     v5litepod: no price known\n" in unknown.out
    assert "'missing.yaml' does not exist" in dev("usage", "--prices", "missing.yaml").err


def test_the_python_api_returns_the_same(dev: Xpk) -> None:
    dev("workload", "create", "run", "--command", "true")
    dev("workload", "wait", "run", "--timeout", "60")
    usage = api.Cluster("dev").usage(by=("workload",))
    assert usage.rows[0].workload == "run" and usage.rows[0].held_chip_hours == usage.total.held_chip_hours
    now = datetime.now(UTC)
    until_tomorrow = api.Cluster("dev").usage(since=now - timedelta(hours=1), until=now + timedelta(days=1))
    assert until_tomorrow.unrecorded_seconds <= 3600 and until_tomorrow.until < f"{now + timedelta(hours=1):%FT%TZ}"
    with pytest.raises(api.UsageError, match="since must be before until"):
        api.Cluster("dev").usage(since=now + timedelta(hours=1), until=now)


def test_wrong_requests_are_refused_with_all_problems(xpk: Xpk) -> None:
    done = xpk("usage", "--by", "teams,team,team", "--since", "yesterday", "--until", "later")
    assert done.code == 2 and [line.partition(" (")[0] for line in done.err.splitlines()] == [
        "error: --since 'yesterday' is not a time",
        "error: --until 'later' is not a time",
        "error: --by: unknown column 'teams': did you mean 'team'?",
        "error: --by: 'team' is given twice",
        "  hint: `xpk usage --help`",
    ]
    for since in ("2099-01-01", "0s"):
        assert xpk("usage", "--since", since).err.startswith(f"error: --since '{since}' must be before now")
    assert xpk("usage").code == 3
    assert xpk("usage", "--cluster", "nope").code == 3


def test_a_cut_off_file_is_one_clear_line(dev: Xpk, state: Path) -> None:
    dev("workload", "create", "run", "--command", "true")
    dev("workload", "wait", "run", "--timeout", "60")
    folder = state / "clusters" / "dev" / "usage"
    file = until(lambda: sorted(folder.rglob("*.json")))[0]
    file.write_bytes(file.read_bytes()[:50])
    done = dev("usage")
    name = file.relative_to(folder)
    assert done.code == 0
    assert done.err == f"warning: a usage record is left out: it is cut off ({name} in {folder})\n"


def test_the_workloads_of_the_ledger_are_replayed(dev: Xpk, tmp_path: Path) -> None:
    file = tmp_path / "week.jsonl"
    none = dev("usage", "--since", "1h", "--trace", str(file))
    assert none.code == 3 and "has no workloads" in none.err and not file.exists()
    for name in ("one", "two"):
        dev("workload", "create", name, "--num-slices", "2", "--command", "sleep 1")
        dev("workload", "wait", name, "--timeout", "60")
    done = dev("usage", "--since", "1h", "--trace", str(file))
    assert (done.code, done.out) == (0, "") and "all workloads have the default, medium" in done.err
    assert f"Wrote 2 workloads to {file}" in done.err
    (replayed,) = dev("queue", "simulate", "--replay", str(file), "-o", "json").data["replayed"]
    assert (replayed["workloads"], replayed["started"]) == (2, 2)
    assert "--trace excludes --output" in dev("usage", "--trace", "f", "-o", "json").err
    assert "cannot write" in dev("usage", "--trace", str(tmp_path / "none" / "f")).err
