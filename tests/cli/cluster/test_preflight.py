"""`xpk cluster preflight` and `xpk workload create --preflight` on a local cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Xpk
from tests.trainer.small import WORKLOADS
from tests.waiting import until
from tools.json_reference import OUTPUTS, schema_of
from xpk.cli.cluster.preflight import COLUMNS
from xpk.jobs.preflight import CheckResult, HostChecks

HOSTS = ["s0/h0", "s0/h1", "s1/h0", "s1/h1"]
# Python imports it at its start: it plants a fault in the process that checks slice 1 host 0.
PLANT = """
import os, sys
if "preflight" in sys.orig_argv and "--" not in sys.orig_argv:
    if (os.environ["MEGASCALE_SLICE_ID"], os.environ["TPU_WORKER_ID"]) == ("1", "0"):
        from tests.trainer.planted_preflight import FAULTS
        FAULTS["bit"]()
"""


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("nope",), 3, "cluster 'nope' not found"),
        (("dev", "--num-slices", "0"), 2, "0 is not in the range x>=1"),
        (("dev", "--num-slices", "3"), 5, "2 slices of cluster 'dev' are free and ready, not 3"),
        (("dev", "--tpu-type", "v5litepod-16"), 5, "0 slices of v5litepod-16 of cluster 'dev' are free and ready"),
        (("dev", "--tpu-type", "v5"), 2, "v5"),
        (("dev", "--min-dcn-gbps", "-1"), 2, "-1.0 is not in the range x>=0"),
        (("dev", "--timeout", "soon"), 2, "--timeout 'soon' is not a time"),
        (("dev", "--queue", "nope"), 3, "queue 'nope' not found in namespace 'default'"),
        (("dev", "--node", "dev-np-0-7"), 3, "no slice has a node 'dev-np-0-7'"),
        (("dev", "--node", "dev-np-0-0", "--node", "dev-np-9-0"), 3, "no slice has a node 'dev-np-9-0'"),
        (("dev", "--node", "dev-np-0-0", "--tpu-type", "v5e-8"), 2, "--node and --tpu-type exclude each other"),
        (("dev", "--node", "dev-np-0-0", "--num-slices", "1"), 2, "--node and --num-slices exclude each other"),
    ],
)
def test_bad_input_is_rejected(dev: Xpk, arguments: tuple[str, ...], code: int, says: str) -> None:
    done = dev("cluster", "preflight", *arguments)
    assert done.code == code and says in done.err and done.out == "" and "Traceback" not in done.err
    assert dev("workload", "list", "-o", "json").data == []


@pytest.mark.parametrize(("value", "cell"), [(12.345, "12.3"), (None, "ok")])
def test_a_bandwidth_without_a_number_is_shown(value: float | None, cell: str) -> None:
    """Any program may write the record, with numbers that JSON does not have."""
    ici = CheckResult(check="ici", passed=True, value=value, unit="GB/s", detail="", problem="")
    host = HostChecks(slice=0, host=0, node="n", passed=True, problem="", checks=(ici,))
    (column,) = (column for column in COLUMNS if column.title == "ICI GB/S")
    assert column.cell(host) == cell


def test_checks_without_time_are_deleted(dev: Xpk) -> None:
    done = dev("cluster", "preflight", "dev", "--timeout", "0s")
    assert done.code == 124 and "the checks are deleted; a longer --timeout gives them more time" in done.err
    assert dev("workload", "list", "-o", "json").data == []


def test_slices_in_use_are_not_checked(dev: Xpk) -> None:
    assert dev("workload", "create", "busy", "--num-slices", "2", "--command", "sleep 100").code == 0
    until(lambda: dev("workload", "list", "-o", "json").data[0]["phase"] == "Running")
    done = dev("cluster", "preflight", "dev")
    assert done.code == 5 and "0 slices of cluster 'dev' are free and ready" in done.err
    named = dev("cluster", "preflight", "dev", "--node", "dev-np-0-0", "--node", "dev-np-1-1")
    assert named.code == 5 and "hint: wait until it ends" in named.err
    assert "workload 'busy' is on slice dev-np-0; workload 'busy' is on slice dev-np-1" in named.err


def test_slices_in_quarantine_and_in_service_are_not_checked_together(dev: Xpk) -> None:
    assert dev("node", "quarantine", "dev-np-0-1").code == 0
    done = dev("cluster", "preflight", "dev", "--node", "dev-np-0-0", "--node", "dev-np-1-0")
    assert done.code == 4 and "slice dev-np-0 is quarantined and slice dev-np-1 is in service" in done.err
    assert dev("workload", "list", "-o", "json").data == []


def test_preflight_and_ray_exclude_each_other(dev: Xpk) -> None:
    done = dev("workload", "create", "w", "--preflight", "--launcher", "ray", "--command", "true")
    assert done.code == 2 and "--preflight and --launcher ray exclude each other" in done.err


@pytest.mark.slow
def test_all_free_slices_are_checked_and_nothing_is_left(dev: Xpk, state: Path) -> None:
    import jsonschema  # type: ignore[import-untyped]

    done = dev("cluster", "preflight", "dev", "-o", "json")
    assert done.code == 0, done.out
    jsonschema.validate(done.data, schema_of(OUTPUTS["xpk cluster preflight"]))
    assert [f"s{host['slice']}/h{host['host']}" for host in done.data["hosts"]] == HOSTS
    assert done.data["passed"] and all(host["passed"] and len(host["checks"]) == 9 for host in done.data["hosts"])
    assert dev("workload", "list", "-o", "json").data == []
    assert list((state / "clusters" / "dev" / "output").glob("*")) == []
    done = dev("cluster", "preflight", "dev", "--num-slices", "2", "--min-dcn-gbps", "100000", "--keep")
    assert done.code == 1 and "4 of 4 hosts failed: s0/h0 on dev-np-0-0" in done.err
    assert "at least 100000 GB/s is required" in done.out.replace("\n", " ")
    (kept,) = dev("workload", "list", "-o", "json").data
    assert kept["priority"] == "very-low"


@pytest.mark.slow
def test_a_failed_check_ends_its_host_before_training_starts(dev: Xpk, state: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(PLANT)
    planted = ("--env", f"PYTHONPATH={tmp_path}:{WORKLOADS.parent}")
    run = ("workload", "create", "w", "--num-slices", "2", "--preflight", *planted, "--wait", "--timeout", "3m")
    done = dev(*run, "--", "--config", "tiny", "--set", "run.steps=1")
    assert done.code == 8
    assert "host s1/h0: preflight failed: bf16: chip 1: 1 of 65,536 values are wrong" in done.err
    hosts = dev("workload", "status", "w", "-o", "json").data["hosts"]
    assert [host["exit_code"] for host in hosts if (host["slice"], host["host"]) == (1, 0)] == [79]
    assert not (state / "clusters" / "dev" / "output" / "w" / "metrics.jsonl").exists()


@pytest.mark.slow
def test_a_restart_in_place_does_not_repeat_checks_that_have_passed(dev: Xpk) -> None:
    first_host_fails = '[ "$MEGASCALE_SLICE_ID $TPU_WORKER_ID" = "0 0" ] || sleep 1000; exit 1'
    command = f'echo "attempt $XPK_RESTART_ATTEMPT"; [ "$XPK_RESTART_ATTEMPT" = 1 ] || {{ {first_host_fails}; }}'
    run = ("workload", "create", "w", "--num-slices", "2", "--preflight", "--max-restarts", "1", "--command", command)
    done = dev(*run, "--wait", "--timeout", "3m")
    assert done.code == 0, done.err
    lines = dev("workload", "logs", "w", "--slice", "0", "--host", "0").out
    assert lines.count("all 4 hosts passed") == 1
    assert "attempt 0" in lines and "attempt 1" in lines


@pytest.mark.slow
def test_a_quarantined_slice_returns_after_two_checks_in_a_row(dev: Xpk) -> None:
    assert dev("node", "quarantine", "dev-np-0-1", "--reason", "slow").code == 0
    busy = dev("workload", "create", "busy", "--command", "sleep 1000")
    assert busy.code == 0, "the other slice is in use"
    refused = dev("node", "return", "dev-np-0-0")
    assert refused.code != 0 and "has passed 0 of 2 preflight checks" in refused.err
    for passes in (1, 2):
        done = dev("cluster", "preflight", "dev", "--node", "dev-np-0-0", "-o", "json")
        assert done.code == 0, done.err
        assert [host["node"] for host in done.data["hosts"]] == ["dev-np-0-0", "dev-np-0-1"]
        assert f"slice dev-np-0 has passed {passes} of 2 checks in a row" in done.err
    failing = dev("cluster", "preflight", "dev", "--node", "dev-np-0-0", "--min-ici-gbps", "100000")
    assert failing.code == 1 and "has passed 0 of 2 checks in a row" in failing.err, "a failure counts from the start"
    listed = {item["name"]: item["passes"] for item in dev("node", "list", "-o", "json").data}
    assert listed == {"dev-np-0-0": 0, "dev-np-0-1": 0, "dev-np-1-0": 0, "dev-np-1-1": 0}
    failing = dev("node", "return", "dev-np-0-1", "--preflight", "--min-ici-gbps", "100000")
    assert failing.code == 1 and "2 of 2 hosts failed: s0/h0 on dev-np-0-0 (ici: with slice 0 host 1: " in failing.err
    assert {item["state"] for item in dev("node", "list", "-o", "json").data} == {"Quarantined", "InService"}
    assert dev("cluster", "preflight", "dev", "--node", "dev-np-0-1", "-q").code == 0
    back = dev("node", "return", "dev-np-0-0", "--preflight")
    assert back.code == 0, back.err
    assert "has passed 2 of 2 checks in a row" in back.err and "has passed 1 of" not in back.err
    assert "slice dev-np-0 returned to service" in back.err
    assert {item["state"] for item in dev("node", "list", "-o", "json").data} == {"InService"}


@pytest.mark.slow
def test_only_the_slices_of_named_nodes_are_checked(dev: Xpk) -> None:
    done = dev("cluster", "preflight", "dev", "--node", "dev-np-1-0", "--node", "dev-np-1-1", "-o", "json")
    assert done.code == 0, done.err
    assert [host["node"] for host in done.data["hosts"]] == ["dev-np-1-0", "dev-np-1-1"]
    assert "checks in a row" not in done.err, "a slice in service has none to count"
