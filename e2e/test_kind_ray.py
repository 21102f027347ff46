"""Ray on kind: the run of the other drills with `--launcher ray`, a killed trainer and pod, and Ray's dashboard."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.drill import SECONDS, await_phase, start
from e2e.harness import Workload
from e2e.kind_cluster import Place

RAY = ("--launcher", "ray")
DEVICES = """
import ray, xpk_ray
ray.init()
print([one.hosts for one in xpk_ray.slices()], ray.cluster_resources()["TPU"])
"""


@pytest.mark.extended
def test_losses_after_kills_under_ray_equal_those_of_the_plain_launcher(place: Place, calm: Workload) -> None:
    run = start(place, "rays", max_restarts=2, options=RAY)
    await_phase(run)
    pods = {host["pod"] for host in run.describe()["hosts"]}
    run.end_program(1, 1)
    run.await_(lambda: bool(run.steps[-1]["attempt"] >= 1), SECONDS)
    described = run.describe()
    assert described["restarts"] == 0 and {host["pod"] for host in described["hosts"]} == pods
    await_phase(run)
    run.end_host(1, 0, signal.SIGKILL)
    run.wait(SECONDS)
    assert run.losses == calm.losses
    assert run.describe()["restarts"] == 1
    assert {line["attempt"] for line in run.steps} == {0, 1, 2}


@pytest.fixture(autouse=True)
def ended(place: Place) -> Iterator[None]:
    """Free the slices after each test, even a failed one."""
    yield
    place.clear()


@contextmanager
def forwarded(place: Place, name: str) -> Iterator[str]:
    """Return the address at which this machine reaches a workload's Ray."""
    argv = [sys.executable, "-m", "xpk", "workload", "port-forward", name, "0:8265", "--cluster", place.cluster]
    with subprocess.Popen(argv, env=place.lab.environ, stdout=subprocess.PIPE, text=True) as forward:
        try:
            assert forward.stdout is not None
            yield forward.stdout.readline().strip()
        finally:
            forward.send_signal(signal.SIGINT)


@pytest.mark.extended
def test_a_job_is_submitted_to_the_hosts_through_the_forwarded_port(place: Place, tmp_path: Path) -> None:
    (tmp_path / "devices.py").write_text(DEVICES)
    asked = ("--num-slices", "2", *RAY, "--ray-dashboard", "--fresh", "--command", "echo ready; sleep infinity")
    place.xpk("workload", "create", "pool", "--cluster", place.cluster, *asked)
    pool = Workload(place.lab, "pool")
    where = ("--cluster", place.cluster)
    pool.await_(lambda: bool(pool.describe()["phase"] == "Running"), SECONDS)
    pool.await_(lambda: "ready" in place.xpk("workload", "logs", "pool", *where).stdout, SECONDS)
    with forwarded(place, "pool") as address:
        token = (place.folder / "state" / "ray" / "default.pool.token").read_text()
        asking = urllib.request.Request(f"http://{address}/api/version", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(asking, timeout=60) as answer:
            assert json.load(answer)["ray_version"]
        submit = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit", "--working-dir", str(tmp_path)]
        auth = {"RAY_ADDRESS": f"http://{address}", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
        argv = [*submit, "--", "python", "devices.py"]
        done = subprocess.run(argv, env=os.environ | auth, capture_output=True, text=True, timeout=300, check=False)
        assert "[2, 2] 16.0" in done.stdout, done.stdout + done.stderr
