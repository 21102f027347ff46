"""Sources of photographs: folders of classes, WebDataset archives, and TFRecord files.

A folder of classes has a folder of JPEG files for each class; labels are the positions of the sorted class names. An
archive (tar) has files `KEY.jpg` and `KEY.cls` for each image, the latter with its label as a decimal number. TFRecord
files (tfrecords.py) are archives, too; their labels are from 1, which is label 0 here. Files below `val/` or
`validation/`, and archives with such a word in their name, are the evaluation split.
"""

import dataclasses
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from trainer.data import local_copies, tfrecords
from trainer.errors import FatalError, Problem, reason
from xpk_shared.storage import Entry, Place

_SUFFIXES = (".jpg", ".jpeg", ".png")
_ARCHIVE = ".tar"
_TRAINING, _EVALUATION = ("train", "training"), ("val", "validation")  # names of folders
_MAX_SHOWN = 3  # empty folders in a message


class LabeledImage(NamedTuple):
    """An encoded image."""

    name: str  # of its file, for messages
    content: bytes
    label: int


@dataclasses.dataclass(frozen=True)
class ImageSource:
    """The files of a source."""

    folder: Place
    classes: tuple[str, ...]  # empty for archives
    training: tuple[Entry, ...]
    evaluation: tuple[Entry, ...]

    @property
    def has_archives(self) -> bool:
        """True if the files are archives."""
        return not self.classes

    def images(self, entries: tuple[Entry, ...]) -> Iterator[LabeledImage]:
        """Yield the images of some of the files. Raises FatalError for a damaged archive or a missing label."""
        if self.has_archives:
            for entry in entries:
                read = _recorded_images if tfrecords.is_named(entry.name) else _archived_images
                yield from read(self.folder / entry.name)
            return
        labels = {name: label for label, name in enumerate(self.classes)}
        for entry, content in zip(entries, self.folder.read_each(entries, ()), strict=True):
            yield LabeledImage(str(self.folder / entry.name), content or b"", labels[class_name(entry.name)])


def find_images(folder: Place) -> ImageSource:
    """Return the images in a folder, listed but not read.

    Files of classes are in an order that only their names decide, so that every part of it has all classes; archives
    are in the order of their names. Raises FatalError if there are none, or if a class is empty or has no folder.
    """
    entries = list(folder.walk(frozenset()))
    archives = [entry for entry in entries if _is_archive(entry.name)]
    files = [entry for entry in entries if entry.name.lower().endswith(_SUFFIXES)]
    if archives and files:
        message = f"data.path={str(folder)!r} has both image files and archives, such as {archives[0].name!r}"
        raise FatalError(Problem(message, "Use a folder with one of them"))
    if not (archives or files):
        message = f"data.path={str(folder)!r} has no images"
        raise FatalError(Problem(message, "Use class folders with JPEG files, WebDataset archives or TFRecord files"))
    if archives:
        return ImageSource(folder, (), *_split(archives, _is_evaluation_archive))
    loose = [entry.name for entry in files if not class_name(entry.name)]
    if loose:
        message = f"{str(folder / loose[0])!r} is not in the folder of a class"
        raise FatalError(Problem(message, "Use one folder of images for each class"))
    _check_folders(folder)
    training, evaluation = _split(sorted(files, key=_mixed), lambda name: name.split("/")[0] in _EVALUATION)
    classes = sorted({class_name(entry.name) for entry in training})
    unknown = {class_name(entry.name) for entry in evaluation} - set(classes)
    if unknown:
        message = f"class {min(unknown)!r} of the evaluation split of {str(folder)!r} has no images to train on"
        raise FatalError(Problem(message, "Use the same class folders in both"))
    return ImageSource(folder, tuple(classes), training, evaluation)


