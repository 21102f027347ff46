"""Checks of the options of `xpk cluster create` and `resize` before any request: no cloud is contacted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Outcome, Xpk

ON_GKE = ("--project", "p", "--zone", "us-central1-a", "--spot")


@pytest.fixture
def plan(xpk: Xpk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Xpk:
    """Plan a GKE cluster without credentials."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "no-key.json"))

    def create(*flags: str) -> Outcome:
        return xpk("cluster", "create", "c", "--tpu-type", "v5litepod-16", *ON_GKE, *flags, "--dry-run")

    return create


@pytest.mark.parametrize("time", ["600", "90s", "10m", "2h"])
def test_durations_have_the_usual_format(plan: Xpk, time: str) -> None:
    outcome = plan("--timeout", time)
    assert outcome.code == 0, outcome.err


@pytest.mark.parametrize("time", ["10 minutes", "0"])
def test_invalid_durations_are_rejected(plan: Xpk, time: str) -> None:
    outcome = plan("--timeout", time)
    assert outcome.code == 2 and time in outcome.err and "hint:" in outcome.err


def test_all_problems_are_reported_together_from_every_reader(plan: Xpk, xpk: Xpk) -> None:
    outcome = xpk("cluster", "create", "c", "--tpu-type", "v5lite-16", "--zone", "us-x", "--timeout", "soon")
    assert outcome.code == 2 and outcome.err.count("error: ") == 5, outcome.err
    message = (
        "unknown accelerator type",
        "invalid zone 'us-x': expected a zone such as us-central1-a",
        "--timeout 'soon'",
        "no capacity given",
        "no project given",
    )
    assert all(item in outcome.err for item in message)
    outcome = plan("--on-demand", "--num-slices", "0", "--at-once", "1")
    assert outcome.code == 2 and outcome.err.count("error: ") == 3 and outcome.err.count("hint: ") == 1
    for problem in ("exclude each other", "between 1 and 1024, got 0", "--at-once must be at least 2, got 1"):
        assert problem in outcome.err
    outcome = plan("--num-slices", "5000", "--num-nodes", "2")
    assert "between 1 and 1024, got 5000" in outcome.err and "warning: --num-nodes has no effect" in outcome.err
    outcome = xpk("cluster", "create", "--zone", "us-x", "--project", "p", "--spot")
    assert outcome.err.count("error: ") == 3 and "no cluster given" in outcome.err and "no accelerator" in outcome.err


def test_hints_name_the_command_of_the_user(dev: Xpk) -> None:
    outcome = dev("cluster", "resize", "dev", "--num-slices", "0")
    assert outcome.code == 2 and "between 1 and 1024, got 0" in outcome.err
    assert "hint: see `xpk cluster resize --help`" in outcome.err
    outcome = dev("cluster", "resize", "--timeout", "soon")
    assert all(item in outcome.err for item in ("no cluster given", "no number of slices given", "--timeout 'soon'"))


def test_create_offers_providers_that_can_create_clusters(xpk: Xpk) -> None:
    assert "--provider local|kind|gke" in xpk("cluster", "create", "--help").out
    outcome = xpk("cluster", "create", "dev", "--tpu-type", "v5litepod-8", "--provider", "moon")
    assert outcome.code == 2 and "unknown provider 'moon'" in outcome.err
    assert "choose from gke, kind, local\n" in outcome.err
    outcome = xpk("cluster", "create", "dev", "--tpu-type", "v5litepod-8", "--provider", "adapted")
    assert outcome.code == 2 and "xpk cluster adapt dev" in outcome.err


def test_without_credentials_offline_problems_are_reported(plan: Xpk) -> None:
    outcome = plan("--num-slices", "2", "--max-cost", "10")
    assert outcome.code == 5 and "it costs 38.40 US dollars an hour" in outcome.err
    assert "create node pool c-np-1" in outcome.out, "the plan is shown nevertheless"
    outcome = plan("--num-slices", "2", "--max-cost", "39")
    assert outcome.code == 0 and "quotas are unknown" in outcome.out
    outcome = plan("--num-slices", "1024", "--tpu-type", "v5litepod-256")
    assert outcome.code == 5 and "pods of the cluster: needs 327,704 of 200,000" in outcome.err


