"""The Python API on a local cluster: real processes, typed results, and an error class for each cause."""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import xpk
from tests.capacity.gke.conftest import MakeSite
from tests.capacity.gke.conftest import make_site as make_site
from tests.capacity.gke.site import Site
from tests.jobs.report.runs import RunWriter
from xpk.capacity.provider import configured_provider
from xpk.model.options import option_of

EXPORTED = """
AuthorizationError CapacityError CheckResult Cluster ClusterInfo ConflictError Deletion GkeOptions HostChecks HostLine
KindOptions MissingToolError Modified NameTaken NotAuthorized NotFoundError Notice OutputExists Phase Plan Preflight
Progress QueueForecast QueueSimulation QuotaExceeded StartEstimate TimedOutError Translation UnavailableError Usage
UsageError WhatIf Workload WorkloadFailedError WorkloadHandle WorkloadStatus XpkError __version__ check_hosts clusters
create_cluster forecast_goodput locate place return_node search_capacity submit translate
"""


def workload(name: str = "w", command: str = "true", **fields: object) -> xpk.Workload:
    return xpk.Workload(name=name, command=command, **fields)  # type: ignore[arg-type]  # any fields


def test_the_exported_names_are_sorted_and_exist() -> None:
    assert xpk.__all__ == EXPORTED.split() == sorted(xpk.__all__)
    assert all(getattr(xpk, name) is not None for name in xpk.__all__)
    assert set(xpk.__all__) <= set(dir(xpk))
    with pytest.raises(AttributeError, match="no attribute 'Clusters'"):
        xpk.Clusters  # type: ignore[attr-defined]  # noqa: B018


def test_each_name_field_and_method_is_documented() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "python-api.md").read_text()
    for field in dataclasses.fields(xpk.Workload):
        assert f"| `{field.name}` |" in page, field.name
        option = option_of(field)
        assert option is None or f"`{option.flag}`" in page, option
    for kind in (xpk.Cluster, xpk.WorkloadHandle):
        methods = [name for name, member in vars(kind).items() if inspect.isfunction(member) and name[0] != "_"]
        assert [name for name in methods if f"`{name}(" not in page] == []
    assert [name for name in EXPORTED.split() if name not in page] == ["__version__"]


def test_the_package_is_loaded_on_first_use() -> None:
    program = f"import sys; sys.path[:] = {sys.path!r}; import xpk; print(*sys.modules)"
    bare = [sys.executable, "-S", "-c", program]
    loaded = subprocess.run(bare, capture_output=True, text=True, check=True).stdout.split()
    assert (
        sorted(name for name in loaded if name.startswith("xpk")) == ["xpk", "xpk.version"] and "typing" not in loaded
    )


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (xpk.NameTaken, xpk.ConflictError),
        (xpk.Modified, xpk.ConflictError),
        (xpk.OutputExists, xpk.ConflictError),
        (xpk.QuotaExceeded, xpk.CapacityError),
        (xpk.NotAuthorized, xpk.AuthorizationError),
    ],
)
def test_a_finer_error_keeps_the_exit_code(kind: type[xpk.XpkError], base: type[xpk.XpkError]) -> None:
    assert issubclass(kind, base) and kind.exit_code == base.exit_code
    assert kind("text", resource="JobSet 'w'").resource == "JobSet 'w'" and base("text").resource == ""


def test_submit_to_delete_prints_nothing(
    cluster: xpk.Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "hello.sh").write_text("echo $GREETING from $MEGASCALE_SLICE_ID/$TPU_WORKER_ID\n")
    notices: list[xpk.Notice] = []
    seen: list[xpk.WorkloadStatus] = []
    request = workload(command="bash hello.sh", num_slices=2, script_dir=tmp_path / "code", env={"GREETING": "hello"})
    handle = cluster.submit(request, on_progress=notices.append)
    assert [notice.text.partition(":")[0] for notice in notices] == ["code shipped"]
    ended = handle.wait(timeout=60, on_progress=seen.append)
    assert ended.phase is xpk.Phase.SUCCEEDED and seen[-1] == ended
    assert handle.status().num_hosts == 4 and handle.progress() is None
    lines = {(line.slice, line.host): line.text for line in handle.logs()}
    assert lines == {(s, h): f"hello from {s}/{h}" for s in (0, 1) for h in (0, 1)}
    assert [line.text for line in handle.logs(slice=1, host=0, follow=True)] == ["hello from 1/0"]
    assert [status.name for status in cluster.workloads()] == ["w"]
    handle.delete(with_output=True, timeout=60)
    assert cluster.workloads() == []
    with pytest.raises(xpk.NotFoundError, match="'w'"):
        cluster.workload("w").status()
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_a_failure_is_raised_unless_check_is_false(cluster: xpk.Cluster) -> None:
    handle = cluster.submit(workload(command="exit 3"))
    with pytest.raises(xpk.WorkloadFailedError, match="exit code 3"):
        handle.wait(timeout=60)
    assert handle.wait(timeout=60, check=False).phase is xpk.Phase.FAILED


