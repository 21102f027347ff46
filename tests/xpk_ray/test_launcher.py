"""Hosts under Ray before Ray starts: missing and inconsistent hosts, and their programs."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.hosts.bootstrap import Host
from xpk.jobs.create.options import Ray, ray_command
from xpk.jobs.port_forward import ray_token
from xpk.model.accelerators import find_shape
from xpk.testing import FakeApi
from xpk_ray.launcher import token, version_problems
from xpk_ray.shipping import program_environment

WORKLOADS = Path(__file__).parents[2] / "workloads"
FOUR = Host(num_slices=2, hosts_per_slice=2)
GOOD = ["2.60.0", "3.11.7"]
SECRET = "0123456789abcdef" * 4
PORT = 18476  # on addresses that no other test uses


def host(
    index: int,
    address: str,
    *arguments: str,
    path: Path | None = None,
    secret: Path | None = WORKLOADS.parent / "pyproject.toml",
) -> subprocess.Popen[str]:
    """Start the launcher of one of two slices with one host each."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("XPK_", "MEGASCALE_", "TPU_"))}
    contract = {
        "MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": str(index), "TPU_WORKER_ID": "0", "XPK_HOSTS_PER_SLICE": "1",
        "XPK_COORDINATOR_ADDRESS": f"{address}:{PORT}", "XPK_WORKLOAD": "w", "XPK_JOB_ID": "j",
        "PYTHONPATH": os.pathsep.join(map(str, filter(None, (path, WORKLOADS)))),
    }  # fmt: skip
    if secret:
        contract["XPK_PEER_SECRET_FILE"] = str(secret)
    argv = [sys.executable, "-m", "xpk_ray", "run", *arguments, "--", "true"]
    return subprocess.Popen(argv, env=clean | contract, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_missing_hosts_are_named() -> None:
    head = host(0, "127.77.1.1", "--join-seconds=1")
    _, output = head.communicate(timeout=60)
    assert head.returncode == 75
    assert output == "error: slice 0 host 0: did not join within 1 s: slice 1 host 0\n"


def test_a_host_with_another_ray_version_is_a_permanent_error(tmp_path: Path) -> None:
    (tmp_path / "ray-0.1.dist-info").mkdir()
    (tmp_path / "ray-0.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: ray\nVersion: 0.1\n")
    hosts = [host(0, "127.77.1.2"), host(1, "127.77.1.2", path=tmp_path)]
    for one in hosts:
        _, output = one.communicate(timeout=60)
        assert one.returncode == 42
        assert (
            output.startswith("error: slice 1 host 0 has Ray 0.1, but the driver on slice 0 host 0 has ")
            and output.count("\n") == 1
        )


ENDED_BY_US = """
import subprocess, time
from pathlib import Path
from trainer.hosts.bootstrap import Host
from xpk_ray import launcher, raylet

class Ray(raylet.Raylet):
    def has_started(self): return True
    def last_words(self): return "logs will be saved"
    def kill(self):
        self.process.kill()
        time.sleep(0.5)  # whoever waits for its end hears of it first

ray = Ray(subprocess.Popen(["sleep", "60"]), Path("start.log"), None)
host = launcher.Launcher(Host(), raylet.Shape(), raylet.Services(), 1.0, {})
raylet.start = lambda *_, **__: ray
host._start_raylet()
host.end(1)
"""


def test_ray_ending_with_its_host_is_not_an_error() -> None:
    argv = [sys.executable, "-c", ENDED_BY_US]
    done = subprocess.run(argv, env=os.environ | {"PYTHONPATH": str(WORKLOADS)}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


HANGS = """
import subprocess
from pathlib import Path
from trainer.hosts.bootstrap import Host
from xpk_ray import launcher, raylet

class Ray(raylet.Raylet):
    def has_started(self): return False

raylet.start = lambda *_, **__: Ray(subprocess.Popen(["sleep", "60"], process_group=0), Path("start.log"), None)
host = launcher.Launcher(Host(), raylet.Shape(), raylet.Services(), 0.9, {})
try:
    host._start_raylet()
except RuntimeError as error:
    print(error)
    host.end(1)
"""


def test_a_ray_that_does_not_start_in_time_ends_its_host(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", HANGS]
    environ = os.environ | {"PYTHONPATH": str(WORKLOADS)}
    done = subprocess.run(argv, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == "Ray did not start within 1 s (start.log)\n"


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ([GOOD] * 4, []),
        ([GOOD, GOOD, ["", "3.11.7"], GOOD], ["slice 1 host 0: Ray is not installed"]),
        (
            [GOOD, ["2.59.1", "3.11.7"], GOOD, ["2.60.0", "3.12.1"]],
            [
                "slice 0 host 1 has Ray 2.59.1, but the driver on slice 0 host 0 has 2.60.0",
                "slice 1 host 1 has Python 3.12.1, but the driver on slice 0 host 0 has 3.11.7",
            ],
        ),
        ([["", "3.11.7"], *[GOOD] * 3], ["slice 0 host 0: Ray is not installed"]),
    ],
)
def test_all_hosts_must_have_the_drivers_versions(found: list[list[str]], told: list[str]) -> None:
    assert [message for message, _ in version_problems(FOUR, found)] == told


def test_the_tool_and_the_hosts_agree_on_the_token() -> None:
    pod = {
        "metadata": {"namespace": "default", "labels": {"xpk.google.com/workload": "w"}},
        "spec": {"containers": [{"command": ["python", "-m", "xpk_ray", "run"]}]},
    }
    data = {"secret": base64.b64encode(SECRET.encode()).decode()}
    secret = {"kind": "Secret", "metadata": {"name": "xpk-peers.w", "namespace": "default"}, "data": data}
    api = FakeApi([secret])
    assert ray_token(api, pod) == token(SECRET.encode()) != token(b"another")
    assert ray_token(api, {**pod, "spec": {"containers": [{"command": ["python", "-m", "trainer"]}]}}) is None


@pytest.mark.parametrize("secret", [None, "", "no/such/file"])
def test_ray_without_authentication_is_not_started(secret: str | None, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(secret or "")
    head = host(0, "127.77.1.3", "--join-seconds=1", secret=None if secret is None else Path(secret or file))
    _, output = head.communicate(timeout=60)
    assert head.returncode == 42 and output.startswith("error: environment variable XPK_PEER_SECRET_FILE")


def test_every_host_gets_its_chips_and_the_head_runs_the_program() -> None:
    tpu, cpu = find_shape("v5litepod-8"), find_shape("n2-standard-4-2")
    own = ray_command("python it.py", (), Ray(dashboard=True), tpu, max_restarts=1)
    assert own[:4] == ("python", "-m", "xpk_ray", "run") and own[-4:] == ("--", "bash", "-c", "python it.py")
    assert {"--dashboard", "--chips=4", "--resource=TPU", "--topology=2x4"} <= set(own)
    bundled = ray_command(None, ("--config", "tiny"), Ray(), cpu, max_restarts=3)
    assert bundled[-4:] == ("--max-restarts=3", "--", "--config", "tiny")
    assert not [word for word in bundled if word.startswith(("--chips", "--dashboard"))]


def test_the_head_ships_the_users_code() -> None:
    cpu = find_shape("n2-standard-4-2")
    assert "--ship-code" in ray_command("python it.py", (), Ray(ships_code=True), cpu, max_restarts=0)
    assert "--ship-code" not in ray_command("python it.py", (), Ray(), cpu, max_restarts=0)
    found = program_environment("gcs://_ray_pkg_1.zip", {})
    assert json.loads(found["RAY_JOB_CONFIG_JSON_ENV_VAR"]) == {"runtime_env": {"working_dir": "gcs://_ray_pkg_1.zip"}}
    assert program_environment("", {}) == {}
    assert program_environment("gcs://_ray_pkg_1.zip", {"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"}) == {}
