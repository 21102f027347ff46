"""The mAP of an evaluation is computed while steps go on."""

import contextlib
import dataclasses
import threading
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from trainer.config import Config, Model, Run
from trainer.data import synthetic_scenes
from trainer.data.objects import pack
from trainer.detection import DetectionLog
from trainer.errors import FatalError, Problem
from trainer.evaluation import Precisions
from trainer.hosts.peers import Peers
from trainer.models.family import Detections

SCENES = [synthetic_scenes.draw(number, 32) for number in range(3)]
CONFIG = Config(model=Model(family="mask_rcnn", image=32, classes=3, mask=28))


class Reader:
    """A reader of scenes that waits until it may read."""

    def __init__(self) -> None:
        self.may_read = threading.Event()
        self.error: FatalError | None = None

    def documents(self, ids_N: Any) -> list[bytes]:
        assert self.may_read.wait(60)
        if self.error:
            raise self.error
        return [pack(*SCENES[number]) for number in ids_N - 10]


class Progress:
    """A log of the recorded precisions."""

    def __init__(self) -> None:
        self.recorded, self.has_recorded = list[tuple[int, dict[str, float]]](), threading.Event()

    def record_precisions(self, step: int, precisions: Mapping[str, float], items: int, seconds: float) -> None:
        assert items == len(SCENES) and seconds > 0
        self.recorded.append((step, dict(precisions)))
        self.has_recorded.set()


def precisions_of(config: Config) -> tuple[Precisions, Reader, Progress]:
    """Return the precisions of a run of one host, its reader and its log."""
    watchdog = types.SimpleNamespace(waiting=lambda *words, **options: contextlib.nullcontext())
    peers = Peers(0, 1, on_lost=lambda peer: None, on_message=lambda what, by: None)
    job = types.SimpleNamespace(config=config, is_first=True, watchdog=watchdog, peers=peers)
    reader, progress = Reader(), Progress()
    run: Any = types.SimpleNamespace(job=job, read=reader, records=13, held_out=3, batch=2, progress=progress)
    return Precisions(run), reader, progress


def detected() -> DetectionLog:
    """Return the log of exact boxes, and of masks that fill them."""
    log = DetectionLog()
    for _, image in SCENES:
        count, side = len(image.objects), max(image.width, image.height)
        box_N4 = np.array([one["bbox"] for one in image.objects])
        box_N4[:, 2:] += box_N4[:, :2]
        category_N = np.array([one["category"] for one in image.objects])
        parts = box_N4[:, [1, 0, 3, 2]] / side, np.ones(count), category_N, np.ones((count, 28, 28))
        log.add(Detections(*(part[None] for part in parts)), [1.0])
    return log


def test_steps_go_on_while_the_map_is_computed(capsys: pytest.CaptureFixture[str]) -> None:
    precisions, reader, progress = precisions_of(CONFIG)
    assert precisions.begin(detected(), step=20) == {}
    assert not progress.recorded, "while the images are not read"
    reader.may_read.set()
    assert progress.has_recorded.wait(60), "without waiting for it"
    ((step, known),) = progress.recorded
    assert step == 20 and known["map"] == pytest.approx(1) and 0 < known["mask_map"] < 1
    assert precisions.wait() == known and precisions.wait() == {}
    assert capsys.readouterr().out == "", "of pycocotools, whose text would be in the log of the steps"


def test_a_run_that_may_end_with_the_map_waits_for_it() -> None:
    config = dataclasses.replace(CONFIG, run=Run(target_accuracy=0.5))
    precisions, reader, progress = precisions_of(config)
    reader.may_read.set()
    assert precisions.begin(detected(), step=20)["map"] == pytest.approx(1)
    assert not progress.recorded, "it is part of the evaluation's own record"


def test_damaged_data_ends_the_run() -> None:
    precisions, reader, _ = precisions_of(CONFIG)
    reader.error = FatalError(Problem("a damaged file", "Copy it again"))
    precisions.begin(detected(), step=20)
    reader.may_read.set()
    with pytest.raises(FatalError, match="a damaged file"):
        precisions.wait()