def test_a_wait_ends_in_time_and_the_workload_continues(cluster: xpk.Cluster) -> None:
    handle = cluster.submit(workload(command="sleep 60"))
    with pytest.raises(xpk.TimedOutError, match=r"after 0\.3 s"):
        handle.wait(timeout=0.3)
    assert not handle.status().phase.is_final
    handle.delete(grace_seconds=0, timeout=60)


def test_a_suspended_workload_gives_its_slices_back(cluster: xpk.Cluster) -> None:
    handle = cluster.submit(workload(command="sleep 60"))
    handle.suspend()
    assert handle.status().phase is xpk.Phase.SUSPENDED
    handle.resume()
    assert handle.status().phase is not xpk.Phase.SUSPENDED


def test_each_cause_has_its_own_error_with_its_object(cluster: xpk.Cluster) -> None:
    cluster.submit(workload(command="sleep 60"))
    with pytest.raises(xpk.NameTaken, match="with the same settings") as taken:
        cluster.submit(workload(command="sleep 60"))
    assert taken.value.resource == "JobSet 'w'" and taken.value.exit_code == 4
    with pytest.raises(xpk.QuotaExceeded, match="has 16 in all") as exceeded:
        cluster.submit(workload("large", num_slices=3))
    assert exceeded.value.resource == "queue 'multislice-queue'"
    with pytest.raises(xpk.NotFoundError) as queue:
        cluster.submit(workload("other", queue="red"))
    with pytest.raises(xpk.NotFoundError) as gone:
        cluster.workload("gone").status()
    with pytest.raises(xpk.NotFoundError) as unknown:
        xpk.Cluster("nope").workloads()
    resources = [raised.value.resource for raised in (queue, gone, unknown)]
    assert resources == ["queue 'red'", "JobSet 'gone'", "cluster 'nope'"]


def test_all_problems_of_a_workload_are_in_one_error(cluster: xpk.Cluster) -> None:
    wrong = workload("W", " ", priority="urgent", capacity="cheap", resume=True, fresh=True, env={"A=": "1"})
    with pytest.raises(xpk.UsageError) as raised:
        cluster.submit(wrong)
    text = "\n".join(raised.value.problems)
    for part in ("'W' is not a DNS label", "is empty", "'urgent'", "invalid capacity 'cheap'", "exclude", "'A='"):
        assert part in text, text
    assert cluster.workloads() == []


def test_fields_of_wrong_types_are_reported_with_a_missing_queue(cluster: xpk.Cluster) -> None:
    wrong = workload("Bad_Name", num_slices="2", env={"A": 1}, queue="red", script_dir="/nope")
    with pytest.raises(xpk.UsageError) as raised:
        cluster.submit(wrong)
    parts = ("num_slices must be an integer", "env['A'] must be a string", "is not a DNS label", "'/nope'", "'red'")
    for part in parts:
        assert sum(part in problem for problem in raised.value.problems) == 1, raised.value.problems
    assert len(raised.value.problems) == len(parts)
    with pytest.raises(xpk.UsageError, match="queue must be a string, got 5"):
        cluster.submit(workload(queue=5))