def test_without_credentials_cloud_values_are_unknown(plan: Xpk) -> None:
    outcome = plan("--num-slices", "1024", "--subnetwork", "large-enough")
    assert outcome.code == 0, outcome.err
    assert "node addresses in the subnetwork: needs 4,102, available: unknown" in outcome.out


@pytest.mark.parametrize(("names", "shown"), [("r1", "nodes: reservation r1"), ("r1,r2", "nodes: reservations r1 r2")])
def test_a_plan_names_the_reservations(
    xpk: Xpk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: str, shown: str
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "no-key.json"))
    place = [flag for flag in ON_GKE if flag != "--spot"]
    outcome = xpk("cluster", "create", "c", "--tpu-type", "v5p-8", *place, "--reservation", names, "--dry-run")
    assert shown in outcome.out, outcome.err


def test_the_default_number_of_slices_is_the_current_one(dev: Xpk) -> None:
    again = dev("cluster", "create", "dev", "--tpu-type", "v5litepod-8")
    assert again.code == 0 and "nothing to do" in again.err and "2 x v5litepod-8" in again.err
    other = dev("cluster", "create", "dev", "--tpu-type", "v5p-8")
    assert other.code == 4 and "type v5litepod-8 (requested v5p-8)" in other.err
    new = dev("cluster", "create", "two", "--tpu-type", "v5litepod-8", "--dry-run")
    assert new.code == 0 and "1 x v5litepod-8" in new.out


def test_flags_override_variables_which_override_preferences_and_gcloud(
    xpk: Xpk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configurations = tmp_path / "gcloud" / "configurations"
    configurations.mkdir(parents=True)
    (configurations.parent / "active_config").write_text("default")
    (configurations / "config_default").write_text("[core]\nproject = of-gcloud\n[compute]\nzone = us-east5-b\n")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(configurations.parent))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "no-key.json"))

    def place(*flags: str) -> str:
        out = xpk("cluster", "create", "c", "--tpu-type", "v5litepod-16", "--spot", *flags, "--dry-run").out
        return out.splitlines()[0].partition("spot, in ")[2]

    assert place() == "us-east5-b of project of-gcloud"
    assert xpk("config", "set", "project", "of-file", "zone", "us-central1-a").code == 0
    assert place() == "us-central1-a of project of-file"
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "of-variable")
    assert place() == "us-central1-a of project of-variable"
    monkeypatch.setenv("XPK_GKE_PROJECT", "of-own-variable")
    assert place() == "us-central1-a of project of-own-variable"
    assert place("--project", "of-flag") == "us-central1-a of project of-flag"


def test_values_of_variables_are_checked_under_their_names(xpk: Xpk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XPK_GKE_MAX_COST", "much")
    monkeypatch.setenv("XPK_GKE_AT_ONCE", "few")
    monkeypatch.setenv("XPK_KIND_SPARE_SLICES", "x")  # of another provider
    err = xpk("cluster", "create", "c", "--tpu-type", "v5litepod-16", *ON_GKE).err
    assert "XPK_GKE_MAX_COST must be a number of US dollars per hour, got 'much'" in err
    assert "XPK_GKE_AT_ONCE must be an integer at least 2, got 'few'" in err
    assert "XPK_KIND_SPARE_SLICES" not in err


def test_a_resize_is_shown_without_credentials(plan: Xpk, xpk: Xpk) -> None:
    done = plan()  # configures the missing credentials
    done = xpk("cluster", "resize", "c", "--num-slices", "4", "--project", "p", "--zone", "us-central1-a", "--dry-run")
    assert done.code == 0 and "no Google Cloud credentials found" in done.out and "4 slices" in done.out, done.err
    done = xpk("cluster", "resize", "c", "--num-slices", "4", "--project", "p", "--zone", "us-central1-a", "--yes")
    assert done.code == 6


def test_a_number_of_nodes_that_adapt_does_not_use_is_reported(xpk: Xpk) -> None:
    done = xpk("cluster", "adapt", "c", "--context", "none", "--tpu-type", "v5litepod-8", "--num-nodes", "2")
    assert done.code != 0 and "warning: --num-nodes has no effect" in done.err


def test_a_cluster_of_another_provider_is_not_adapted_under_its_name(dev: Xpk) -> None:
    flags = ("--adapt-from-ct", "--tpu-type", "v5litepod-8", *ON_GKE)
    done = dev("cluster", "create", "dev", *flags, "--dry-run")
    assert done.code == 4 and "cluster 'dev' already exists, of provider 'local'" in done.err
