"""Images with objects: COCO's annotations, their defects, augmentation, boxes and bitmaps of records."""

import dataclasses
import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pycocotools import mask as coco_mask

from tests.trainer import scenes
from tests.trainer.small import run_alone
from trainer import config
from trainer.config import Data, Model
from trainer.data import checks, coco, masks, object_decoding, prepare_objects, reader, synthetic_scenes
from trainer.data.color_jitter import ColorJitter, draw_jitter
from trainer.data.dataset import Corpus
from trainer.data.object_decoding import View
from trainer.data.objects import Annotated, ObjectFormat, object_format, unpack
from trainer.detection import image_results
from trainer.errors import FatalError
from trainer.models.family import Detections
from trainer.storage import open_place

MODEL = Model(family="ssd", image=32, classes=3, max_boxes=6, mask=8)
FORM = object_format(MODEL)
SETTINGS = ("model.family=ssd", "model.image=32", "model.classes=3", "model.max_boxes=6", "model.mask=8")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("coco")
    scenes.write_coco(folder)
    return folder


@pytest.fixture(scope="module")
def prepared(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return prepare_objects.prepare(str(source), open_place(tmp_path_factory.mktemp("data")), MODEL, file_tokens=20_000)


def open_reader(corpus: Corpus, seed: int = 0) -> reader.Reader:
    return reader.Reader(corpus, MODEL, reader.counts(corpus, MODEL), settings=Data(seed=seed))


def words(row_S: npt.NDArray[np.uint8], start: int, count: int, dtype: str) -> Any:
    return np.frombuffer(row_S[start : start + 4 * count].tobytes(), dtype)


def boxes(row_S: npt.NDArray[np.uint8], form: ObjectFormat = FORM) -> Any:
    """Return the boxes of a record, without padding."""
    count = int(words(row_S, form.header, 1, "<i4")[0])
    return words(row_S, form.boxes, 4 * form.max_boxes, "<f4").reshape(-1, 4)[:count]


def test_images_of_coco_become_documents_with_their_annotations(prepared: Corpus, source: Path) -> None:
    count = scenes.TRAINED + scenes.EVALUATED
    assert (prepared.documents, prepared.held_out, prepared.categories) == (count, scenes.EVALUATED, 3)
    assert len(prepared.files) > 1 and sum(reader.counts(prepared, MODEL)) == count
    read = open_reader(prepared)
    for number, document in enumerate(read.documents(np.arange(count))):
        content, annotated = unpack(document)
        expected, drawn = synthetic_scenes.draw(number, 32)
        assert (content, annotated) == (expected, drawn), "categories are positions from 1 among COCO's ids"
    folder = open_place(Path(prepared.path).parent)
    assert prepare_objects.prepare(str(source), folder, MODEL, file_tokens=20_000) == prepared


def test_a_record_of_an_evaluation_has_the_whole_image_and_its_objects(prepared: Corpus) -> None:
    row_S = open_reader(prepared)(np.array([4]))[0]
    _, drawn = synthetic_scenes.draw(4, 32)
    expected = np.array([one["bbox"] for one in drawn.objects])
    expected[:, 2:] += expected[:, :2]
    expected = expected[:, [1, 0, 3, 2]] / ([drawn.height, drawn.width] * 2)
    np.testing.assert_allclose(boxes(row_S), expected, atol=1e-6)
    categories = words(row_S, FORM.categories, FORM.max_boxes, "<i4").tolist()
    assert categories == [one["category"] for one in drawn.objects] + [0] * (FORM.max_boxes - len(drawn.objects))
    bitmaps = row_S[FORM.masks :].reshape(FORM.max_boxes, 8, 8)
    for nth, one in enumerate(drawn.objects):
        share = one["area"] / (one["bbox"][2] * one["bbox"][3])
        assert bitmaps[nth].mean() == pytest.approx(share, abs=0.12)
    assert words(row_S, FORM.header + 4, 2, "<f4").tolist() == [1, 1]


def test_a_padded_record_keeps_the_proportions_of_the_picture() -> None:
    content, drawn = next(
        draw for draw in (synthetic_scenes.draw(n, 32) for n in range(99)) if draw[1].width > draw[1].height
    )
    form = ObjectFormat(64, 64, 6, 0, is_stretched=False)
    row_S = object_decoding.make_record(form, content, drawn, object_decoding.whole_view(form, drawn))
    height = drawn.height / drawn.width
    np.testing.assert_allclose(words(row_S, form.header + 4, 2, "<f4"), [height, 1], rtol=1e-6)
    pixels_HWC = row_S[: form.header].reshape(64, 64, 3)
    assert (pixels_HWC[round(64 * height) :] == object_decoding._FILL).all()
    sides = boxes(row_S, form)[0] * drawn.width
    assert sides[2] - sides[0] == pytest.approx(drawn.objects[0]["bbox"][3], rel=1e-5)


@pytest.mark.parametrize(
    ("picture", "scaled"),  # width and height
    [
        ((640, 480), (1066.7, 800)),
        ((640, 320), (1333, 666.5)),  # the longer side is at its limit
        ((480, 640), (624, 832)),  # a portrait is as high as the image
        ((2000, 1000), (1333, 666.5)),
        ((100, 100), (800, 800)),
    ],
)
def test_a_picture_is_scaled_to_its_shorter_side_within_the_limits(
    picture: tuple[int, int], scaled: tuple[float, float]
) -> None:
    model = Model(family="mask_rcnn", image=832, image_width=1344, short_side=800, long_side=1333)
    width, height = object_format(model).extent(*picture)
    assert (1344 * picture[0] / width, 832 * picture[1] / height) == pytest.approx(scaled, rel=1e-4)
    square = object_format(Model(family="mask_rcnn", image=1344, short_side=800, long_side=1333)).extent(*picture)
    factor = min(800 / min(picture), 1333 / max(picture))
    assert square == pytest.approx((1344 / factor,) * 2), "either orientation has the size of the rules"
    assert object_format(Model(family="mask_rcnn", image=96)).extent(*picture) == (max(picture), max(picture))


@pytest.mark.parametrize("picture", [(100, 80), (60, 80), (300, 80)])
@pytest.mark.parametrize("is_flipped", [False, True])
def test_boxes_of_a_rectangle_are_those_of_its_pixels_and_of_the_picture(
    picture: tuple[int, int], is_flipped: bool
) -> None:
    model = Model(family="mask_rcnn", image=64, image_width=96, short_side=48, long_side=90, max_boxes=2)
    form, (content, drawn) = object_format(model), _rectangle(picture[0])
    view = dataclasses.replace(object_decoding.whole_view(form, drawn), is_flipped=is_flipped)
    row_S = object_decoding.make_record(form, content, drawn, view)
    white_HW = row_S[: form.header].reshape(64, 96, 3).min(2) > 200
    (box_4,) = boxes(row_S, form)
    rows, columns = np.flatnonzero(white_HW.any(1)), np.flatnonzero(white_HW.any(0))
    actual = [rows[0], columns[0], rows[-1] + 1, columns[-1] + 1]
    np.testing.assert_allclose(actual, box_4 * (64, 96, 64, 96), atol=1.5)
    if not is_flipped:
        detections = Detections(box_4[None], np.ones(1), np.ones(1, int))
        (result,) = image_results(model, drawn, detections)
        np.testing.assert_allclose(result["bbox"], drawn.objects[0]["bbox"], rtol=1e-5)
    height, width = words(row_S, form.header + 4, 2, "<f4")
    assert (width * 96) / (height * 64) == pytest.approx(picture[0] / 80, rel=1e-5), "the picture keeps its proportions"


def test_crops_are_a_function_of_the_seed_the_step_and_the_example(prepared: Corpus) -> None:
    ids = np.array([*range(12), 0])
    first = open_reader(prepared)(ids, 7)
    assert (first[0] == first[12]).all()
    np.testing.assert_array_equal(open_reader(prepared)(ids[[2, 1]], 7), first[[2, 1]])
    for other in (open_reader(prepared)(ids, 8), open_reader(prepared, seed=1)(ids, 7)):
        assert (other != first).any(1).mean() > 0.5, "some views are of the whole picture"
    np.testing.assert_array_equal(open_reader(prepared, 0)(ids), open_reader(prepared, 1)(ids))


@pytest.mark.parametrize("is_stretched", [True, False])
def test_crops_follow_the_pixels_of_their_boxes(is_stretched: bool) -> None:
    """Every box of a view of a white rectangle on black is where the white pixels are."""
    content, drawn = _rectangle(100 if is_stretched else 60)
    form, seen = ObjectFormat(64, 64, 2, 0, is_stretched=is_stretched), set[bool]()
    for number in range(60):
        view = object_decoding.draw_view(form, drawn, np.random.default_rng(number), expansion=3.0)
        row_S = object_decoding.make_record(form, content, drawn, view)
        white_HW = row_S[: form.header].reshape(64, 64, 3).min(2) > 200
        ((upper, left, lower, right),) = boxes(row_S, form) * 64
        rows, columns = np.flatnonzero(white_HW.any(1)), np.flatnonzero(white_HW.any(0))
        actual = [rows[0], columns[0], rows[-1] + 1, columns[-1] + 1]
        np.testing.assert_allclose(actual, [upper, left, lower, right], atol=2.5)
        seen.add(view.is_flipped)
    assert seen == {False, True}


def _rectangle(width: int = 100) -> tuple[bytes, Annotated]:
    image = Image.new("RGB", (width, 80))
    image.paste((255, 255, 255), (20, 30, 50, 70))
    content = BytesIO()
    image.save(content, "PNG")
    one = {"id": 1, "bbox": [20, 30, 30, 40], "category": 1, "iscrowd": 0, "area": 1200, "segmentation": []}
    return content.getvalue(), Annotated(1, width, 80, [one])


def test_changed_colors_are_a_function_of_the_seed_the_step_and_the_example(prepared: Corpus) -> None:
    def rows(step: int | None, seed: int = 0, *, changed: bool = True) -> Any:
        data = Data(seed=seed, color_jitter=changed)
        ids = np.arange(12)
        return reader.Reader(prepared, MODEL, reader.counts(prepared, MODEL), settings=data)(ids, step)

    first, plain = rows(7), rows(7, changed=False)
    np.testing.assert_array_equal(first, rows(7))
    np.testing.assert_array_equal(first[:, FORM.header :], plain[:, FORM.header :], "boxes are of the same view")
    assert (first[:, : FORM.header] != plain[:, : FORM.header]).any(1).all()
    assert (rows(8) != first).any(1).all() and (rows(7, seed=1) != first).any(1).all()
    np.testing.assert_array_equal(rows(None), rows(None, changed=False), "an evaluation sees the colors as they are")


@pytest.mark.parametrize(
    ("jitter", "expected"),
    [
        (ColorJitter(1, 1, 1, 0), (200, 100, 50)),
        (ColorJitter(0.5, 1, 1, 0), (100, 50, 25)),
        (ColorJitter(1, 1, 0, 0), (124, 124, 124)),  # its gray
        (ColorJitter(1, 1, 1, 1 / 3), (50, 200, 100)),  # red becomes green
        (ColorJitter(1, 0.5, 1, 0), (162, 112, 87)),  # half way to the mean gray of the image
    ],
)
def test_a_change_of_colors_is_that_of_torchvision(jitter: ColorJitter, expected: tuple[int, int, int]) -> None:
    changed = jitter.apply(Image.new("RGB", (4, 4), (200, 100, 50))).getpixel((1, 1))
    np.testing.assert_allclose(changed, expected, atol=2)


def test_changes_of_colors_are_in_the_ranges_of_the_reference() -> None:
    drawn = [draw_jitter(np.random.default_rng(n)) for n in range(200)]
    ranges = (np.ptp([one[n] for one in drawn]) for n in range(4))
    assert [round(float(size), 2) for size in ranges] == pytest.approx([0.25, 1, 1, 0.1], rel=0.05)
    assert len({one.order for one in drawn}) == 24


def test_of_too_many_boxes_the_largest_remain() -> None:
    content, drawn = _rectangle()
    small = [drawn.objects[0] | {"bbox": [n, n, 5, 5]} for n in range(5)]
    crowd = drawn.objects[0] | {"bbox": [0, 0, 100, 80], "iscrowd": 1}
    many = Annotated(1, 100, 80, [*small, drawn.objects[0], crowd])
    form = ObjectFormat(32, 32, 2, 0, is_stretched=True)
    row_S = object_decoding.make_record(form, content, many, object_decoding.whole_view(form, many))
    np.testing.assert_allclose(boxes(row_S, form)[1], [0.375, 0.2, 0.875, 0.5], atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 20), st.integers(2, 20), st.integers(0, 2**32 - 1))