def test_output_of_an_earlier_workload_is_kept_until_the_caller_decides(cluster: xpk.Cluster) -> None:
    handle = cluster.submit(workload(command="mkdir -p $XPK_OUTPUT_DIR; echo 1 > $XPK_OUTPUT_DIR/x"))
    output = handle.wait(timeout=60).output_dir
    handle.delete(timeout=60)
    with pytest.raises(xpk.OutputExists) as raised:
        cluster.submit(workload())
    assert raised.value.resource == output
    notices: list[xpk.Notice] = []
    cluster.submit(workload(fresh=True), on_progress=notices.append).wait(timeout=60)
    assert [notice.text.startswith("the earlier output is now 'w.") for notice in notices] == [True]


def test_a_report_needs_metrics(cluster: xpk.Cluster, tmp_path: Path) -> None:
    handle = cluster.submit(workload(num_slices=2))
    output = handle.wait(timeout=60).output_dir
    with pytest.raises(xpk.NotFoundError, match="has logged no step"):
        handle.report()
    run = RunWriter(Path(output))
    run.train(0, 20)
    run.done(20)
    run.write()
    figures = handle.report(tmp_path / "run.html")
    assert (figures["workload"], figures["steps"], figures["hosts"]) == ("w", 20, 4)
    assert "<html" in (tmp_path / "run.html").read_text()
    progress = handle.progress()
    assert progress is not None and progress.step == 20


def test_managing_a_cluster_prints_nothing(state: Path, capfd: pytest.CaptureFixture[str]) -> None:
    planned = xpk.create_cluster("own", "v5litepod-8", num_slices=2, dry_run=True)
    assert "2 x v5litepod-8" in planned.summary and planned.steps and xpk.clusters() == []
    notices: list[xpk.Notice] = []
    created = xpk.create_cluster("own", "v5litepod-8", num_slices=2, on_progress=notices.append)
    assert [notice.text for notice in notices] == [step.title for step in created.steps]
    assert xpk.create_cluster("own", "v5litepod-8").steps == []
    own = xpk.Cluster("own")
    assert own.resize(1, dry_run=True).steps and own.describe().num_slices == 2
    own.resize(1)
    assert [(info.name, info.num_slices) for info in xpk.clusters(provider="local")] == [("own", 1)]
    own.submit(workload(command="sleep 60"))
    with pytest.raises(xpk.ConflictError, match="workloads are on cluster 'own': w"):
        own.delete()
    assert own.delete(force=True, dry_run=True).steps and len(xpk.clusters()) == 1
    own.delete(force=True)
    assert xpk.clusters() == []
    with pytest.raises(xpk.NotFoundError, match="'own'"):
        xpk.Cluster("own").describe()
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_options_of_a_provider_choose_it_and_are_used(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(state / "none.json"))
    options = xpk.GkeOptions(project="p", zone="us-central1-a", spot=True, max_pods_per_node=32)
    plan = xpk.create_cluster("big", "v6e-16", num_slices=2, options=options, dry_run=True)
    assert plan.summary.endswith("2 x v6e-16 = 8 hosts, 32 chips, spot, in us-central1-a of project p")
    assert "32 pods" in " ".join(plan.notes)
    with pytest.raises(xpk.UsageError) as raised:
        xpk.create_cluster("big", "v6e-16", options=replace(options, max_pods_per_node=5), dry_run=True)
    assert raised.value.problems == ("--max-pods-per-node must be between 8 and 256, got 5",)
    with pytest.raises(xpk.UsageError, match="KindOptions is not supported by the gke provider"):
        xpk.clusters(provider="gke", options=xpk.KindOptions())


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"project": "p"}, "options must be xpk.GkeOptions or xpk.KindOptions, got dict"),
        (xpk.KindOptions(spare_slices="1"), "KindOptions: spare_slices must be an integer, got '1'"),  # type: ignore[arg-type]
        (xpk.GkeOptions(project=7), "GkeOptions: project must be a string, got 7"),  # type: ignore[arg-type]
        (
            xpk.GkeOptions(reservation="r"),  # type: ignore[arg-type]
            "GkeOptions: reservation must be a tuple of strings, got 'r'",
        ),
        (xpk.GkeOptions(prices="p.csv"), "GkeOptions: prices must be a path, got 'p.csv'"),  # type: ignore[arg-type]
        (xpk.GkeOptions(spot=1), "GkeOptions: spot must be True or False, got 1"),  # type: ignore[arg-type]
        (xpk.GkeOptions(max_cost="9"), "GkeOptions: max_cost must be a number, got '9'"),  # type: ignore[arg-type]
    ],
)
def test_options_of_a_wrong_type_are_one_line_that_names_the_field(
    state: Path, options: xpk.GkeOptions, problem: str
) -> None:
    with pytest.raises(xpk.UsageError) as raised:
        xpk.create_cluster("big", "v5litepod-8", num_slices=2, options=options, dry_run=True)
    assert raised.value.problems == (problem,) and raised.value.message == problem
    with pytest.raises(xpk.UsageError, match=re.escape(problem)):
        xpk.clusters(options=options)


