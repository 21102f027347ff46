"""An evaluation during which a host dies is measured after the restart, before the next step."""

import contextlib
import functools
import json
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainer.compliance import defects, lines
from tests.trainer.hosts.connections import connected, together
from tests.trainer.small import Cluster, start
from trainer import evaluation
from trainer.config import Config, Run
from trainer.hosts.measurements import Measurements
from trainer.hosts.peers import Peers
from trainer.storage import open_place

SETTINGS = ["data.max_bytes=50000", "checkpoint.every=4", "run.eval_every=4", "run.log_every=1"]
BERT = ["model.family=bert", "run.steps=16", "run.target_accuracy=0.001"]


def killed_in_evaluation(folder: Path, settings: list[str]) -> Cluster:
    """Return the attempt after one whose host was killed in the evaluation of step 4, once that step was saved."""
    first = start(folder, settings, slices=1, chips=1, faults={0: "eval:1"})
    first.wait_for_save()
    first.processes[0].send_signal(signal.SIGKILL)
    assert first.exit_codes() == [-signal.SIGKILL], first.logs()
    assert not [line for line in first.metrics() if "eval_loss" in line]
    second = start(folder, settings, attempt=1, slices=1, chips=1)
    assert second.exit_codes() == [0], second.logs()
    return second


@pytest.mark.slow
def test_an_evaluation_during_which_a_host_was_killed_is_not_lost(tmp_path: Path) -> None:
    settings = [*SETTINGS, "run.steps=10"]
    whole = start(tmp_path / "whole", settings, slices=1, chips=1)
    assert whole.exit_codes() == [0], whole.logs()
    resumed = killed_in_evaluation(tmp_path / "cut", settings)
    expected = [(line["step"], line["eval_loss"]) for line in whole.metrics() if "eval_loss" in line]
    assert [(line["step"], line["eval_loss"]) for line in resumed.metrics() if "eval_loss" in line] == expected
    assert [step for step, _ in expected] == [4, 8, 10]
    assert "eval_loss" in resumed.metrics()[0], "before the next step"


@pytest.mark.slow
def test_a_run_ends_at_its_target_although_a_host_was_killed_in_that_evaluation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    resumed = killed_in_evaluation(tmp_path, [*SETTINGS, *BERT, "observe.mllog=org=Example,platform=local"])
    assert not resumed.losses(), "no step is trained after it"
    result = json.loads((tmp_path / "result.json").read_text())
    (line,) = resumed.metrics()
    assert (result["steps"], result["eval_loss"]) == (4, pytest.approx(line["eval_loss"]))
    assert defects(tmp_path, caplog) == ""
    stop = lines(tmp_path)[-1]
    assert (stop["key"], stop["metadata"]["status"], stop["metadata"]["samples_count"]) == ("run_stop", "success", 32)
    begun = [line["metadata"]["samples_count"] for line in lines(tmp_path) if line["key"] == "block_start"]
    assert begun == [0], "the block that the evaluation ends"


def left_on_all_hosts(out: Path, target: float, *, detects: bool = False) -> list[object]:
    """Return what each of two hosts says on whether the evaluation after step 20 has to be measured."""

    def is_left(peers: Peers) -> bool:
        watchdog = SimpleNamespace(waiting=lambda *words, **options: contextlib.nullcontext())
        job = SimpleNamespace(config=Config(run=Run(target_accuracy=target)), peers=peers, watchdog=watchdog)
        job.is_first, job.out, job.measurements = peers.process_id == 0, open_place(out), Measurements()
        job.host = SimpleNamespace(is_elastic=False)
        run: Any = SimpleNamespace(job=job, programs=SimpleNamespace(detect=detects or None))
        return evaluation.is_left(run, 20)

    return together([functools.partial(is_left, peers) for peers in connected(2)[0]])


@pytest.mark.parametrize(
    ("recorded", "target", "detects", "is_left"),
    [
        ([], 0.0, False, True),
        ([{"step": 20, "loss": 1.0}, {"step": 10, "eval_loss": 1.0}], 0.0, False, True),
        ([{"step": 20, "eval_loss": 1.0}, {"step": 21, "loss": 1.0}], 0.0, False, False),
        ([{"step": 20, "eval_loss": None}], 0.0, False, False),
        ([{"step": 20, "eval_loss": 1.0}], 0.0, True, True),  # killed before the mAP was known
        ([{"step": 20, "eval_loss": 1.0}, {"step": 20, "eval_map": 0.2}], 0.0, True, False),
        ([{"step": 20, "eval_loss": 1.0, "eval_accuracy": 0.699}], 0.7, False, False),
        ([{"step": 20, "eval_loss": 1.0, "eval_accuracy": 0.7}], 0.7, False, True),  # killed before the end of the run
        ([{"step": 20, "eval_loss": 1.0, "eval_map": 0.1}], 0.7, True, False),
        ([{"step": 20, "eval_loss": 1.0, "eval_bleu": 24.999}], 0.25, False, False),
        ([{"step": 20, "eval_loss": 1.0, "eval_bleu": 25.0}], 0.25, False, True),
        ([{"step": 20, "eval_loss": 1.0, "eval_auc": 0.81}], 0.8025, False, True),
    ],
)
def test_an_evaluation_is_measured_again_unless_its_record_shows_that_the_run_goes_on(
    recorded: list[dict[str, Any]], target: float, detects: bool, is_left: bool, tmp_path: Path
) -> None:
    content = "".join(json.dumps(line) + "\n" for line in recorded)
    (tmp_path / "metrics.jsonl").write_text(f'ss": 1, "eval_loss": 3}}\n{content}{{"step": 20, "eval_loss": 1')
    assert left_on_all_hosts(tmp_path, target, detects=detects) == [is_left, is_left]


def test_an_evaluation_without_any_record_is_measured(tmp_path: Path) -> None:
    assert left_on_all_hosts(tmp_path, 0.0) == [True, True]
