"""Images with objects in COCO's format: files `instances_NAME.json`, and for each the folder NAME with its images.

Annotations whose NAME has the word `val` are those of the evaluation split. Everything is checked before anything is
written: `Problems` collects one line for each defect.
"""

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trainer.data.masks import run_lengths
from trainer.data.objects import Annotated
from trainer.errors import FatalError, Problem, reason
from xpk_shared.storage import Place

_NAME = re.compile(r"(?:^|/)instances_([^/]+)\.json$")
_EVALUATION = re.compile(r"(?:^|[^a-z])(?:val|validation)(?:[^a-z]|$)")
_TOLERANCE = 1.0  # pixels by which a box may exceed its picture, as some of COCO's do; it is clipped
_MAX_SHOWN = 50
_MIN_NUMBERS = 6  # of a polygon: three points
_EDIT = "Correct the annotation, or remove it"
_LAYOUT = "Use annotations/instances_NAME.json beside the folder NAME with its images"


class Problems:
    """Problems of a source; of many, the first ones and their number."""

    def __init__(self) -> None:
        self._first, self._count = list[Problem](), 0

    def __bool__(self) -> bool:
        return self._count > 0

    def add(self, message: str, hint: str = _EDIT) -> None:
        """Add a problem."""
        self._count += 1
        if len(self._first) < _MAX_SHOWN:
            self._first.append(Problem(message, hint))

    def check(self) -> None:
        """Raise FatalError if there are any."""
        more = self._count - len(self._first)
        rest = [Problem(f"there are {more:,} more of these problems", "Correct those above first")] if more else []
        if self:
            raise FatalError(*self._first, *rest)


@dataclasses.dataclass(frozen=True, slots=True)
class CocoImage:
    """An image of a source, not read yet."""

    name: str  # path below the source's folder
    annotated: Annotated


@dataclasses.dataclass(frozen=True, slots=True)
class CocoSource:
    """The images of a source."""

    folder: Place
    categories: tuple[str, ...]  # names, sorted by id
    training: tuple[CocoImage, ...]
    evaluation: tuple[CocoImage, ...]
    skipped: int  # images to train on without objects


def find_annotations(folder: Place) -> dict[str, str]:
    """Return the annotation files of a folder: name of the set -> path.

    Raises FatalError if there are none, or several of one name.
    """
    files, problems = dict[str, str](), list[Problem]()
    for entry in folder.walk(frozenset()):
        if match := _NAME.search(entry.name):
            first = files.setdefault(match[1], entry.name)
            if first != entry.name:
                message = f"data.path={str(folder)!r} has {first!r} and {entry.name!r}, of the same name"
                problems.append(Problem(message, "Use other names for the file and the folder with its images"))
    if problems:
        raise FatalError(*problems)
    if not files:
        raise FatalError(Problem(f"data.path={str(folder)!r} has no instances_NAME.json", _LAYOUT))
    if all(map(_is_evaluation, files)):
        message = f"data.path={str(folder)!r} has only annotations of an evaluation split, {', '.join(sorted(files))}"
        raise FatalError(Problem(message, "Add instances_NAME.json of the training images"))
    return files


def check_objects(folder: Place) -> list[Problem]:
    """Return the problems of a folder that are found without reading any annotation."""
    try:
        find_annotations(folder)
    except FatalError as error:
        return list(error.problems)
    return []


def read_source(folder: Place, problems: Problems, *, needs_masks: bool = False) -> CocoSource:
    """Return the images of a folder and their annotations, and add all defects to `problems`.

    Images to train on that have no objects are left out. Raises FatalError if there are no annotations.
    """
    files, listed = find_annotations(folder), {entry.name for entry in folder.walk(frozenset())}
    sets = {name: _read_file(folder / path, problems) for name, path in sorted(files.items())}
    ids = _category_ids(folder, files, sets, problems)
    training, evaluation, skipped = list[CocoImage](), list[CocoImage](), 0
    for name, content in sets.items():
        file = _AnnotationFile(folder / files[name], content, problems, ids, needs_masks=needs_masks)
        images = list(file.images(_image_folder(folder, files[name], name, listed, problems), listed))
        kept = [image for image in images if _is_evaluation(name) or image.annotated.objects]
        skipped += len(images) - len(kept)
        (evaluation if _is_evaluation(name) else training).extend(kept)
    names = {one["id"]: str(one.get("name", one["id"])) for content in sets.values() for one in _categories(content)}
    return CocoSource(
        folder, tuple(names[number] for number in sorted(ids)), tuple(training), tuple(evaluation), skipped
    )