def test_all_problems_of_a_cluster_are_in_one_error(state: Path) -> None:
    with pytest.raises(xpk.UsageError) as raised:
        xpk.create_cluster("Bad_Name", "v9-8", num_slices=0, provider="local", options=xpk.GkeOptions(spot=True))
    text = "\n".join(raised.value.problems)
    for part in (
        "Bad_Name",
        "unknown accelerator type 'v9-8'",
        "--num-slices must be between",
        "GkeOptions is not supported by the local provider",
    ):
        assert part in text, text
    assert xpk.clusters() == []


def test_workloads_are_deleted_by_name_by_label_or_all(cluster: xpk.Cluster) -> None:
    for name, labels in (("a", {"team": "red"}), ("b", {"team": "red"}), ("c", {}), ("d", {})):
        cluster.submit(workload(name, "mkdir -p $XPK_OUTPUT_DIR", labels=labels)).wait(timeout=60)
    output = cluster.workload("a").status().output_dir
    planned = cluster.delete_workloads(labels={"team": "red"}, with_output=True, dry_run=True)
    assert [(item.name, bool(item.output_dir)) for item in planned] == [("a", True), ("b", True)]
    assert Path(output).exists() and len(cluster.workloads()) == 4
    assert cluster.delete_workloads(labels={"team": "red"}, with_output=True) == planned
    assert not Path(output).exists() and [status.name for status in cluster.workloads()] == ["c", "d"]
    with pytest.raises(xpk.NotFoundError, match="'nope'"):
        cluster.delete_workloads("c", "nope")
    notices: list[xpk.Notice] = []
    deleted = cluster.delete_workloads("c", "nope", ignore_not_found=True, on_progress=notices.append)
    assert deleted == [xpk.Deletion("c")]
    assert [(notice.is_warning, "nope" in notice.text) for notice in notices] == [(True, True), (False, False)]
    assert [item.name for item in cluster.delete_workloads(all=True)] == ["d"]
    assert cluster.workloads() == []
    for nothing in ((), ("a",)):
        with pytest.raises(xpk.UsageError, match="exactly one of"):
            cluster.delete_workloads(*nothing, all=bool(nothing))


@pytest.fixture
def site(make_site: MakeSite, state: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Return an emulated project with a cluster `c` that is not registered on this machine."""
    site = make_site()
    for name, value in site.environ.items():
        monkeypatch.setenv(name, value)
    site.create(1)
    return site


def test_options_locate_a_cluster_that_this_machine_does_not_know(site: Site, state: Path) -> None:
    with pytest.raises(xpk.NotFoundError, match="'c' not found"):
        xpk.Cluster("c").workloads()
    with pytest.raises(xpk.NotFoundError, match="'nowhere' not found in project p"):
        xpk.Cluster("nowhere", options=xpk.GkeOptions(project="p")).workloads()
    with pytest.raises(xpk.UsageError, match="project must be a string, got 7"):
        xpk.Cluster("c", options=xpk.GkeOptions(project=7)).workloads()  # type: ignore[arg-type]
    configured_provider("c", xpk.GkeOptions(project="p"))  # as in every method before it connects
    assert (state / "gke" / "c" / "cluster.json").exists(), "from now on it is registered"
    with pytest.raises(xpk.UsageError, match=r"'c' is in project p \(requested other\)"):
        xpk.Cluster("c", options=xpk.GkeOptions(project="other")).describe()
    with pytest.raises(xpk.NotFoundError, match="'c' not found"):
        xpk.Cluster("c", options=xpk.KindOptions()).describe()
