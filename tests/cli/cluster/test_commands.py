"""`xpk cluster` on the local provider."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Xpk
from xpk.capacity.local.provider import LocalProvider

CREATE = ("cluster", "create", "dev", "--tpu-type", "v5litepod-8", "--num-slices", "2")


def test_create_describe_list_delete(xpk: Xpk, state: Path) -> None:
    assert xpk(*CREATE).code == 0
    info = xpk("cluster", "describe", "dev", "-o", "json").data
    assert (info["num_slices"], info["hosts_per_slice"], info["chips"], info["state"]) == (2, 2, 16, "Ready")
    assert [item["node_pool"] for item in info["slices"]] == ["dev-np-0", "dev-np-1"]
    assert xpk("cluster", "list", "-o", "name").out == "dev\n"
    assert xpk("cluster", "delete", "dev", "--yes").code == 0
    assert xpk("cluster", "list", "-o", "json").data == []
    assert list((state / "clusters").iterdir()) == []


def test_a_default_provider_hides_no_cluster(dev: Xpk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XPK_PROVIDER", "kind")
    assert dev("cluster", "list", "-o", "name").out == "dev\n"
    assert dev("cluster", "list", "--provider", "local", "-o", "name").out == "dev\n"


def test_creating_again_changes_nothing(dev: Xpk) -> None:
    before = dev("cluster", "describe", "dev", "-o", "json").data
    again = dev(*CREATE)
    assert again.code == 0 and "nothing to do" in again.err
    assert dev("cluster", "describe", "dev", "-o", "json").data == before


@pytest.mark.parametrize(
    ("arguments", "difference"),
    [
        (("--tpu-type", "v5litepod-8", "--num-slices", "3"), "2 slices (requested 3)"),
        (("--tpu-type", "v5p-8", "--num-slices", "2"), "type v5litepod-8 (requested v5p-8)"),
    ],
)
def test_another_shape_is_a_conflict_that_shows_the_difference(
    dev: Xpk, arguments: tuple[str, ...], difference: str
) -> None:
    outcome = dev("cluster", "create", "dev", *arguments)
    assert outcome.code == 4 and difference in outcome.err and "hint:" in outcome.err


def test_a_dry_run_creates_nothing(xpk: Xpk, state: Path) -> None:
    outcome = xpk(*CREATE, "--dry-run")
    assert outcome.code == 0 and "4. set up queue" in outcome.out
    assert not state.exists()
    assert xpk(*CREATE, "--dry-run", "-o", "json").data["steps"]


def test_an_interrupted_create_is_completed_by_the_next(xpk: Xpk, monkeypatch: pytest.MonkeyPatch) -> None:
    from xpk.capacity.local.provider import LocalProvider
    from xpk.model.accelerators import find_shape
    from xpk.model.specs import ClusterSpec

    plan = LocalProvider().plan_create(ClusterSpec(name="dev", shape=find_shape("v5litepod-8"), num_slices=2))
    for steps_taken in range(len(plan.steps)):
        for step in plan.steps[:steps_taken]:
            step.act()
        assert xpk(*CREATE).code == 0
        assert xpk("cluster", "describe", "dev", "-o", "json").data["num_slices"] == 2
        assert xpk("cluster", "delete", "dev", "--yes").code == 0


def test_resize_adds_and_removes_slices(dev: Xpk) -> None:
    for num_slices in ("3", "1", "2"):
        assert dev("cluster", "resize", "dev", "--num-slices", num_slices).code == 0
        info = dev("cluster", "describe", "dev", "-o", "json").data
        assert len(info["slices"]) == int(num_slices)
    assert "nothing to do" in dev("cluster", "resize", "dev", "--num-slices", "2").err


def test_busy_slices_are_removed_only_with_force(dev: Xpk) -> None:
    assert dev("workload", "create", "busy", "--num-slices", "2", "--command", "sleep 60").code == 0
    dev("workload", "wait", "busy", "--timeout", "1")
    refused = dev("cluster", "resize", "dev", "--num-slices", "1")
    assert refused.code == 4 and "busy is running on them" in refused.err
    kept = dev("cluster", "delete", "dev", "--yes")
    assert kept.code == 4 and "busy" in kept.err
    assert dev("cluster", "delete", "dev", "--force").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("create", "dev"), 2, "no accelerator type given"),
        (("create", "--tpu-type", "v5litepod-8"), 2, "no cluster given"),
        (("create", "dev", "--tpu-type", "v5lite-8"), 2, "unknown accelerator type 'v5lite-8'"),
        (("create", "Dev", "--tpu-type", "v5litepod-8"), 2, "is not a DNS label"),
        (("create", "dev", "--tpu-type", "v5litepod-8", "--num-slices", "0"), 2, "between 1 and 1024, got 0"),
        (("create", "dev", "--tpu-type", "v5litepod-8", "--num-slices", "256"), 2, "at most 255 slices"),
        (("create", "dev", "--tpu-type", "v5p-12288"), 2, "of 254 hosts"),
        (("create", "dev", "--tpu-type", "v5litepod-8", "--provider", "moon"), 2, "unknown provider 'moon'"),
        (
            ("create", "dev", "--tpu-type", "v5litepod-8", "--spot", "--zone=us-x"),
            2,
            "invalid zone 'us-x': expected a zone such as",
        ),
        (("describe", "nope"), 3, "cluster 'nope' not found"),
        (("delete", "nope", "--yes"), 3, "cluster 'nope' not found"),
        (("resize", "nope", "--num-slices", "2"), 3, "cluster 'nope' not found"),
    ],
)
def test_bad_input_is_one_line_with_a_hint_and_creates_nothing(
    xpk: Xpk, state: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    outcome = xpk("cluster", *arguments)
    assert outcome.code == code and says in outcome.err and "  hint: " in outcome.err
    assert "Traceback" not in outcome.err and outcome.out == ""
    assert not state.exists()


def test_all_problems_are_reported_together(xpk: Xpk) -> None:
    outcome = xpk("cluster", "create", "Dev", "--tpu-type", "v5lite-8", "--num-slices", "0")
    assert outcome.code == 2 and outcome.err.count("error: ") == 3
    for entry in ("unknown accelerator type 'v5lite-8'", "'Dev' is not a DNS label", "between 1 and 1024, got 0"):
        assert entry in outcome.err


def test_deleting_a_missing_cluster_can_succeed(xpk: Xpk) -> None:
    assert xpk("cluster", "delete", "nope", "--ignore-not-found").code == 0


def test_health_reports_slices_and_an_exit_code(dev: Xpk, state: Path) -> None:
    outcome = dev("cluster", "health", "dev", "-o", "json")
    assert outcome.code == 0 and [entry["state"] for entry in outcome.data] == ["Ready", "Ready"]
    assert "dev-np-1  v5litepod-8  2/2    8/8    Ready" in dev("cluster", "health", "dev").out
    api = LocalProvider(state).connect("dev")
    api.delete("Node", "dev-np-1-0")
    outcome = dev("cluster", "health", "dev")
    assert outcome.code == 1 and "1 of 2 slices do not accept workloads: dev-np-1" in outcome.err
    assert "dev-np-1  -     Missing" in outcome.out and "  hint: " in outcome.err


def test_image_commands_are_rejected_for_local_clusters(dev: Xpk) -> None:
    outcome = dev("cluster", "cache-image", "dev", "--image", "trainer:1", "-o", "json")
    assert outcome.code == 0 and outcome.data["images"] == [] and "need no images" in outcome.err
    assert dev("cluster", "cache-image", "dev").code == 2


def test_an_unwritable_state_folder_is_reported(xpk: Xpk, state: Path) -> None:
    state.write_text("a file where the folder should be")
    outcome = xpk(*CREATE)
    assert outcome.code == 1 and str(state) in outcome.err and "XPK_STATE_DIR" in outcome.err
    assert len(outcome.err.strip().splitlines()) <= 3


def test_a_damaged_store_is_named_and_can_be_deleted(dev: Xpk, state: Path) -> None:
    for file in (state / "clusters" / "dev").glob("store.db*"):
        file.unlink()
    (state / "clusters" / "dev" / "store.db").write_bytes(b"not a database, not at all" * 100)
    outcome = dev("workload", "list", "--cluster", "dev")
    assert outcome.code == 1 and "damaged" in outcome.err and "cluster delete dev" in outcome.err
    assert dev("cluster", "list").code == 0
    assert dev("cluster", "delete", "dev", "--provider", "local", "--force").code == 0
    assert dev("cluster", "list", "-o", "json").data == []


def test_an_outdated_plan_is_not_executed(xpk: Xpk) -> None:
    from xpk.capacity.local.provider import LocalProvider
    from xpk.model.accelerators import find_shape
    from xpk.model.errors import ConflictError
    from xpk.model.specs import ClusterSpec

    mine, theirs = (
        LocalProvider().plan_create(ClusterSpec(name="dev", shape=find_shape(kind), num_slices=2))
        for kind in ("v5litepod-8", "v5litepod-16")
    )
    theirs.carry_out(lambda title: None)
    with pytest.raises(ConflictError):
        mine.carry_out(lambda title: None)
    assert xpk("cluster", "describe", "dev", "-o", "json").data["accelerator_type"] == "v5litepod-16"


def test_an_interrupted_shrink_is_completed_by_the_next(dev: Xpk) -> None:
    from xpk.capacity.local.provider import LocalProvider

    LocalProvider().plan_resize("dev", 1, force=False).steps[0].act()
    assert len(dev("cluster", "describe", "dev", "-o", "json").data["slices"]) == 2
    assert dev("cluster", "resize", "dev", "--num-slices", "1").code == 0
    assert len(dev("cluster", "describe", "dev", "-o", "json").data["slices"]) == 1


def test_adapt_is_rejected_for_local_clusters(dev: Xpk) -> None:
    outcome = dev("cluster", "adapt", "dev")
    assert outcome.code == 0 and "there is nothing to install" in outcome.err
    outcome = dev("cluster", "adapt", "dev", "--context", "theirs", "--no-fenced")
    assert outcome.code == 2 and "does not support --context, --no-fenced" in outcome.err
    outcome = dev("cluster", "adapt", "dev", "--provider", "adapted")
    assert outcome.code == 4 and "cluster 'dev' already exists, of provider 'local'" in outcome.err
    outcome = dev("cluster", "adapt", "nope", "--provider", "local")
    assert outcome.code == 3 and "cluster 'nope' not found" in outcome.err
    outcome = dev("cluster", "adapt", "dev", "--provider", "moon")
    assert outcome.code == 2 and "unknown provider 'moon'" in outcome.err


def test_json_output_describes_the_executed_plan(xpk: Xpk) -> None:
    create = ("cluster", "create", "dev", "--tpu-type", "v5litepod-8", "--num-slices", "2", "-o", "json")
    made = xpk(*create).data
    assert "2 x v5litepod-8" in made["summary"] and made["steps"]
    assert xpk(*create).data["steps"] == []
    assert xpk("queue", "create", "blue", "--quota", "1", "-o", "json").data["steps"]
    assert xpk("cluster", "delete", "dev", "--yes", "-o", "json").data["steps"]
