"""Bad input and broken environments on the command line: one line, a hint, the right exit code, no traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.api.scripted_server import Script, kubeconfig, serving
from tests.cli.conftest import Xpk
from tests.cli.messages import one_line
from xpk.capacity.local.provider import LocalProvider


@pytest.fixture
def remote(state: Path, xpk: Xpk) -> Path:
    """Return the folder of a kind cluster `far` with its kubeconfig."""
    folder = state / "kind" / "far"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        ("{{{ no yaml", 2, "cannot read kubeconfig"),
        ("just words", 2, "is not a kubeconfig"),
        ("", 2, "has no current one"),
    ],
)
def test_a_damaged_kubeconfig(xpk: Xpk, remote: Path, content: str, code: int, says: str) -> None:
    (remote / "kubeconfig").write_text(content)
    for command in ("list", "status w", "create w --command true", "delete w", "logs w", "wait w", "exec w -- ls"):
        name, *more = command.split()
        cut = more.index("--") if "--" in more else len(more)
        result = xpk("workload", name, *more[:cut], "--cluster", "far", *more[cut:])
        assert result.code == code and says in one_line(result.err), command


@pytest.mark.parametrize(
    ("answer", "code", "says"),
    [
        ((200, "<html><title>Log in</title></html>"), 1, "it sent a web page, 'Log in'"),
        ((401, {"kind": "Status", "message": "Unauthorized"}), 6, "invalid credentials"),
        (
            (403, {"message": 'User "bob" cannot list resource "jobsets" in API group "x" in the namespace "default"'}),
            6,
            "user 'bob' cannot list jobsets.x in namespace 'default'",
        ),
        ((404, {"message": "the server could not find the requested resource"}), 7, "JobSet is not installed"),
    ],
)
def test_a_server_that_rejects_requests_is_reported(
    xpk: Xpk, remote: Path, answer: tuple[int, object], code: int, says: str
) -> None:
    with serving(Script({"*": [answer]})) as server:
        kubeconfig(remote, server)
        result = xpk("workload", "list", "--cluster", "far")
    assert result.code == code and says in one_line(result.err)


def test_an_unreachable_cluster_is_reported(xpk: Xpk, remote: Path) -> None:
    kubeconfig(remote, "https://no-such-host.invalid")
    result = xpk("workload", "list", "--cluster", "far")
    assert result.code == 1 and "its name does not resolve" in one_line(result.err)


def test_an_unwritable_manifest_creates_nothing(dev: Xpk, tmp_path: Path) -> None:
    result = dev("workload", "create", "w", "--command", "true", "--output-manifest-file", str(tmp_path))
    assert result.code == 1 and "Is a directory" in one_line(result.err)
    assert dev("workload", "status", "w").code == 3
    folder = dev("workload", "create", "w", "--command", "true", "--env-file", str(tmp_path))
    assert folder.code == 2 and str(tmp_path) in one_line(folder.err)


@pytest.mark.parametrize("name", ["W", "w_1", "1w", "-w", "w-", "ü", "a" * 64, "w.x", "w w", "w\n"])
def test_names_that_kubernetes_rejects_are_reported(dev: Xpk, name: str) -> None:
    result = dev("workload", "create", "--workload", name, "--command", "true")
    assert result.code == 2 and "Traceback" not in result.err and "internal error" not in result.err
    assert dev("workload", "list", "-o", "name").out == ""
    assert dev("cluster", "create", "--cluster", name, "--tpu-type", "v5litepod-8").code == 2


def test_a_namespace_without_a_queue(dev: Xpk) -> None:
    result = dev("workload", "create", "w", "--namespace", "nope", "--command", "true")
    assert result.code == 3 and "queue 'multislice-queue' not found in namespace 'nope'" in one_line(result.err)


def test_a_jobset_of_another_tool_is_not_treated_as_ours(dev: Xpk, state: Path) -> None:
    container = {"name": "host", "command": ["sleep", "60"]}
    job = {
        "parallelism": 1,
        "completions": 1,
        "template": {"spec": {"containers": [container], "restartPolicy": "Never"}},
    }
    LocalProvider(state).connect("dev").create(
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": "theirs", "labels": {"app.kubernetes.io/managed-by": "argo"}},
            "spec": {"suspend": True, "replicatedJobs": [{"name": "j", "replicas": 1, "template": {"spec": job}}]},
        }
    )
    taken = dev("workload", "create", "theirs", "--command", "true")
    assert taken.code == 4 and "created by argo, not xpk" in one_line(taken.err)
    kept = dev("workload", "delete", "theirs")
    assert kept.code == 4 and "created by argo" in one_line(kept.err) and "--force" in kept.err
    foreseen = dev("workload", "delete", "theirs", "--dry-run")
    assert foreseen.out == "" and "would fail: 'theirs' was created by argo" in foreseen.err
    assert dev("workload", "delete", "--all", "--yes").code == 0
    assert "created by argo" in dev("workload", "status", "theirs").out
    before = sorted(Path.cwd().iterdir())
    assert dev("workload", "delete", "theirs", "--force", "--with-output").code == 0
    assert sorted(Path.cwd().iterdir()) == before, "a workload without an output folder has no output to remove"


def test_status_names_the_cause_of_waiting_and_a_next_command(dev: Xpk) -> None:
    dev("workload", "create", "big", "--num-slices", "2", "--command", "sleep 60")
    dev("workload", "create", "small", "--command", "sleep 60")
    shown = dev("workload", "status", "small").out
    for _ in range(100):
        if "held by big (16)" in shown:
            break
        shown = dev("workload", "status", "small").out
    assert "v5litepod-8: 16 of 16 google.com/tpu in use; 8 needed, 0 free; held by big (16)" in shown
    assert shown.rstrip().splitlines()[-1] == "  next       xpk workload list --cluster dev"
    result = json.loads(dev("workload", "status", "small", "-o", "json").out)
    assert result["next"] == "xpk workload list --cluster dev" and result["quota"][0]["needed"] == 8
    assert [item["workload"] for item in result["quota"][0]["holders"]] == ["big"]
