"""TFRecord files of images: read without TensorFlow; every defect is one line with its file and record."""

from pathlib import Path

import numpy as np
import pytest

from tests.trainer import photographs
from trainer.config import Model
from trainer.data import prepare_images, reader, tfrecords
from trainer.data.image_sources import check_images, find_images
from trainer.errors import FatalError
from trainer.storage import open_place

LABEL = "image/class/label"
MODEL = Model(family="resnet", image=32, classes=2)


def labels_of(file: Path) -> list[int]:
    return [example.label for example in tfrecords.examples(file, "f")]


def write(folder: Path, *records: bytes) -> Path:
    file = folder / "train-00000-of-00001"
    file.write_bytes(b"".join(map(photographs.tf_record, records)))
    return file


def message(file: Path) -> str:
    with pytest.raises(FatalError) as error:
        labels_of(file)
    (problem,) = error.value.problems
    return problem.message


def test_records_have_the_same_images_as_archives(tmp_path: Path) -> None:
    photographs.write_archives(tmp_path / "archives")
    photographs.write_records(tmp_path / "records")
    rows = []
    for source in ("archives", "records"):
        corpus = prepare_images.prepare(str(tmp_path / source), open_place(tmp_path / f"data-{source}"))
        assert (corpus.documents, corpus.held_out) == (64, 16)
        rows.append(reader.Reader(corpus, MODEL, reader.counts(corpus, MODEL))(np.arange(corpus.documents)))
    np.testing.assert_array_equal(rows[0], rows[1])  # labels, too, which are from 0


def test_files_are_known_by_imagenets_names_and_by_their_suffix(tmp_path: Path) -> None:
    names = ("train-00000-of-01024", "validation-00127-of-00128", "a.tfrecord", "b.TFRECORDS", "train-of-3", "c.txt")
    for name in names:
        (tmp_path / name).write_bytes(b"")
    source = find_images(open_place(tmp_path))
    assert [entry.name for entry in source.training] == ["a.tfrecord", "b.TFRECORDS", "train-00000-of-01024"]
    assert [entry.name for entry in source.evaluation] == ["validation-00127-of-00128"]
    assert not check_images(open_place(tmp_path), 1000)


def test_labels_may_be_packed_or_not(tmp_path: Path) -> None:
    packed = photographs.example(b"image", 300)
    single = photographs.example(b"image", 1, **{LABEL: b"\x1a\x02\x08\x07"})
    assert labels_of(write(tmp_path, packed, single)) == [300, 7]


def test_an_empty_file_has_no_images(tmp_path: Path) -> None:
    assert labels_of(write(tmp_path)) == []


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (photographs.example(b"i", 0), "record 1 of 'f' has label 0"),
        (photographs.example(b"i", -3), "record 1 of 'f' has label -3"),
        (photographs.example(b"i", 1, **{LABEL: b""}), "record 1 of 'f' has no feature 'image/class/label'"),
        (photographs.example(b"i", 1, **{"image/encoded": b""}), "record 1 of 'f' has no feature 'image/encoded'"),
        (
            photographs.example(b"i", 1, **{LABEL: b"\x1a\x04\x0a\x02\x01\x02"}),
            "record 1 of 'f' has 2 values in the feature 'image/class/label'",
        ),
        (
            photographs.example(b"i", 1, **{LABEL: b"\x0a\x03\x0a\x01a"}),
            "record 1 of 'f' has a feature 'image/class/label' that is not an integer",
        ),
        (b"", "record 1 of 'f' has no feature 'image/encoded'"),
        (b"\x0a\x7f", "record 1 of 'f' is not a tf.train.Example: a field is longer than the record"),
        (b"\xff" * 11, "record 1 of 'f' is not a tf.train.Example: an integer has no end"),
        (b"\x0b", "record 1 of 'f' is not a tf.train.Example: unknown wire type 3"),
    ],
)
def test_a_bad_example_is_named_with_its_record(record: bytes, says: str, tmp_path: Path) -> None:
    assert message(write(tmp_path, photographs.example(b"i", 1), record)) == says


@pytest.mark.parametrize(
    ("at", "says"),
    [
        (3, "record 0 of 'f' is damaged: the checksum of its length is wrong"),
        (9, "record 0 of 'f' is damaged: the checksum of its length is wrong"),
        (20, "record 0 of 'f' is damaged: the checksum of its content is wrong"),
        (-1, "record 0 of 'f' is damaged: the checksum of its content is wrong"),
    ],
)
def test_a_flipped_bit_is_found_by_a_checksum(at: int, says: str, tmp_path: Path) -> None:
    file = write(tmp_path, photographs.example(b"image", 1))
    content = bytearray(file.read_bytes())
    content[at] ^= 4
    file.write_bytes(content)
    assert message(file) == says


@pytest.mark.parametrize("cut", [1, 4, 20])
def test_a_truncated_file_is_named_with_its_record(cut: int, tmp_path: Path) -> None:
    file = write(tmp_path, photographs.example(b"image", 1), photographs.example(b"image", 2))
    file.write_bytes(file.read_bytes()[:-cut])
    assert message(file) == f"record 1 of 'f' is truncated: the file ends {cut} bytes before its end"


def test_a_truncated_header_is_named(tmp_path: Path) -> None:
    file = write(tmp_path, photographs.example(b"image", 1))
    file.write_bytes(file.read_bytes() + b"\x05\0\0")
    assert message(file).startswith("record 1 of 'f' is truncated")


def test_a_damaged_image_is_named_with_its_file_and_record(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    china = photographs.jpeg(photographs.photograph("china"))
    write(tmp_path / "source", photographs.example(china, 1), photographs.example(china[:-200], 2))
    with pytest.raises(FatalError, match=r"image '.*train-00000-of-00001:1' is damaged: image file is truncated"):
        prepare_images.prepare(str(tmp_path / "source"), open_place(tmp_path / "data"))
