"""A small set of photographs: crops of scikit-learn's two, in class folders or archives.

`python -m tests.trainer.photographs FOLDER` writes it in a second.
"""

import io
import sys
import tarfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("china", "flower")
TRAINED, EVALUATED = 24, 8  # images of each class


def photograph(name: str) -> Image.Image:
    """Return one of scikit-learn's photographs, 640 x 427 pixels."""
    spec = find_spec("sklearn.datasets")
    assert spec is not None and spec.submodule_search_locations
    return Image.open(Path(spec.submodule_search_locations[0], "images", f"{name}.jpg"))


def jpeg(image: Image.Image) -> bytes:
    content = io.BytesIO()
    image.save(content, "JPEG", quality=90)
    return content.getvalue()


def images(seed: int = 0) -> dict[str, bytes]:
    """Return JPEG files of crops of different sizes, by path below the folder of the set."""
    random, files = np.random.default_rng(seed), {}
    for name in CLASSES:
        whole = photograph(name)
        for number in range(TRAINED + EVALUATED):
            width, height = random.integers(120, 280, 2).tolist()
            left, upper = random.integers(0, 640 - width), random.integers(0, 427 - height)
            part = whole.crop((left, upper, left + width, upper + height))
            folder = "train" if number < TRAINED else "val"
            files[f"{folder}/{name}/{number:03}.JPEG"] = jpeg(part)
    return files


def write_folders(folder: Path) -> None:
    """Write the set as class folders."""
    for name, content in images().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def write_archives(folder: Path) -> None:
    """Write the set as two WebDataset archives."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "val"):
        with tarfile.open(folder / f"set-{part}-000.tar", "w") as archive:
            for name, content in images().items():
                if not name.startswith(part):
                    continue
                _, label, file = name.split("/")
                key = f"{label}-{file.removesuffix('.JPEG')}"
                add(archive, f"{key}.jpg", content)
                add(archive, f"{key}.cls", str(CLASSES.index(label)).encode())


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


if __name__ == "__main__":
    write_folders(Path(sys.argv[1]))
