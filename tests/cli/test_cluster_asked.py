"""What `xpk cluster create` and `resize` are asked for, before anything is looked at: no cloud is reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Outcome, Xpk

ON_GKE = ("--project", "p", "--zone", "us-central1-a", "--spot")


@pytest.fixture
def plan(xpk: Xpk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Xpk:
    """Plan a cluster of GKE without credentials."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "no-key.json"))

    def create(*flags: str) -> Outcome:
        return xpk("cluster", "create", "c", "--tpu-type", "v5litepod-16", *ON_GKE, *flags, "--dry-run")

    return create


@pytest.mark.parametrize("time", ["600", "90s", "10m", "2h"])
def test_times_are_given_as_everywhere(plan: Xpk, time: str) -> None:
    outcome = plan("--timeout", time)
    assert outcome.code == 0, outcome.err


@pytest.mark.parametrize("time", ["10 minutes", "0"])
def test_what_is_no_time_is_refused(plan: Xpk, time: str) -> None:
    outcome = plan("--timeout", time)
    assert outcome.code == 2 and f"'{time}'" in outcome.err and "next:" in outcome.err
