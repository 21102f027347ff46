"""`xpk plan goodput`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Xpk
from tests.cli.conftest import dev as dev
from tests.cli.conftest import state as state
from tests.cli.conftest import xpk as xpk
from tests.jobs.report.runs import one_kill

SEED = ("plan", "goodput", "--config", "128b", "--num-slices", "199")


def test_a_forecast_needs_no_cluster(xpk: Xpk) -> None:
    done = xpk(*SEED)
    assert done.code == 0 and "50,944 chips" in done.out and "never measured on a TPU" in done.out
    assert "checkpoint.every=" in done.out and "list price in us-central1" in done.out


def test_options_replace_assumptions(xpk: Xpk) -> None:
    data = xpk(*SEED, "--repair", "10m", "--local-share", "0.5", "--price", "1", "-o", "json").data
    stated = {one["name"]: one["value"] for one in data["assumptions"] if one["source"] == "option"}
    assert stated == {"repair": 600.0, "local_share": 0.5} and data["dollars_per_chip_hour"] == 1
    assert data["handlings"][0]["handling"] == data["best"]


def test_a_lower_mtbf_costs_more(xpk: Xpk) -> None:
    lost = [
        xpk(*SEED, "--mtbf-chip-hours", hours, "-o", "json").data["handlings"][0]["dollars_lost_per_day"]
        for hours in ("5e4", "5e5")
    ]
    assert lost[0] > lost[1]


def test_a_region_without_a_price_leaves_the_cost_out(xpk: Xpk) -> None:
    done = xpk(*SEED, "--region", "nowhere", "-o", "json")
    assert done.data["dollars_per_chip_hour"] is None and done.data["handlings"][0]["dollars_per_day"] is None
    assert "no list price" in done.data["notes"][-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "the time of a step is unknown"),
        (("--config", "128c"), "unknown config '128c'"),
        (("--config", "tiny", "--restore", "soon"), "--restore 'soon' is not a time"),
        (("--config", "tiny", "--local-share", "2"), "Invalid value for '--local-share'"),
        (("--config", "tiny", "--num-slices", "2", "--min-slices", "3"), "--min-slices must be from 1 to"),
        (("--config", "tiny", "--tpu-type", "h100-80gb-8"), "estimates TPUs only"),
        (("--config", "tiny", "--from-workload", "lm"), "--config and --from-workload exclude each other"),
    ],
)
def test_wrong_requests_are_refused_in_one_line(arguments: tuple[str, ...], message: str, xpk: Xpk) -> None:
    done = xpk("plan", "goodput", *arguments)
    assert done.code == 2 and message in done.err and "Traceback" not in done.err and done.out == ""
    assert done.err.splitlines()[-1].startswith("  hint: ")


def test_a_run_provides_durations_and_failures(dev: Xpk) -> None:
    dev("workload", "create", "run", "--num-slices", "2", "--command", "true")
    output = dev("workload", "wait", "run", "--timeout", "60", "-o", "json").data["output_dir"]
    one_kill(Path(output))
    done = dev("plan", "goodput", "--from-workload", "run", "--mtbf-chip-hours", "10", "-o", "json")
    assert done.code == 0, done.err
    sources = {one["name"]: one["source"] for one in done.data["assumptions"]}
    assert sources["restore"] == "workload run" and done.data["step_seconds"] == pytest.approx(0.4)
    assert done.data["mtbf_chip_hours"] > 10 and done.data["num_slices"] == 2
    assert dev("plan", "goodput", "--from-workload", "nope").code == 3


def test_the_command_imports_no_jax() -> None:
    program = f"import sys; from xpk.cli.main import main; main({list(SEED)!r}); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"jax", "numpy", "kubernetes"} & {name.partition(".")[0] for name in done.stderr.split()}