def check_images(folder: Place, classes: int) -> list[Problem]:
    """Return the problems of a folder of images for a model of so many classes, without reading any image."""
    try:
        images = find_images(folder)
    except FatalError as error:
        return list(error.problems)
    if len(images.classes) > classes:
        message = f"data.path={str(folder)!r} has {len(images.classes)} classes, but model.classes is {classes}"
        return [Problem(message, f"Use --set model.classes={len(images.classes)} or more")]
    return []


def class_name(name: str) -> str:
    """Return the class of a file by its name relative to the source, or an empty string if it is in no class folder."""
    parts = name.split("/")[:-1]
    if parts and parts[0] in (*_TRAINING, *_EVALUATION):
        parts = parts[1:]
    return parts[0] if parts else ""


def _split(entries: list[Entry], is_evaluation: Callable[[str], bool]) -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
    evaluation = tuple(entry for entry in entries if is_evaluation(entry.name))
    return tuple(entry for entry in entries if not is_evaluation(entry.name)), evaluation


def _is_archive(name: str) -> bool:
    return name.lower().endswith(_ARCHIVE) or tfrecords.is_named(name)


def _is_evaluation_archive(name: str) -> bool:
    return bool(set(re.split(r"[^a-z]+", name.lower())) & set(_EVALUATION))


def _mixed(entry: Entry) -> tuple[int, str]:
    return zlib.crc32(entry.name.encode("utf-8", "surrogateescape")), entry.name


def _check_folders(folder: Place) -> None:
    """Raise FatalError for folders on a disk that are links or hold neither images nor folders; a bucket has none."""
    empty = list[str]()
    for root, folders, names in os.walk(folder.path) if folder.path else ():
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (os.path.join(root, name) for name in folders):
            if os.path.islink(path):
                message = f"folder {path!r} is a symbolic link, which is not followed"
                raise FatalError(Problem(message, "Move or copy the folder itself here"))
        if not folders and not any(name.lower().endswith(_SUFFIXES) for name in names):
            empty.append(root)
    if empty:
        more = f" and {len(empty) - _MAX_SHOWN} more" if len(empty) > _MAX_SHOWN else ""
        message = f"class folder {', '.join(map(repr, empty[:_MAX_SHOWN]))}{more} has no images"
        raise FatalError(Problem(message, "Add images, or remove the folder"))


def _recorded_images(place: Place) -> Iterator[LabeledImage]:
    with local_copies.temporary_copy(place) as path:
        for example in tfrecords.examples(path, str(place)):
            yield LabeledImage(f"{place}:{example.number}", example.image, example.label - 1)


def _archived_images(place: Place) -> Iterator[LabeledImage]:
    try:
        with local_copies.temporary_copy(place) as path, tarfile.open(path) as archive:
            key, fields = "", dict[str, bytes]()
            for member in archive:
                folder, _, base = member.name.rpartition("/")
                stem, _, suffix = base.partition(".")
                if not member.isfile() or not stem:
                    continue
                if f"{folder}/{stem}" != key:
                    yield from _sample(place, key, fields)
                    key, fields = f"{folder}/{stem}", {}
                content = archive.extractfile(member)
                fields[suffix.lower()] = content.read() if content else b""
            yield from _sample(place, key, fields)
    except (tarfile.TarError, EOFError) as error:
        raise FatalError(
            Problem(f"{str(place)!r} is not a complete tar archive: {reason(error)}", "Copy it again")
        ) from error


def _sample(place: Place, key: str, fields: dict[str, bytes]) -> Iterator[LabeledImage]:
    """Yield the image of an archive's files with the same key, if there is one."""
    content = next((fields[suffix[1:]] for suffix in _SUFFIXES if suffix[1:] in fields), None)
    if content is None:
        return
    name, text = f"{place}:{key.lstrip('/')}", fields.get("cls", b"").decode(errors="replace").strip()
    if not text.isdecimal():
        message = f"image {name!r} has {f'label {text!r}' if 'cls' in fields else 'no label'}"
        raise FatalError(Problem(message, "Add its label as a decimal number in a file with the suffix .cls"))
    yield LabeledImage(name, content, int(text))
