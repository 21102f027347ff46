"""Small folders in COCO's format, with synthetic scenes.

`python -m tests.trainer.scenes FOLDER` writes one in a second.
"""

import json
import sys
from pathlib import Path
from typing import Any

from trainer.data.objects import Annotated
from trainer.data.synthetic_scenes import CATEGORIES, draw

IDS = (3, 7, 20)  # of the categories; COCO's are not consecutive either
TRAINED, EVALUATED = 12, 5


def write_coco(folder: Path, size: int = 32, trained: int = TRAINED, evaluated: int = EVALUATED) -> None:
    """Write scenes to train on and to evaluate."""
    for name, first, count in (("train2017", 0, trained), ("val2017", trained, evaluated)):
        scenes = [draw(number, size) for number in range(first, first + count)]
        (folder / name).mkdir(parents=True)
        for content, annotated in scenes:
            (folder / name / file_name(annotated)).write_bytes(content)
        write_annotations(folder, name, [annotated for _, annotated in scenes])


def file_name(annotated: Annotated) -> str:
    return f"{annotated.id:012}.png"


def write_annotations(folder: Path, name: str, images: list[Annotated]) -> None:
    (folder / "annotations").mkdir(exist_ok=True)
    content = {
        "images": [
            {"id": image.id, "file_name": file_name(image), "width": image.width, "height": image.height}
            for image in images
        ],
        "annotations": [annotation(image, one) for image in images for one in image.objects],
        "categories": [{"id": number, "name": name} for number, name in zip(IDS, CATEGORIES, strict=True)],
    }
    annotation_file(folder, name).write_text(json.dumps(content))


def annotation_file(folder: Path, name: str = "train2017") -> Path:
    return folder / "annotations" / f"instances_{name}.json"


def annotation(image: Annotated, one: dict[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in one.items() if key != "category"}
    return rest | {"image_id": image.id, "category_id": IDS[one["category"] - 1]}


if __name__ == "__main__":
    write_coco(Path(sys.argv[1]))
