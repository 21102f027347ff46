"""MLPerf's log lines pass the compliance checker of mlperf_logging, also over restarts."""

import json
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.trainer.compliance import defects, lines
from tests.trainer.small import SETTINGS, run_alone
from trainer import config
from trainer.parallel import layout
from trainer.storage import open_place
from trainer.telemetry.mllog import MllogFile

CLOSED = "observe.mllog=org=Example,platform=local,division=closed,status=research"
TRAINED, HELD_OUT = 1_281_167, 50_000


def file(folder: Path, name: str = "resnet50", *settings: str) -> MllogFile:
    configuration = config.load(name, [CLOSED, "run.steps=4", "run.eval_every=2", *settings])
    return MllogFile(
        open_place(folder / "mllog.txt"), configuration, 32768, TRAINED, HELD_OUT, began_seconds=time.time() - 60
    )


def train(log: MllogFile, steps: Iterable[int], accuracy: float, mask_accuracy: float = 0.0) -> None:
    """Log evaluations after these steps."""
    for step in steps:
        log.record_evaluation(step, accuracy, 1.5, mask_accuracy=mask_accuracy)


@pytest.mark.parametrize(("name", "accuracy"), [("resnet50", 0.7593), ("bert-large", 0.7201)])
def test_a_closed_run_complies(name: str, accuracy: float, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = file(tmp_path, name)
    log.begin(0)
    train(log, (2, 4), accuracy)
    log.end(4)
    assert defects(tmp_path, caplog) == ""
    keys = [line["key"] for line in lines(tmp_path)]
    order = ["init_start", "init_stop", "run_start", "block_start", "block_stop", "eval_start", "eval_stop"]
    assert sorted(order, key=keys.index) == order
    assert (lines(tmp_path)[-1]["metadata"]["status"], keys[-2]) == ("success", "eval_accuracy")


SGD = ("optim.name=sgd", "optim.lr=24", "optim.warmup=2")
DROPS = ("optim.warmup=2", "optim.schedule=piecewise")
SSD = (*DROPS, "optim.decay_steps=1564,1955")  # 40 and 50 epochs of 1,281,167 images, in batches of 32,768
MASK_RCNN = (*DROPS, "optim.decay_steps=9000,12000", "optim.warmup_factor=0.3333")


@pytest.mark.parametrize(
    ("name", "settings", "accuracy"),
    [
        ("transformer", (), 0.2501),
        ("gnmt", (), 0.2403),
        ("dlrm", SGD, 0.80251),
        ("ssd", SSD, 0.2301),
        ("mask-rcnn", MASK_RCNN, 0.3771),
    ],
)
def test_a_closed_run_complies_with_the_last_rules_of_its_benchmark(
    name: str, settings: tuple[str, ...], accuracy: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = file(tmp_path, name, *settings)
    log.begin(0)
    train(log, (2, 4), accuracy, mask_accuracy=0.3391)
    log.end(4)
    assert defects(tmp_path, caplog, "0.7.0") == ""
    assert lines(tmp_path)[-1]["metadata"]["status"] == "success"


def test_the_lines_of_a_detector_have_its_settings_and_both_accuracies(tmp_path: Path) -> None:
    sizes = ("model.image=1344", "model.short_side=800", "model.long_side=1333")
    log = file(tmp_path, "mask-rcnn", *MASK_RCNN, *sizes, "run.target_accuracy=0.3", "run.target_mask_accuracy=0.2")
    log.begin(0)
    train(log, (2,), 0.31, mask_accuracy=0.1)
    log.end(2)
    values = {line["key"]: line["value"] for line in lines(tmp_path)}
    assert values["eval_accuracy"] == {"BBOX": 0.31, "SEGM": 0.1}
    assert (values["min_image_size"], values["max_image_size"], values["num_image_candidates"]) == (800, 1333, 1000)
    assert values["opt_learning_rate_decay_steps"] == [9000, 12000]
    assert lines(tmp_path)[-1]["metadata"]["status"] == "aborted", "the masks are below their target"
    (tmp_path / "ssd").mkdir()
    file(tmp_path / "ssd", "ssd", *DROPS, "optim.decay_steps=1564,2000").begin(0)
    (epochs,) = (line for line in lines(tmp_path / "ssd") if line["key"] == "opt_learning_rate_decay_boundary_epochs")
    assert epochs["value"] == [40, pytest.approx(2000 * 32768 / TRAINED)], "whole epochs end at the nearest step"


def test_the_log_of_a_detector_requires_its_detections() -> None:
    wrong = ["observe.mllog=org=A,platform=B", "model.detections=0", "run.target_mask_accuracy=0.1"]
    text = "\n".join(map(str, layout.range_problems(config.load("ssd", wrong))))
    assert "observe.mllog requires detections, but model.detections is 0" in text
    assert "run.target_mask_accuracy requires mask_rcnn and run.target_accuracy" in text


def test_an_accuracy_below_the_target_is_no_success(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = file(tmp_path)
    log.begin(0)
    train(log, (2, 4), 0.75)
    log.end(4)
    assert lines(tmp_path)[-1]["metadata"]["status"] == "aborted"
    assert "Failed checks for eval_accuracy" in defects(tmp_path, caplog)


def test_a_resumed_attempt_continues_the_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = "bert-large", "run.steps=8"
    log = file(tmp_path, *settings)
    log.begin(0)
    train(log, (2, 4), 0.7)
    first = lines(tmp_path)
    with (tmp_path / "mllog.txt").open("a") as text:
        text.write(':::MLLOG {"namespace": "", "time')  # killed while it writes
    resumed = file(tmp_path, *settings)  # from a checkpoint before the last evaluation
    resumed.begin(3)
    train(resumed, (4, 6, 8), 0.73)
    resumed.end(8)
    file(tmp_path, *settings).end(8)  # after the end
    assert defects(tmp_path, caplog) == ""
    after = lines(tmp_path)
    assert after[: len(first)] == first
    assert [line["value"] for line in after if line["key"] == "xpk_resume"] == [3]
    count = Counter(line["key"] for line in after)
    assert (count["eval_accuracy"], count["block_start"], count["block_stop"], count["run_stop"]) == (4, 4, 4, 1)
    began = [line["metadata"]["samples_count"] for line in after if line["key"] == "block_start"]
    assert began == [0, 2 * 32768, 4 * 32768, 6 * 32768]


def test_lines_that_break_the_rules_are_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = file(tmp_path, "bert-large")
    train(log, (2,), 0.73)
    log.end(2)
    assert "Required EXACTLY_ONE occurrence of 'run_start' but found 0" in defects(tmp_path, caplog)


@pytest.mark.parametrize(
    ("mllog", "says"),
    [
        ("org=A,platform=B", ""),
        ("org=A", "has no platform"),
        ("org=A,platform=B,division=shut", "has division='shut', which is not one of MLPerf's. Use closed, open"),
        ("org=A,platform=B,state=x", "has an unknown name 'state'"),
    ],
)
def test_the_submission_is_checked(mllog: str, says: str) -> None:
    configuration = config.load("bert-tiny", [f"observe.mllog={mllog}"])
    problems = "\n".join(map(str, layout.range_problems(configuration)))
    assert says in problems and bool(says) == bool(problems)


def test_a_model_that_does_not_translate_has_no_target() -> None:
    configuration = config.load("gnmt-tiny", ["observe.mllog=org=A,platform=B", "model.beam=0"])
    (problem,) = layout.range_problems(configuration)
    assert problem.message == "observe.mllog requires translations, but model.beam is 0"


def test_a_model_without_accuracy_has_no_target() -> None:
    configuration = config.load("tiny", ["observe.mllog=org=A,platform=B", "run.target_accuracy=0.5"])
    text = "\n".join(map(str, layout.range_problems(configuration)))
    assert "observe.mllog is not supported by decoder" in text
    assert "run.target_accuracy is not supported by decoder" in text


@pytest.mark.slow
def test_a_run_ends_at_its_target_and_complies(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = [
        *SETTINGS,
        *("data.path=stdlib", "data.max_bytes=40000", f"run.output_dir={tmp_path}", "run.steps=40"),
        *("run.eval_every=4", "run.target_accuracy=0.01", "observe.mllog=org=Example,platform=local"),
    ]
    ran = run_alone("train", "--config", "bert-tiny", *(word for setting in settings for word in ("--set", setting)))
    assert ran.returncode == 0, ran.stderr
    assert defects(tmp_path, caplog) == ""
    stop = lines(tmp_path)[-1]
    assert (stop["key"], stop["metadata"]["status"]) == ("run_stop", "success")
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["steps"] * 8 == stop["metadata"]["samples_count"] < 320
