"""Photographs: class folders and archives, crops that depend on (seed, step, example) alone, and bad images."""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.trainer import photographs
from tests.trainer.small import run_alone
from trainer import config
from trainer.config import Data, Model
from trainer.data import checks, dataset, image_decoding, prepare_images, reader
from trainer.data.dataset import Corpus
from trainer.errors import FatalError
from trainer.storage import open_place

MODEL = Model(family="resnet", image=32, classes=2)
SETTINGS = ("model.family=resnet", "model.image=32", "model.classes=2")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    photographs.write_folders(folder)
    return folder


@pytest.fixture(scope="module")
def prepared(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return prepare_images.prepare(str(source), open_place(tmp_path_factory.mktemp("data")), file_tokens=150_000)


def open_reader(corpus: Corpus, seed: int = 0) -> reader.Reader:
    return reader.Reader(corpus, MODEL, reader.counts(corpus, MODEL), settings=Data(seed=seed))


def test_class_folders_become_documents_with_labels(prepared: Corpus, source: Path) -> None:
    count, held_out = 2 * (photographs.TRAINED + photographs.EVALUATED), 2 * photographs.EVALUATED
    assert (prepared.documents, prepared.held_out, prepared.tokenizer) == (count, held_out, "jpeg")
    assert len(prepared.files) > 1 and sum(reader.counts(prepared, MODEL)) == count
    labels = open_reader(prepared)(np.arange(count))[:, -2:]
    assert labels[:, 1].max() == 0
    trained, evaluated = np.split(labels[:, 0], [count - held_out])
    assert np.bincount(trained).tolist() == [photographs.TRAINED] * 2
    assert np.bincount(evaluated).tolist() == [photographs.EVALUATED] * 2
    assert np.bincount(trained[:12]).min() > 1, "every part has all classes"
    assert json.loads(Path(prepared.path).read_text())["classes"] == list(photographs.CLASSES)
    folder = open_place(Path(prepared.path).parent)
    assert prepare_images.prepare(str(source), folder, file_tokens=150_000) == prepared


def test_an_archive_has_the_same_images_as_class_folders(prepared: Corpus, tmp_path: Path) -> None:
    photographs.write_archives(tmp_path / "source")
    archived = prepare_images.prepare(str(tmp_path / "source"), open_place(tmp_path / "data"))
    assert (archived.documents, archived.held_out) == (prepared.documents, prepared.held_out)
    rows = [open_reader(corpus)(np.arange(corpus.documents)) for corpus in (prepared, archived)]
    ordered = [sorted(map(bytes, row[: -prepared.held_out])) for row in rows]
    assert ordered[0] == ordered[1]


def test_crops_are_a_function_of_the_seed_the_step_and_the_example(prepared: Corpus) -> None:
    ids = np.array([5, 40, 11, 5])
    first = open_reader(prepared)(ids, 7)
    assert (first[0] == first[3]).all()
    again = open_reader(prepared)(ids[[2, 1]], 7)  # on another host, which has other examples
    np.testing.assert_array_equal(again, first[[2, 1]])
    for other in (open_reader(prepared)(ids, 8), open_reader(prepared, seed=1)(ids, 7)):
        assert (other[:, :-2] != first[:, :-2]).any(axis=1).all()
        np.testing.assert_array_equal(other[:, -2:], first[:, -2:])
    np.testing.assert_array_equal(open_reader(prepared, 0)(ids), open_reader(prepared, 1)(ids))


def test_half_of_the_images_are_flipped() -> None:
    ramp = np.broadcast_to(np.arange(0, 240, 2, dtype=np.uint8)[None, :, None], (100, 120, 3))
    content = photographs.jpeg(Image.fromarray(ramp))
    decode = image_decoding.Decoder(8, 0)
    flipped = 0
    for step in range(10):
        for pixels in decode([content] * 40, range(40), step):
            assert not isinstance(pixels, str)
            flipped += int(pixels[4, 0, 0]) > int(pixels[4, -1, 0])
    assert 160 < flipped < 240


def test_crops_have_the_areas_and_ratios_of_the_rules() -> None:
    random = np.random.default_rng(0)
    boxes = np.array([image_decoding.draw_crop(500, 375, random) for _ in range(2000)])
    assert boxes.min() >= 0 and (boxes[:, 2] <= 500).all() and (boxes[:, 3] <= 375).all()
    sides = boxes[:, 2:] - boxes[:, :2]
    area, ratio = sides.prod(1) / (500 * 375), sides[:, 0] / sides[:, 1]
    assert 0.1 <= area.min() < 0.11 and 0.9 < area.max() <= 1
    assert 0.75 <= ratio.min() < 0.76 and 1.32 < ratio.max() <= 1.334
    assert image_decoding.draw_crop(1000, 10, random) == (0, 0, 1000, 10), "no crop of that ratio fits"


def test_an_evaluation_sees_the_center() -> None:
    image = photographs.photograph("china")
    pixels = image_decoding.decode(photographs.jpeg(image), 224, image_decoding.center)
    width = round(640 * 256 / 427)
    whole = image.resize((width, 256), Image.Resampling.BILINEAR)
    left = (width - 224) // 2
    expected = np.asarray(whole.crop((left, 16, left + 224, 240)), np.float32)
    assert np.abs(pixels - expected).mean() < 6  # the reference rounds the width, and reads another JPEG
    assert np.abs(pixels[:, ::-1] - expected).mean() > 20


def test_a_large_image_is_decoded_at_a_lower_resolution(monkeypatch: pytest.MonkeyPatch) -> None:
    content = photographs.jpeg(photographs.photograph("flower"))
    sizes: list[tuple[int, int]] = []
    convert = Image.Image.convert

    def record(image: Image.Image, mode: str) -> Image.Image:
        sizes.append(image.size)
        return convert(image, mode)

    monkeypatch.setattr(Image.Image, "convert", record)
    small = image_decoding.decode(content, 64, image_decoding.center)
    image_decoding.decode(content, 300, image_decoding.center)
    assert sizes == [(160, 107), (640, 427)]
    exact = image_decoding.decode(photographs.jpeg(photographs.photograph("flower")), 256, image_decoding.center)
    reduced = np.asarray(Image.fromarray(exact).resize((64, 64), Image.Resampling.BILINEAR), np.float32)
    assert np.abs(small - reduced).mean() < 4


def truncate(folder: Path) -> str:
    file = folder / "train" / "china" / "001.JPEG"
    file.write_bytes(file.read_bytes()[:-200])
    return rf"image '{file}' is damaged: image file is truncated"


def replace_by_text(folder: Path) -> str:
    file = folder / "val" / "flower" / "030.JPEG"
    file.write_text("not an image")
    return rf"image '{file}' is damaged: it is not a JPEG or PNG image"


def link_a_class(folder: Path) -> str:
    (folder / "train" / "boat").symlink_to(folder / "train" / "flower")
    return rf"folder '{folder / 'train' / 'boat'}' is a symbolic link, which is not followed"


def link_a_split(folder: Path) -> str:
    (folder / "val").rename(folder.parent / "elsewhere")
    (folder / "val").symlink_to(folder.parent / "elsewhere")
    return rf"folder '{folder / 'val'}' is a symbolic link, which is not followed"


def add_an_empty_class(folder: Path) -> str:
    (folder / "train" / "boat").mkdir()
    return rf"class folder '{folder / 'train' / 'boat'}' has no images"


def add_an_unknown_class(folder: Path) -> str:
    (folder / "val" / "boat").mkdir()
    (folder / "val" / "boat" / "0.jpg").write_bytes(b"")
    return r"class 'boat' of the evaluation split of .* has no images to train on"


def add_a_loose_file(folder: Path) -> str:
    (folder / "train" / "0.jpg").write_bytes(b"")
    return r"train/0.jpg' is not in the folder of a class"


@pytest.mark.parametrize(
    "harm",
    [truncate, replace_by_text, add_an_empty_class, add_an_unknown_class, add_a_loose_file, link_a_class, link_a_split],
)
def test_a_bad_source_is_reported_with_its_file(harm: Callable[[Path], str], tmp_path: Path) -> None:
    photographs.write_folders(tmp_path / "source")
    says = harm(tmp_path / "source")
    with pytest.raises(FatalError, match=says):
        prepare_images.prepare(str(tmp_path / "source"), open_place(tmp_path / "data"))
    assert not list((tmp_path / "data").glob("*.json"))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("0.cls", b"cat", "image '.*a.tar:0' has label 'cat'"),
        ("1.cls", b"0", "image '.*a.tar:0' has no label"),
        ("0.cls", b"70000", "image '.*a.tar:0' has label 70000, the largest is 65535"),
    ],
)
def test_a_bad_label_of_an_archive_is_reported(name: str, content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    with tarfile.open(tmp_path / "source" / "a.tar", "w") as archive:
        photographs.add(archive, "0.jpg", photographs.jpeg(photographs.photograph("china")))
        photographs.add(archive, name, content)
    with pytest.raises(FatalError, match=says):
        prepare_images.prepare(str(tmp_path / "source"), open_place(tmp_path / "data"))


def test_a_truncated_archive_is_reported(tmp_path: Path) -> None:
    photographs.write_archives(tmp_path / "source")
    file = tmp_path / "source" / "set-train-000.tar"
    file.write_bytes(file.read_bytes()[:100_000])
    with pytest.raises(FatalError, match=r"set-train-000.tar' is not a complete tar archive: unexpected end of data"):
        prepare_images.prepare(str(tmp_path / "source"), open_place(tmp_path / "data"))


def test_damage_inside_an_image_is_reported_when_it_is_read(tmp_path: Path) -> None:
    photographs.write_folders(tmp_path / "source")
    for file in (tmp_path / "source" / "train" / "china").iterdir():
        content = bytearray(file.read_bytes())
        table = content.index(b"\xff\xc4") + 5  # a Huffman table: the numbers of codes of each length
        content[table : table + 16] = b"\xff" * 16
        file.write_bytes(content)
    corpus = prepare_images.prepare(str(tmp_path / "source"), open_place(tmp_path / "data"))
    with pytest.raises(FatalError, match=r"image \d+ of '.*tokens-.*.bin' is damaged: broken data stream"):
        open_reader(corpus)(np.arange(20), 0)


def problems(path: Path | str, *settings: str) -> str:
    configuration = config.load("tiny", [*SETTINGS, f"data.path={path}", *settings])
    return "\n".join(map(str, checks.check_source(configuration, 8)))


def test_problems_are_found_without_reading_images(source: Path, prepared: Corpus, tmp_path: Path) -> None:
    assert problems(source) == problems(prepared.path) == ""
    assert "has 2 classes, but model.classes is 1" in problems(source, "model.classes=1")
    assert "is a data set of images. Use --set model.family=resnet" in problems(prepared.path, "model.family=decoder")
    (tmp_path / "a.txt").write_text("text")
    assert "has no images" in problems(tmp_path)
    few = config.load("tiny", [*SETTINGS, f"data.path={prepared.path}"])
    assert "has 48 images to train on, but one batch needs 49" in str(checks.check_source(few, 49)[0])


def test_prepare_counts_images_and_names_missing_pillow(source: Path, tmp_path: Path) -> None:
    words = ("prepare", str(source), "--config", "resnet-tiny", "--out", str(tmp_path / "out"))
    ran = run_alone(*words)
    assert (ran.returncode, ran.stderr) == (0, "64 images, 16 of them for evaluation\n")
    assert dataset.open_corpus(open_place(ran.stdout.strip())).held_out == 16
    (tmp_path / "PIL.py").write_text("raise ImportError")
    ran = run_alone(*words[:-1], str(tmp_path / "other"), PYTHONPATH=f"{tmp_path}:workloads")
    assert (ran.returncode, ran.stdout) == (42, "")
    assert ran.stderr == (
        "error: photographs require Pillow, which is not installed. pip install 'xpk-multislice[images]'\n"
    )
