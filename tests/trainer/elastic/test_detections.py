"""The leading slice measures the detections that all slices have written."""

import contextlib
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.config import Config, Model
from trainer.data import batches, synthetic_scenes
from trainer.data.objects import pack
from trainer.detection import DetectionLog
from trainer.elastic.detections import SharedDetections
from trainer.errors import StorageError
from trainer.hosts.measurements import Measurements
from trainer.hosts.peers import Peers
from trainer.models.family import Detections
from trainer.storage import open_place

SCENES = [synthetic_scenes.draw(number, 32) for number in range(11)]
FIRST, BATCH, SHARES = 10, 4, 2  # number of the first scene among the records, and rows of a batch
MODEL = Model(family="mask_rcnn", image=32, classes=3, mask=28)


class Progress:
    """A log of the recorded precisions."""

    def __init__(self) -> None:
        self.recorded: dict[int, dict[str, float]] = {}

    def record_precisions(self, step: int, precisions: Mapping[str, float], items: int, seconds: float) -> None:
        assert items == len(SCENES)
        self.recorded[step] = dict(precisions)


def rows(share: int) -> slice:
    return slice(share * BATCH // SHARES, (share + 1) * BATCH // SHARES)


def slice_in(folder: Path, *, is_first: bool = True) -> tuple[SharedDetections, Progress]:
    """Return the detections of a slice that shares this output folder, and its log."""
    watchdog = types.SimpleNamespace(waiting=lambda *words, **options: contextlib.nullcontext())
    job = types.SimpleNamespace(
        config=Config(model=MODEL),
        is_first=is_first,
        watchdog=watchdog,
        peers=Peers(0, 1, on_lost=lambda peer: None, on_message=lambda what, by: None),
        out=open_place(folder),
        measurements=Measurements(),
        host=types.SimpleNamespace(is_elastic=True, replicas=SHARES),
    )
    read = types.SimpleNamespace(documents=lambda ids_N: [pack(*SCENES[number]) for number in ids_N - FIRST])
    sizes = {"records": FIRST + len(SCENES), "held_out": len(SCENES), "batch": BATCH}
    progress = Progress()
    run: Any = types.SimpleNamespace(job=job, read=read, progress=progress, **sizes)
    return SharedDetections(run, rows), progress


def detections(ids_B: Any) -> Detections:
    """Return the detections of a batch: displaced boxes of the objects, in some of six places; none of padding."""
    box, score, category = np.zeros((len(ids_B), 6, 4)), np.zeros((len(ids_B), 6)), np.zeros((len(ids_B), 6), int)
    for n, number in enumerate(ids_B):
        random, image = np.random.default_rng(int(number) + 1), SCENES[number - FIRST][1]
        for place, one in zip(random.permutation(6), image.objects if number >= 0 else (), strict=False):
            x, y, width, height = one["bbox"]
            corners = np.array([y, x, y + height, x + width]) / max(image.width, image.height)
            box[n, place] = corners + random.normal(0, 0.03, 4)
            score[n, place], category[n, place] = random.uniform(), one["category"]
    return Detections(box, score, category, np.ones((len(ids_B), 6, 28, 28)))


def log_of(share: int | None) -> DetectionLog:
    """Return the log of a share, or of whole batches."""
    log = DetectionLog()
    for ids_B in batches.eval_ids(BATCH, FIRST, len(SCENES)):
        own = ids_B if share is None else ids_B[rows(share)]
        log.add(detections(own), own >= 0)
    return log


def test_the_map_is_that_of_all_images(tmp_path: Path) -> None:
    (leading, progress), (other, _), (second_host, _) = (slice_in(tmp_path, is_first=n < 2) for n in range(3))
    expected = log_of(None).precisions(MODEL, [image for _, image in SCENES])
    assert 0.1 < expected["map"] < 0.9 and 0 < expected["mask_map"] < 1
    leading.write(20, 0, log_of(0))
    other.write(20, 1, log_of(1))
    second_host.write(20, 1, DetectionLog())
    leading.measure(20)
    for share in range(SHARES):  # a slice computes both while the other one is lost
        leading.write(40, share, log_of(share))
    leading.measure(40)
    second_host.measure(40)
    leading.wait()
    assert progress.recorded == {20: expected, 40: expected}
    assert not [path for path in (tmp_path / "evaluations").rglob("*.npz")], "the files are removed"


def test_the_next_leading_slice_measures_what_the_lost_one_has_left(tmp_path: Path) -> None:
    (lost, _), (next_one, progress) = (slice_in(tmp_path) for _ in range(2))
    for step in (20, 40, 60):
        for share in range(SHARES):
            lost.write(step, share, log_of(share))
    (tmp_path / "evaluations" / "40" / "1.npz").unlink()
    (tmp_path / "evaluations" / "notes").mkdir()
    (tmp_path / "evaluations" / "notes" / "a.npz").touch()
    next_one.measure_left(50)
    next_one.wait()
    assert [*progress.recorded] == [20], "40 is incomplete, and 60 will be evaluated again"
    next_one.write(40, 1, log_of(1))
    next_one.measure(40)
    next_one.measure_left(60)
    next_one.wait()
    assert [*progress.recorded] == [20, 40, 60]


def test_a_run_without_evaluations_has_left_none(tmp_path: Path) -> None:
    leading, progress = slice_in(tmp_path)
    leading.measure_left(50)
    leading.wait()
    assert not progress.recorded


def test_detections_that_another_slice_has_measured_are_not_missed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leading, progress = slice_in(tmp_path)
    leading.write(20, 0, log_of(0))
    leading.measure(20)
    leading.wait()
    assert not progress.recorded
    assert "warning: no mAP of step 20, unless another slice has recorded it: " in capsys.readouterr().out


def test_unreadable_detections_end_the_run_in_one_line(tmp_path: Path) -> None:
    leading, _ = slice_in(tmp_path)
    (tmp_path / "evaluations" / "20" / "0.npz").mkdir(parents=True)
    leading.measure(20)
    with pytest.raises(StorageError, match=r"cannot read the detections in .*/20: "):
        leading.wait()


def test_a_log_is_the_same_after_packing() -> None:
    log, again = log_of(None), DetectionLog.unpack(log_of(None).pack())
    images = [image for _, image in SCENES]
    assert again.precisions(MODEL, images) == log.precisions(MODEL, images)
    assert len(again.pack()) <= len(log.pack())
    assert DetectionLog.unpack(DetectionLog().pack()).precisions(MODEL, []) == {}
