"""Output folders of workloads, also if the storage does not respond."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from e2e import bucket
from tests.jobs.objects import ROOTS, jobset
from xpk.jobs.deletion import plan_named
from xpk.jobs.output.folder import Progress, at_root, latest_progress
from xpk.model import names
from xpk.model.errors import ConflictError, UsageError, XpkError
from xpk.model.specs import Target
from xpk.testing import FakeApi

LOCAL = Target(emulated=True, sets_slice_environment=True, output_root="/own", on_this_machine=True)
KIND = Target(emulated=True, sets_slice_environment=True, output_root="/shared", shared_folder="/shared")


def test_the_requested_root_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert at_root(LOCAL, None) == LOCAL
    assert at_root(LOCAL, "gs://runs/ada/").output_root == "gs://runs/ada"
    assert at_root(LOCAL, "here").output_root == str(tmp_path / "here")
    assert at_root(KIND, "/shared/ada").output_root == "/shared/ada"
    assert at_root(KIND, "gs://runs") == replace(KIND, output_root="gs://runs")


@pytest.mark.parametrize(
    ("target", "root"), [(KIND, "/elsewhere"), (KIND, "/shared/../etc"), (LOCAL, "s3://runs"), (LOCAL, "gs://")]
)
def test_a_root_that_hosts_cannot_use_is_rejected(target: Target, root: str) -> None:
    with pytest.raises(UsageError, match=r"--output-root|neither|invalid bucket name"):
        at_root(target, root)


def test_a_folder_that_is_not_the_workloads_own_is_not_deleted(tmp_path: Path) -> None:
    """Anyone who may annotate a JobSet chooses the folder."""
    (tmp_path / "thesis").write_text("precious")
    api = FakeApi([{"kind": "JobSet", **jobset(annotations={names.OUTPUT_ANNOTATION: str(tmp_path)})}])
    with pytest.raises(ConflictError, match="the output of 'w' is not removed"):
        plan_named(api, ["w"], "default", cluster="c", roots=ROOTS)
    assert (tmp_path / "thesis").exists() and api.get("JobSet", "w", "default"), "nothing was deleted before"


@pytest.mark.parametrize("word", ["null", "NaN", "-Infinity"])
def test_a_nonfinite_loss_is_none(word: str, tmp_path: Path) -> None:
    lines = ['{"step": 1, "loss": 5.5, "step_seconds": 2}', f'{{"step": 2, "loss": {word}, "step_seconds": 2}}']
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 2, "eval_loss": null}']))
    assert latest_progress(str(tmp_path)) == Progress(2, None, 2.0)


def test_progress_shows_rates_and_the_remaining_time(tmp_path: Path) -> None:
    at_once = {"total_steps": 150, "loss": 3.5, "attempt": 1}
    rows = [{"step": 9, "time": 10.0, "attempt": 0, "total_steps": 150, "loss": 4, "step_seconds": 50}]
    # An evaluation of 10 s between step 11 and 12: the rate includes it, the median does not.
    for step, seconds in ((10, 100.0), (11, 102.0), (12, 114.0), (13, 116.0)):
        rates = {"step_seconds": 2, "tokens_per_second": 1000 + step}
        rows.append({"step": step, "time": seconds, **at_once, **rates})
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    result = latest_progress(str(tmp_path))
    assert result is not None and result.eta_seconds == pytest.approx((150 - 13) * 16 / 3, abs=0.1)
    assert (result.step, result.total_steps, result.step_seconds) == (13, 150, 2)
    assert (result.throughput, result.throughput_unit) == (1011.5, "tokens/s")


@pytest.mark.parametrize("odd", ['{"step": 1e999, "loss": 1}', '{"step": 2, "loss": 1' + "0" * 400 + "}", "[" * 5000])
def test_invalid_lines_of_metrics_are_ignored(odd: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1, "loss": 5.5}}\n{odd}\n')
    result = latest_progress(str(tmp_path))
    assert result is not None and result.loss in (5.5, None)


@pytest.mark.parametrize(
    ("kept", "count"), [('{"job": "j", "replaced": 2}', 2), ("{", 0), ("[]", 0), ('{"replaced": null}', 0), (None, 0)]
)
def test_replacements_of_trainers_under_ray_are_reported(kept: str | None, count: int, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 5.5, "step_seconds": 2}')
    if kept is not None:
        (tmp_path / "ray.json").write_text(kept)
    assert latest_progress(str(tmp_path), ray=True) == Progress(1, 5.5, 2.0, replacements=count)
    assert latest_progress(str(tmp_path)) == Progress(1, 5.5, 2.0)


@pytest.mark.skipif(bool(bucket.missing()), reason=bucket.missing() or "there")
def test_an_unresponsive_bucket_times_out_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    with bucket.bucket_server() as server:
        server.create_bucket("runs")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        assert latest_progress("gs://runs/one") is None
        server.pause()
        began = time.monotonic()
        with pytest.raises(XpkError, match="no answer after 3 s"):
            latest_progress("gs://runs/one")
        assert time.monotonic() - began < 8
