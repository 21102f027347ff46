"""The documented `xpk workload` lines of Google's xpk as dry runs without credentials: each shows its request."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Outcome, Xpk
from xpk.model.accelerators import find_shape

FILE = Path(__file__).with_name("upstream_lines.txt")
ROWS = [line.split("|", 2) for line in FILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
LINES = [(verdict.strip(), line.strip()) for verdict, _, line in ROWS]


def lines(verdict: str, *commands: str) -> list[str]:
    """Return the lines of some commands with one verdict."""
    return [line for result, line in LINES if result == verdict and (not commands or line.split()[0] in commands)]


@pytest.fixture
def offline(xpk: Xpk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Xpk:
    """Return the command line without these clusters and without credentials, in a folder with a file."""
    monkeypatch.setattr("google.auth.compute_engine._metadata._NO_GCE_CHECK", True)  # read at its first import
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "hello").write_text("echo hello\n")
    return xpk


def value(arguments: list[str], *flags: str) -> str | None:
    """Return the value of the last of these flags."""
    result = None
    for index, argument in enumerate(arguments):
        flag, equals, text = argument.partition("=")
        if flag in flags:
            result = text if equals else arguments[index + 1]
    return result


@pytest.mark.parametrize("line", lines("taken", "create", "create-pathways"))
def test_create_shows_the_request(offline: Xpk, line: str) -> None:
    arguments = shlex.split(line)
    if value(arguments, "--cluster") == "dev":  # of lines without a type
        assert offline("cluster", "create", "dev", "--tpu-type", "v5litepod-8").code == 0
    done = offline("workload", *arguments, "--dry-run")
    assert done.code == 0, done.err
    check_jobset(done, arguments)
    without_effect = [line.split()[1] for line in done.err.splitlines() if "has no effect" in line]
    assert len(without_effect) == len(set(without_effect)), "one warning for each flag"


def check_jobset(done: Outcome, arguments: list[str]) -> None:
    """Compare the JobSet with the arguments."""
    jobset = list(yaml.safe_load_all(done.out))[-1]
    (job,) = jobset["spec"]["replicatedJobs"]
    pods = job["template"]["spec"]["template"]["spec"]
    (container,) = pods["containers"]
    shape = find_shape(value(arguments, "--tpu-type", "--device-type") or "v5litepod-8")
    assert jobset["metadata"]["name"] == value(arguments, "--workload")
    assert jobset["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == (value(arguments, "--priority") or "medium")
    assert job["replicas"] == int(value(arguments, "--num-nodes", "--num-slices") or 1)
    assert job["template"]["spec"]["parallelism"] == shape.hosts
    assert container["resources"]["limits"] == {shape.resource: shape.resource_per_host}
    if image := value(arguments, "--docker-image", "--base-docker-image"):
        assert container["image"] == image
    if command := value(arguments, "--command"):
        assert command in [*container["command"], *container.get("args", ())]
    assert pods.get("schedulerName") == value(arguments, "--scheduler")
    environment = {item["name"]: item.get("value") for item in container["env"]}
    assert ("--enable-debug-logs" in arguments) == (environment.get("TPU_MIN_LOG_LEVEL") == "0")
    if file := value(arguments, "--output-manifest-file"):
        assert list(yaml.safe_load_all(Path(file).read_text()))[-1] == jobset
    if value(arguments, "--script-dir", "--base-docker-image"):
        assert container["workingDir"] == "/xpk/code"


@pytest.mark.parametrize("line", lines("taken", "list"))
def test_list_needs_no_server(offline: Xpk, line: str) -> None:
    done = offline("workload", *shlex.split(line), "--dry-run")
    assert (done.code, done.out, len(done.err.splitlines())) == (0, "", 1)


@pytest.mark.parametrize("line", lines("taken", "delete"))
def test_delete_shows_the_named_workloads(offline: Xpk, line: str) -> None:
    arguments = shlex.split(line)
    done = offline("workload", *arguments, "--dry-run")
    name = value(arguments, "--workload")
    assert done.code == 0 and done.out == (f"workload '{name}' would be deleted\n" if name else "")
    assert "this command would fail" in done.err


def test_at_least_95_percent_of_google_lines_are_accepted() -> None:
    taken, refused = len(lines("taken")), len(lines("refused"))
    assert taken >= 56 and taken / (taken + refused) >= 0.95


@pytest.mark.parametrize("line", [*lines("refused"), *lines("invalid")])
def test_rejected_google_lines_are_explained(offline: Xpk, line: str) -> None:
    done = offline("workload", *shlex.split(line), "--dry-run")
    assert done.code in (2, 3) and "error: " in done.err and done.out == ""
