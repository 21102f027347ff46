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
from xpk.model.names import QUARANTINE_TAINT as TAINT
from xpk.model.names import SPARE_LABEL

SECONDS = 180.0
FOREVER = "trap 'exit 143' TERM; sleep 900 & wait"
# Host s0/h1 fails once, after a step that s0/h0 has logged; the restart is in place. The last step stays on the page,
# so that it does not matter when one looks.
LOGS_PROGRESS = """
trap 'exit 143' TERM
step=$((XPK_RESTART_ATTEMPT * 10))
while :; do
  step=$((step + 1))
  [ "$XPK_RESTART_ATTEMPT$TPU_WORKER_ID$step" != 016 ] || exit 3
  python3 -m xpk_run step=$step steps=1000 loss=$((100 - step)).5
  [ $step -lt 19 ] || { sleep 900 & wait; }
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


def slice_nodes(place: Place, *, spare: bool) -> list[str]:
    """Return the names of the nodes of spare slices, or of the others."""
    selector = "cloud.google.com/gke-nodepool," + ("" if spare else "!") + SPARE_LABEL
    return place.kubectl("get", "nodes", "-l", selector, "-o", "jsonpath={.items[*].metadata.name}").split()


def is_tainted(place: Place, node: str) -> bool:
    """Return whether a node has the taint of quarantine."""
    return TAINT in place.kubectl("get", "node", node, "-o", "jsonpath={.spec.taints[*].key}")


def test_a_quarantined_slice_has_no_workload_until_it_has_passed_two_checks(place: Place) -> None:
    here = ("--cluster", place.cluster)
    (first, *_), (spare, *_) = slice_nodes(place, spare=False), slice_nodes(place, spare=True)
    try:
        (verdict,) = xpk(place, "node", "quarantine", first, "--reason", "two chips are slow")
        assert verdict["action"] == "quarantine" and is_tainted(place, first)
        create(place, "moved", "--num-slices", str(SLICES), "--max-restarts", "0", "--command", FOREVER)
        nodes = {host["node"] for host in until_running(place, "moved", 0)["hosts"]}
        assert first not in nodes and spare in nodes
        place.xpk("node", "return", first, "--force", *here)

        (verdict,) = xpk(place, "node", "quarantine", spare, "--evict")
        status = until_running(place, "moved", 1)
        nodes = {host["node"] for host in status["hosts"]}
        assert first in nodes and not nodes & {*verdict["nodes"]} and status["restarts_counted"] == 0
        place.end("moved")

        checked = xpk(place, "cluster", "preflight", "--node", spare)
        assert checked["passed"] and {host["node"] for host in checked["hosts"]} == {*verdict["nodes"]}
        listed = {one["node"]: one for one in xpk(place, "node", "list")}
        assert (listed[spare]["state"], listed[spare]["passes"]) == ("Quarantined", 1)
        assert "has passed 1 of 2" in place.xpk("node", "return", spare, *here, code=4).stderr
        assert "has passed 2 of 2 checks" in place.xpk("node", "return", spare, "--preflight", *here).stderr
        assert not is_tainted(place, first) and not is_tainted(place, spare)
    finally:
        place.kubectl("taint", "nodes", "--all", f"{TAINT}-")  # after a failure
        place.end("moved")


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
