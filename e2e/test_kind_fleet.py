"""Operation of a cluster with real nodes: quarantine and preflight checks, the live console, and the usage of chips.

eval "$(e2e/environment/up)" && .venv/bin/python -m pytest e2e/test_kind_fleet.py --timeout 900
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from e2e.kind_cluster import SLICES, XPK, Place
from tests.console.browser import Browser
from tests.waiting import until

SECONDS = 180.0
FOREVER = "trap 'exit 143' TERM; sleep 900 & wait"
TAINT = "xpk.dev/quarantined"
# Host s0/h1 fails once, after a step that s0/h0 has logged; the restart is in place.
LOGS_PROGRESS = """
trap 'exit 143' TERM
step=$((XPK_RESTART_ATTEMPT * 10))
while :; do
  step=$((step + 1))
  [ "$XPK_RESTART_ATTEMPT$TPU_WORKER_ID$step" != 016 ] || exit 3
  python3 -m xpk_run step=$step steps=1000 loss=$((100 - step)).5
  sleep 0.5
done
"""


def xpk(place: Place, *arguments: str) -> Any:
    """Return the fields that a command on the cluster prints."""
    return json.loads(place.xpk(*arguments, "--cluster", place.cluster, "-o", "json").stdout)


def create(place: Place, name: str, *options: str) -> None:
    """Create a workload, without remains of an earlier one in a place that is kept."""
    place.xpk("workload", "create", name, "--cluster", place.cluster, "--fresh", *options)


def until_running(place: Place, name: str, restarts: int) -> dict[str, Any]:
    """Return the status of a workload once it runs after some restarts."""

    def running() -> dict[str, Any]:
        status: dict[str, Any] = xpk(place, "workload", "status", name)
        return status if (status["phase"], status["restarts"]) == ("Running", restarts) else {}

    return until(running, seconds=SECONDS, every=1.0, report=place.what_is_there)


def taints(place: Place, node: str) -> str:
    """Return the keys of a node's taints."""
    return place.kubectl("get", "node", node, "-o", "jsonpath={.spec.taints[*].key}")


def test_a_quarantined_slice_has_no_workload_until_it_has_passed_two_checks(place: Place) -> None:
    create(place, "evicted", "--num-slices", str(SLICES), "--max-restarts", "0", "--command", FOREVER)
    try:
        node = until_running(place, "evicted", 0)["hosts"][0]["node"]
        (verdict,) = xpk(place, "node", "quarantine", node, "--reason", "two chips are slow", "--evict")
        assert verdict["action"] == "quarantine" and node in verdict["nodes"]
        assert all(TAINT in taints(place, one) for one in verdict["nodes"])
        status = until_running(place, "evicted", 1)
        assert status["restarts_counted"] == 0
        assert not {host["node"] for host in status["hosts"]} & {*verdict["nodes"]}
        place.end("evicted")

        checked = xpk(place, "cluster", "preflight", "--node", node)
        assert checked["passed"] and {host["node"] for host in checked["hosts"]} == {*verdict["nodes"]}
        listed = {one["node"]: one for one in xpk(place, "node", "list")}
        assert (listed[node]["state"], listed[node]["passes"]) == ("Quarantined", 1)
        assert "has passed 1 of 2" in place.xpk("node", "return", node, "--cluster", place.cluster, code=4).stderr
        returned = place.xpk("node", "return", node, "--preflight", "--cluster", place.cluster).stderr
        assert "has passed 2 of 2 checks in a row" in returned and "two chips are slow" in returned
        assert not any(TAINT in taints(place, one) for one in verdict["nodes"])
    finally:
        place.kubectl("taint", "nodes", "--all", f"{TAINT}-")  # after a failure
        place.end("evicted")


@contextmanager
def console(place: Place) -> Iterator[Browser]:
    """Serve the console, and yield a browser of it."""
    command = [*XPK, "serve", "--cluster", place.cluster, "--port", "0"]
    with subprocess.Popen(command, env=place.lab.environ, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            address = process.stdout.readline()
            match = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=(\S+)\n", address)
            assert match, address
            yield Browser(port=int(match[1]), tokens=[match[2]])
        finally:
            process.terminate()


def test_console_and_ledger_show_a_run_that_was_restarted_and_deleted(place: Place) -> None:
    try:
        create(place, "watched", "--max-restarts", "1", "--command", LOGS_PROGRESS)
        with console(place) as browser:
            overview, _ = browser.open()
            run, _ = browser.open(f"run={place.cluster}/default/watched")

            def shows_all() -> bool:
                row, restarts = overview.parts.get("runs", ""), run.parts.get("restarts", "")
                has_loss = re.search(r"8\d\.5", row) and "curve" in run.parts.get("loss", "")
                return bool("watched" in row and has_loss and "host s0/h1 ended with exit code 3" in restarts)

            until(shows_all, seconds=SECONDS, report=lambda: f"{overview.parts}\n{run.parts}")
    finally:
        place.end("watched")
    first, second = (held_by(place, "watched") for _ in range(2))
    assert first["steps"] > 0.0 and first["down"] > 0.0, first
    assert first == second, "what was recorded when it was deleted is not derived again"


def held_by(place: Place, workload: str) -> dict[str, float]:
    """Return the chip-hours that a workload has held, by cause."""
    used = xpk(place, "usage", "--since", "1h", "--by", "workload,cause")
    assert used["capacity"]["held_chip_hours"] <= used["capacity"]["capacity_chip_hours"]
    return {row["cause"]: row["held_chip_hours"] for row in used["rows"] if row["workload"] == workload}
