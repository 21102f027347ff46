"""`xpk version`, `info`, `inspector` and `storage` on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api.scripted_server import Answer, Script, kubeconfig, serving
from tests.cli.conftest import Xpk
from xpk import __version__


def test_version_works_without_a_cluster_and_with_one(xpk: Xpk, dev: Xpk) -> None:
    assert xpk("version", "-o", "json").data == [{"name": "xpk", "version": __version__, "installs": ""}]
    result = dev("version", "--cluster", "dev", "-o", "json").data
    assert [item["name"] for item in result] == ["xpk", "API server"]
    assert dev("version", "--cluster", "none").code == 3
    dev("config", "set", "cluster", "none")
    preferred = dev("version")
    assert preferred.code == 0 and "warning: cannot reach the default cluster" in preferred.err


def test_info_shows_both_kinds_of_queues_or_one(dev: Xpk) -> None:
    both = dev("info", "--cluster", "dev")
    assert both.code == 0 and "LOCAL QUEUE" in both.out and "multislice-queue" in both.out and "v5litepod-8" in both.out
    for flag, one, other in (
        ("--localqueue", "local_queues", "cluster_queues"),
        ("--clusterqueue", "cluster_queues", "local_queues"),
    ):
        data = dev("info", "--cluster", "dev", flag, "-o", "json").data
        assert data[one] and other not in data


def test_inspector_writes_one_private_file(dev: Xpk, tmp_path: Path) -> None:
    assert dev("workload", "create", "w", "--command", "true", "--env", "MY_TOKEN=hunter2").code == 0
    file = tmp_path / "bundle.txt"
    file.write_text("old")
    file.chmod(0o644)
    done = dev("inspector", "--cluster", "dev", "--workload", "w", "--file", str(file), "--print-to-terminal")
    assert done.code == 0, done.err
    text = file.read_text()
    assert text in done.out and done.out.endswith(f"{file}\n") and file.stat().st_mode & 0o077 == 0
    assert "JobSet w" in text and "multislice-queue" in text and "hunter2" not in text and "MY_TOKEN" in text


def test_storages_are_rejected_for_local_clusters(dev: Xpk) -> None:
    for words in (
        ("list",),
        ("attach", "data", "--type", "gcsfuse", "--mount-point", "/data"),
        ("detach", "data"),
        ("delete", "data", "--dry-run"),
    ):
        done = dev("storage", *words)
        assert done.code == 2 and "its hosts are processes of this machine" in done.err


@pytest.mark.parametrize(
    ("answer", "code", "told"),
    [
        ((200, {"kind": "ConfigMapList", "metadata": {}, "items": []}), 3, "storage 'data' not found"),
        ((401, {"kind": "Status", "message": "Unauthorized"}), 0, "warning: the plan is not checked: "),
    ],
)
def test_the_plan_of_a_deletion_is_checked_if_the_cluster_is_reachable(
    xpk: Xpk, state: Path, answer: Answer, code: int, told: str
) -> None:
    folder = state / "kind" / "far"
    folder.mkdir(parents=True)
    with serving(Script({"*": [answer]})) as url:
        kubeconfig(folder, url)
        done = xpk("storage", "delete", "data", "--cluster", "far", "--dry-run")
    assert done.code == code and told in done.err, done.err
    assert ("delete claim 'data'" in done.out) is (code == 0)