def test_run_lengths_are_those_of_pycocotools(height: int, width: int, seed: int) -> None:
    pixel_HW = np.random.default_rng(seed).integers(0, 2, (height, width)).astype(np.uint8)
    text = coco_mask.encode(np.asfortranarray(pixel_HW))["counts"].decode()
    runs = masks.run_lengths(text)
    values = np.repeat(np.arange(len(runs)) % 2, runs)
    np.testing.assert_array_equal(values.reshape(width, height).T, pixel_HW)
    size = 4 * height * width
    whole = masks.bitmap({"size": [height, width], "counts": runs}, (0, 0, width, height), size)
    scaled = pixel_HW[(np.arange(size) + 0.5).astype(int) * height // size][:, np.arange(size) * width // size]
    assert (whole == scaled).mean() > 0.95


def edited(change: Callable[[dict[str, Any]], Any], name: str = "train2017") -> Callable[[Path], None]:
    """Return a change of an annotation file."""

    def edit(folder: Path) -> None:
        file = scenes.annotation_file(folder, name)
        content = json.loads(file.read_text())
        change(content)
        file.write_text(json.dumps(content))

    return edit


def first(key: str, **fields: Any) -> Callable[[Path], None]:
    return edited(lambda content: content[key][0].update(fields))


def truncate(folder: Path) -> None:
    file = folder / "train2017" / "000000000002.png"
    file.write_bytes(file.read_bytes()[:-300])


DEFECTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "box": (
        first("annotations", bbox=[30, 30, 30, 5]),
        r"json', annotation 1 has bbox \[30, 30, 30, 5\] outside its im",
    ),
    "size": (first("annotations", bbox=[3, 3, -1, 5]), r"annotation 1 has bbox \[3, 3, -1, 5\] with a negative size"),
    "form": (
        first("annotations", bbox=[3, 3, 1]),
        r"annotation 1 has bbox \[3, 3, 1\], which is not \[x, y, width, hei",
    ),
    "category": (first("annotations", category_id=4), "annotation 1 has category_id 4, which no category has"),
    "image": (first("annotations", image_id=99), "annotation 1 has image_id 99, which no image has"),
    "other ids": (first("annotations", image_id=[1]), r"annotation 1 has image_id \[1\], which no image has"),
    "no number": (first("annotations", id="a"), "annotation a must have an integer as id"),
    "field": (edited(lambda c: c["annotations"][0].pop("bbox")), "annotation 1 has no bbox"),
    "segmentation": (
        edited(lambda c: c["annotations"][0].pop("segmentation")),
        "annotation 1 has no segmentation, whi",
    ),
    "points": (
        first("annotations", segmentation=[[1, 1, 2, 2]]),
        "annotation 1 has a polygon of 2 points, fewer than 3",
    ),
    "runs": (
        first("annotations", segmentation={"size": [1, 1], "counts": [1]}),
        r"has a segmentation of size \[1, 1\], b",
    ),
    "duplicate": (edited(lambda c: c["annotations"].append(c["annotations"][0])), "1 has the id of another annotation"),
    "height": (edited(lambda c: c["images"][0].pop("height")), "image 1 has no height"),
    "sides": (first("images", width=0), "image 1 has width 0 and height .*, which must be integers"),
    "other size": (
        first("images", width=60),
        r"image '.*/train2017/0+1.png' has .* pixels, but its annotations are of 60 x",
    ),
    "file": (lambda folder: (folder / "val2017" / "000000000013.png").unlink(), "'val2017/0+13.png' does not exist"),
    "truncated": (truncate, r"image '.*/train2017/0+2.png' is damaged: "),
    "folder": (
        lambda folder: (folder / "val2017").rename(folder / "other"),
        "has no folder 'val2017/' with its images",
    ),
    "json": (lambda folder: scenes.annotation_file(folder).write_text("{"), "instances_train2017.json' is not JSON"),
    "lists": (edited(lambda c: c.pop("images")), "instances_train2017.json' has no list of images"),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_bad_source_is_reported_with_its_file_and_id(name: str, tmp_path: Path) -> None:
    harm, says = DEFECTS[name]
    scenes.write_coco(tmp_path / "source", trained=3, evaluated=11)
    harm(tmp_path / "source")
    with pytest.raises(FatalError, match=says):
        prepare_objects.prepare(str(tmp_path / "source"), open_place(tmp_path / "data"), MODEL)
    assert not list((tmp_path / "data").glob("*.json"))


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    scenes.write_coco(tmp_path / "source")
    for name in ("box", "height", "file", "truncated"):
        DEFECTS[name][0](tmp_path / "source")
    with pytest.raises(FatalError) as error:
        prepare_objects.prepare(str(tmp_path / "source"), open_place(tmp_path / "data"), MODEL)
    text = "\n".join(map(str, error.value.problems))
    for says in ("image 1 has no height", "'val2017/000000000013.png' does not exist", "000000000002.png' is damaged"):
        assert says in text


def problems(path: Path | str, *others: str) -> str:
    configuration = config.load("tiny", [*SETTINGS, f"data.path={path}", *others])
    return "\n".join(map(str, checks.check_source(configuration, 8)))


def test_annotations_of_two_sets_of_one_name_are_refused(tmp_path: Path) -> None:
    for site in ("one", "two"):
        scenes.write_coco(tmp_path / site)
    with pytest.raises(FatalError) as error:
        prepare_objects.prepare(str(tmp_path), open_place(tmp_path / "out"), MODEL)
    (first, second) = error.value.problems
    both = "'one/annotations/instances_train2017.json' and 'two/annotations/instances_train2017.json'"
    assert first.message == f"data.path={str(tmp_path)!r} has {both}, of the same name"
    assert "instances_val2017.json" in second.message
    assert coco.check_objects(open_place(tmp_path)) == [first, second]


def test_problems_are_found_without_reading_images(source: Path, prepared: Corpus, tmp_path: Path) -> None:
    assert problems(source) == problems(prepared.path) == problems("synthetic") == ""
    assert "has 3 categories, but model.classes is 2" in problems(prepared.path, "model.classes=2")
    assert "model.classes is 2" in problems("synthetic", "model.classes=2")
    assert "is a data set of images with objects" in problems(prepared.path, "model.family=decoder")
    assert "has no instances_NAME.json" in problems(tmp_path)
    few = config.load("tiny", [*SETTINGS, f"data.path={prepared.path}"])
    assert "has 12 images to train on, but one batch needs 13" in str(checks.check_source(few, 13)[0])


def test_the_command_prepares_coco(source: Path, tmp_path: Path) -> None:
    words = (str(source), "--out", str(tmp_path / "out"), "--config", "tiny")
    ran = run_alone("prepare", *words, *(word for setting in SETTINGS for word in ("--set", setting)))
    assert (ran.returncode, ran.stderr) == (0, "17 images, 5 of them for evaluation\n")


def test_scenes_are_a_function_of_the_seed_and_the_number() -> None:
    assert synthetic_scenes.draw(3, 32) == synthetic_scenes.draw(3, 32) != synthetic_scenes.draw(4, 32)
    assert synthetic_scenes.draw(3, 32, seed=1) != synthetic_scenes.draw(3, 32)
    assert View(0, 0, 1, 1) == object_decoding.whole_view(FORM, Annotated(1, 1, 1, []))
