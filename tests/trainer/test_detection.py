"""Mean average precision of gathered, padded batches against pycocotools, and runs that detect."""

# mypy: disallow-untyped-calls=False

import contextlib
import io
import sys
from typing import Any

import numpy as np
import pytest
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from trainer import detection
from trainer.config import Config, Model
from trainer.data import synthetic_scenes
from trainer.data.masks import run_lengths
from trainer.data.objects import Annotated
from trainer.errors import FatalError
from trainer.models.family import Detections

MODEL = Model(family="ssd", image=32, classes=3)
SCENES = [synthetic_scenes.draw(number, 32)[1] for number in range(11)]
KEPT, MASK = 6, 14  # detections of an image, and side of their masks


def detected(image: Annotated, random: np.random.Generator) -> tuple[Any, Any, Any, Any]:
    """Return boxes, scores, categories and masks near the objects of an image, with errors."""
    count = min(KEPT, len(image.objects))
    box_N4 = np.array([one["bbox"] for one in image.objects[:count]])
    box_N4[:, 2:] += box_N4[:, :2]
    box_N4 = box_N4[:, [1, 0, 3, 2]] + random.normal(0, 1.0, (count, 4))
    pad = ((0, KEPT - count), (0, 0))
    category = np.array([one["category"] for one in image.objects[:count]])
    category = np.where(random.uniform(size=count) < 0.2, category % 3 + 1, category)
    mask = np.zeros((KEPT, MASK, MASK))
    mask[:, 3:-3, 2:-2] = 1
    sides = (image.height, image.width) * 2
    return np.pad(box_N4, pad) / sides, random.uniform(size=KEPT), np.pad(category, pad[0]), mask


def reference(images: list[Annotated], results: list[dict[str, Any]], kind: str) -> float:
    """Return pycocotools' mAP of everything on one host."""
    truth = COCO()
    truth.dataset = {
        "images": [{"id": image.id, "width": image.width, "height": image.height} for image in images],
        "categories": [{"id": number} for number in (1, 2, 3)],
        "annotations": [
            one | {"image_id": image.id, "category_id": one["category"]} for image in images for one in image.objects
        ],
    }
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        measured = COCOeval(truth, truth.loadRes(results), kind)
        measured.evaluate()
        measured.accumulate()
        measured.summarize()
    return float(measured.stats[0])


def test_the_map_of_padded_batches_is_that_of_pycocotools_on_everything() -> None:
    random, log, results = np.random.default_rng(0), detection.DetectionLog(), []
    images = [detected(image, random) for image in SCENES]
    for first in range(0, len(SCENES), 4):
        part = [*images[first : first + 4], *[images[0]] * 4][:4]
        weight_B = np.arange(first, first + 4) < len(SCENES)
        log.add(Detections(*(np.stack(field) for field in zip(*part, strict=True))), weight_B.astype(np.float32))
    for image, (box_K4, score_K, category_K, _) in zip(SCENES, images, strict=True):
        for box_4, score, category in zip(box_K4, score_K, category_K, strict=True):
            upper, left, lower, right = np.clip(box_4, 0, 1) * ((image.height, image.width) * 2)
            if category:
                box = [left, upper, right - left, lower - upper]
                results.append({"image_id": image.id, "category_id": category, "score": score, "bbox": box})
    expected = reference(SCENES, results, "bbox")
    assert 0.1 < expected < 0.9
    assert log.precisions(MODEL, SCENES)["map"] == pytest.approx(expected, abs=1e-9)


def test_exact_masks_have_a_high_map_and_are_measured_as_masks() -> None:
    log = detection.DetectionLog()
    for image in SCENES:
        count = len(image.objects)
        box_N4 = np.array([one["bbox"] for one in image.objects])
        box_N4[:, 2:] += box_N4[:, :2]
        box_N4 = box_N4[:, [1, 0, 3, 2]] / ((image.height, image.width) * 2)
        masks = [_cut(image, one) for one in image.objects]
        category_N = np.array([one["category"] for one in image.objects])
        log.add(Detections(*(part[None] for part in (box_N4, np.ones(count), category_N, np.stack(masks)))), [1.0])
    precisions = log.precisions(MODEL, SCENES)
    assert precisions["map"] == pytest.approx(1) and precisions["mask_map"] > 0.8


def _cut(image: Annotated, one: dict[str, Any]) -> Any:
    """Return the mask of an object in the region of its box, by pycocotools' rasterization at 10 times the size."""
    polygons = [[10 * number for number in polygon] for polygon in one["segmentation"]]
    (runs,) = coco_mask.frPyObjects(polygons, 10 * image.height, 10 * image.width)
    lengths = run_lengths(runs["counts"].decode())
    whole_HW = np.repeat(np.arange(len(lengths)) % 2, lengths).reshape(10 * image.width, 10 * image.height).T
    x, y, width, height = (10 * number for number in one["bbox"])
    center = (np.arange(28) + 0.5) / 28
    return whole_HW[(y + center * height).astype(int)[:, None], (x + center * width).astype(int)].astype(np.float32)


def test_crowds_do_not_count_and_images_without_objects_have_no_map() -> None:
    crowd = Annotated(1, 32, 32, [SCENES[0].objects[0] | {"iscrowd": 1, "id": 9, "image_id": 1}])
    empty = Annotated(2, 32, 32, [])
    log = detection.DetectionLog()
    parts = np.zeros((2, 1, 4)), np.ones((2, 1)), np.zeros((2, 1))
    log.add(Detections(*parts), np.ones(2))
    assert log.precisions(MODEL, [empty, empty]) == {}
    assert log.precisions(MODEL, [crowd, SCENES[1]])["map"] == 0


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    detection.check(Config(model=MODEL))
    monkeypatch.setitem(sys.modules, "pycocotools.coco", None)
    with pytest.raises(FatalError) as error:
        detection.check(Config(model=MODEL))
    assert [str(problem) for problem in error.value.problems] == [
        "error: the evaluation of detections requires pycocotools, which is not installed. pip install"
        " 'xpk-multislice[detection]', or use --set model.detections=0 to evaluate only the loss"
    ]
    detection.check(Config(model=Model(family="ssd", detections=0)))
