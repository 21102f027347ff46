"""Clusters whose objects name folders of other workloads: nothing is removed or read there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.api.scripted_server import Answer, Script, kubeconfig, serving
from tests.cli.conftest import Xpk
from tests.cli.messages import one_line
from tests.jobs.objects import jobset
from xpk.jobs.output.roots import OutputRoots
from xpk.model import names
from xpk.model.errors import ConflictError
from xpk.model.specs import Target

JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
PODS = "/api/v1/namespaces/default/pods"
Serve = Callable[..., AbstractContextManager[Script]]


def listed(*items: Any) -> Answer:
    return 200, {"metadata": {"resourceVersion": "1"}, "items": list(items)}


@pytest.fixture
def serve(state: Path, xpk: Xpk) -> Serve:
    """Serve a workload whose objects name an output folder, as kind cluster `far`."""

    @contextmanager
    def with_output(place: str, *, name: str = "w", is_gone: bool = False) -> Iterator[Script]:
        folder = state / "kind" / "far"
        folder.mkdir(parents=True, exist_ok=True)
        meta = {**jobset(annotations={names.OUTPUT_ANNOTATION: place})}
        meta["metadata"]["name"] = name
        container = {"name": "host", "env": [{"name": "XPK_OUTPUT_DIR", "value": place}]}
        pod = {"metadata": {"name": "w-0", "namespace": "default"}, "spec": {"containers": [container]}, "status": {}}
        gone = 404, {"kind": "Status", "reason": "NotFound", "message": f'jobsets.jobset.x-k8s.io "{name}" not found'}
        script = Script(
            {
                f"GET {JOBSETS}": [listed() if is_gone else listed(meta)],
                f"GET {JOBSETS}/{name}": [gone if is_gone else (200, meta)],
                f"DELETE {JOBSETS}/{name}": [gone if is_gone else (200, {"kind": "Status", "status": "Success"})],
                f"GET {PODS}": [listed(pod)] if is_gone else [listed()],
                "*": [listed()],
            }
        )
        with serving(script) as server:
            kubeconfig(folder, server)
            yield script

    return with_output


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Return a local folder outside any cluster, with the files of a run."""
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text(json.dumps({"time": 1.0, "step": 7, "loss": 1.5, "attempt": 0}) + "\n")
    return folder


@pytest.mark.parametrize(("which", "is_gone"), [(("w",), False), (("w",), True), (("--all",), False)])
def test_delete_removes_no_folder_that_an_object_names(
    xpk: Xpk, serve: Serve, victim: Path, which: tuple[str, ...], is_gone: bool
) -> None:
    with serve(str(victim), is_gone=is_gone) as script:
        result = xpk("workload", "delete", *which, "--with-output", "-y", "--timeout", "5", "--cluster", "far")
    assert result.code == 4 and f"'{victim}'" in one_line(result.err) and "is not removed" in result.err
    assert (victim / "metrics.jsonl").exists()
    assert not [item for item in script.asked if item.startswith("DELETE")], "the workload is kept, too"


def test_delete_removes_no_bucket_that_an_object_names(xpk: Xpk, serve: Serve) -> None:
    with serve("gs://others/run/w"):
        result = xpk("workload", "delete", "w", "--with-output", "-y", "--timeout", "5", "--cluster", "far")
    assert result.code == 4 and "--output-root gs://others/run" in result.err


def test_delete_removes_the_output_that_belongs_to_the_workload(xpk: Xpk, serve: Serve, state: Path) -> None:
    own = state / "kind" / "far" / "output" / "w"
    own.mkdir(parents=True)
    with serve(str(own)):
        result = xpk("workload", "delete", "w", "--with-output", "-y", "--timeout", "5", "--cluster", "far")
    assert result.code == 0 and not own.exists() and own.parent.exists(), result.err


@pytest.mark.parametrize("name", ["../../victim", "..", ".", "", "a/b", "a\n", "a..b"])
def test_a_name_cannot_lead_out_of_the_root(name: str) -> None:
    kind = Target(emulated=True, sets_slice_environment=True, output_root="/o", shared_folder="/o", exclusive=True)
    with pytest.raises(ConflictError, match="is not removed"):
        OutputRoots(lambda: kind, "/o").to_remove(name, "default", f"/o/{name}")


@pytest.mark.parametrize(
    ("root", "stated", "removes"),
    [
        ("/nfs", None, False),
        ("/nfs", "/nfs", True),
        ("gs://runs/p", None, True),
        ("", "gs://runs/p", True),
        ("", None, False),
    ],
)
def test_another_tools_cluster_cannot_choose_local_folders(root: str, stated: str | None, removes: bool) -> None:
    """The root of an adapted cluster is in a ConfigMap, which the user has not written."""
    shared = root if root.startswith("/") else None
    target = Target(emulated=False, sets_slice_environment=False, output_root=root, shared_folder=shared)
    roots, claim = OutputRoots(lambda: target, stated), f"{root or stated}/w"
    if removes:
        assert roots.to_remove("w", "default", claim) == claim
    else:
        with pytest.raises(ConflictError, match="is not removed"):
            roots.to_remove("w", "default", claim)


def test_a_link_in_place_of_the_output_is_not_followed(xpk: Xpk, serve: Serve, state: Path, victim: Path) -> None:
    own = state / "kind" / "far" / "output" / "w"
    own.parent.mkdir(parents=True)
    own.symlink_to(victim)
    with serve(str(own)):
        result = xpk("workload", "delete", "w", "--with-output", "-y", "--timeout", "5", "--cluster", "far")
        shown = xpk("workload", "status", "w", "--cluster", "far", "-o", "json")
    assert result.code == 1 and "symbolic link" in one_line(result.err)
    assert (victim / "metrics.jsonl").exists()
    assert shown.code == 0 and shown.data["progress"] is None


@pytest.mark.parametrize("command", ["status", "describe"])
def test_status_reads_no_folder_that_an_object_names(xpk: Xpk, serve: Serve, victim: Path, command: str) -> None:
    with serve(str(victim)):
        result = xpk("workload", command, "w", "--cluster", "far")
    assert result.code == 0 and "step 7" not in result.out
    assert "warning: cannot read the progress" in result.err and "is not read" in result.err


def test_report_reads_no_folder_that_an_object_names(xpk: Xpk, serve: Serve, victim: Path, tmp_path: Path) -> None:
    with serve(str(victim)):
        result = xpk("workload", "report", "w", "--cluster", "far")
    assert result.code == 4 and "is not read" in one_line(result.err)
    assert not (tmp_path / "w.html").exists()


def test_another_local_root_is_used_only_if_it_is_named(dev: Xpk, tmp_path: Path) -> None:
    command = 'mkdir -p $XPK_OUTPUT_DIR; echo {\\"step\\": 3, \\"loss\\": 1.5} > $XPK_OUTPUT_DIR/metrics.jsonl'
    create = ("workload", "create", "run", "--command", command, "--output-root", "elsewhere")
    assert dev(*create, "--wait", "--timeout", "30").code == 0
    assert "step 3" in dev("workload", "status", "run").out
    refused = dev("workload", "delete", "run", "--with-output")
    assert refused.code == 4 and f"--output-root {tmp_path}/elsewhere" in refused.err
    assert (tmp_path / "elsewhere" / "run").is_dir() and dev("workload", "status", "run").code == 0
    assert dev("workload", "delete", "run", "--with-output", "--output-root", "elsewhere").code == 0
    assert not (tmp_path / "elsewhere" / "run").exists()