def _is_evaluation(name: str) -> bool:
    return bool(_EVALUATION.search(name.lower()))


def _read_file(place: Place, problems: Problems) -> dict[str, Any]:
    """Return the content of an annotation file; empty if it has none."""
    try:
        content = json.loads(place.read())
    except (ValueError, RecursionError) as error:
        problems.add(f"{str(place)!r} is not JSON: {reason(error)}", "Copy it again")
        return {}
    missing = [key for key in ("images", "annotations", "categories") if not _is_list_of_objects(content, key)]
    for key in missing:
        problems.add(f"{str(place)!r} has no list of {key}", "Use an instances_NAME.json of COCO's format")
    return {} if missing else content


def _is_list_of_objects(content: Any, key: str) -> bool:
    values = content.get(key) if isinstance(content, dict) else None
    return isinstance(values, list) and all(isinstance(value, dict) for value in values)


def _categories(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [one for one in content.get("categories", ()) if type(one.get("id")) is int]


def _category_ids(
    folder: Place, files: Mapping[str, str], sets: Mapping[str, dict[str, Any]], problems: Problems
) -> dict[int, int]:
    """Return category id -> position from 1, of all files; they must have the same."""
    known: dict[str, set[int]] = {}
    for name, content in sets.items():
        known[name] = {one["id"] for one in _categories(content)}
        if content and len(known[name]) < len(content["categories"]):
            problems.add(f"{str(folder / files[name])!r} has a category without an id of its own")
    training = set().union(*(ids for name, ids in known.items() if not _is_evaluation(name)))
    for name, ids in known.items():
        if unknown := sorted(ids - training):
            message = (
                f"{str(folder / files[name])!r} has category {unknown[0]}, which the training annotations have not"
            )
            problems.add(message, "Use the same categories in all files")
    return {number: position for position, number in enumerate(sorted(training), 1)}


def _image_folder(folder: Place, path: str, name: str, listed: Iterable[str], problems: Problems) -> str:
    """Return the folder with the images of an annotation file, which ends in "/" unless it is the source itself."""
    parent = path.rpartition("/")[0]
    candidates = [f"{parent}/{name}/" if parent else f"{name}/", f"{parent.rpartition('/')[0]}/{name}/".lstrip("/")]
    for candidate in candidates:
        if any(file.startswith(candidate) for file in listed):
            return candidate
    problems.add(f"{str(folder / path)!r} has no folder {candidates[-1]!r} with its images", _LAYOUT)
    return candidates[-1]


class _AnnotationFile:
    """Checks of an annotation file."""

    def __init__(
        self, place: Place, content: dict[str, Any], problems: Problems, ids: Mapping[int, int], *, needs_masks: bool
    ) -> None:
        self._name, self._content, self._problems = str(place), content, problems
        self._ids, self._needs_masks = ids, needs_masks
        self._image_ids = {one["id"] for one in content.get("images", ()) if type(one.get("id")) is int}

    def images(self, folder: str, listed: set[str]) -> Iterator[CocoImage]:
        """Yield the images whose files exist, with their valid annotations."""
        images, objects = self._sizes(), dict[int, list[dict[str, Any]]]()
        seen = set[Any]()
        for nth, one in enumerate(self._content.get("annotations", ())):
            if defect := self._defect(one, images, seen):
                name = one.get("id", f"at position {nth}")
                self._problems.add(f"{self._name!r}, annotation {name} {defect}")
            elif one["image_id"] in images and min(one["bbox"][2:]) > 0:
                objects.setdefault(one["image_id"], []).append(self._object(one))
            seen.add(one.get("id") if type(one.get("id")) is int else None)
        for number, (file, width, height) in images.items():
            if f"{folder}{file}" not in listed:
                self._problems.add(
                    f"{self._name!r}, image {number}: {f'{folder}{file}'!r} does not exist", "Copy it, or remove it"
                )
            else:
                yield CocoImage(f"{folder}{file}", Annotated(number, width, height, objects.get(number, [])))

    def _sizes(self) -> dict[int, tuple[str, int, int]]:
        """Return the file name, width and height of each valid image, by id."""
        images: dict[int, tuple[str, int, int]] = {}
        for nth, one in enumerate(self._content.get("images", ())):
            number = one.get("id")
            what = f"{self._name!r}, image {number if number is not None else f'at position {nth}'}"
            missing = [key for key in ("id", "file_name", "width", "height") if key not in one]
            sizes = [one.get("width"), one.get("height")]
            if missing:
                self._problems.add(f"{what} has no {' and no '.join(missing)}")
            elif type(number) is not int or not isinstance(one["file_name"], str):
                self._problems.add(f"{what} must have an integer as id and a file_name")
            elif any(type(size) is not int or not 0 < size < 1 << 16 for size in sizes):
                self._problems.add(
                    f"{what} has width {sizes[0]!r} and height {sizes[1]!r}, which must be integers from 1 to 65,535"
                )
            elif number in images:
                self._problems.add(f"{what} has the id of another image")
            else:
                images[number] = (one["file_name"], *sizes)
        return images

    def _defect(self, one: dict[str, Any], images: Mapping[int, tuple[str, int, int]], seen: set[Any]) -> str:
        """Return what is wrong with an annotation, or an empty string."""
        if missing := [key for key in ("id", "image_id", "category_id", "bbox") if key not in one]:
            return f"has no {' and no '.join(missing)}"
        if type(one["id"]) is not int:
            return "must have an integer as id"
        if one["id"] in seen:
            return "has the id of another annotation"
        if type(one["image_id"]) is not int or one["image_id"] not in self._image_ids:
            return f"has image_id {one['image_id']!r}, which no image has"
        if type(one["category_id"]) is not int or one["category_id"] not in self._ids:
            return f"has category_id {one['category_id']!r}, which no category has"
        if one["image_id"] not in images:  # its image is a problem already
            return ""
        return self._object_defect(one, *images[one["image_id"]][1:])

    def _object_defect(self, one: dict[str, Any], width: int, height: int) -> str:
        """Return what is wrong with the object in an image of this size, or an empty string."""
        box = one["bbox"]
        if not (isinstance(box, list) and len(box) == 4 and all(map(_is_number, box))):
            return f"has bbox {box!r}, which is not [x, y, width, height]"
        if min(box[2:]) < 0:
            return f"has bbox {box} with a negative size"
        x, y = box[0] + box[2], box[1] + box[3]
        if min(box[:2]) < -_TOLERANCE or x > width + _TOLERANCE or y > height + _TOLERANCE:
            return f"has bbox {box} outside its image of {width} x {height} pixels"
        if one.get("iscrowd", 0) not in (0, 1):
            return f"has iscrowd {one['iscrowd']!r}, which is not 0 or 1"
        if not _is_number(one.get("area", 0.0)):
            return f"has area {one['area']!r}, which is not a number"
        if not one.get("segmentation"):
            return "has no segmentation, which model.mask requires" if self._needs_masks else ""
        return _segmentation_defect(one["segmentation"], width, height)

    def _object(self, one: dict[str, Any]) -> dict[str, Any]:
        box = [float(number) for number in one["bbox"]]
        return {
            "id": one["id"],
            "bbox": box,
            "category": self._ids[one["category_id"]],
            "iscrowd": int(one.get("iscrowd", 0)),
            "area": float(one.get("area", box[2] * box[3])),
            "segmentation": one.get("segmentation") or [],
        }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _segmentation_defect(segmentation: Any, width: int, height: int) -> str:
    """Return what is wrong with polygons, or with a bitmap in run lengths, or an empty string."""
    if isinstance(segmentation, list):
        for polygon in segmentation:
            if not isinstance(polygon, list) or not all(map(_is_number, polygon)) or len(polygon) % 2:
                return "has a polygon that is not a list of x, y, x, y, ..."
            if len(polygon) < _MIN_NUMBERS:
                return f"has a polygon of {len(polygon) // 2} points, fewer than 3"
        return ""
    if not isinstance(segmentation, dict) or not {"size", "counts"} <= segmentation.keys():
        return "has a segmentation that is neither polygons nor run lengths with size and counts"
    if segmentation["size"] != [height, width]:
        return f"has a segmentation of size {segmentation['size']}, but its image has [{height}, {width}]"
    counts = segmentation["counts"]
    if not isinstance(counts, str | list):
        return "has counts that are neither a list nor text"
    try:
        lengths = run_lengths(counts)
    except ValueError as error:
        return f"has run lengths that {error}"
    return "" if sum(lengths) == width * height else f"has run lengths that do not sum to {width * height:,} pixels"
