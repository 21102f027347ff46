"""The bundled trainer's image: built from a checkout or an installed wheel, tagged by its content."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from xpk.render.resources import recipe_dir, shared_dir, workloads_dir

_RECIPE = ("Dockerfile", "requirements/image.txt", "requirements/tpu.txt")
_TAG_LENGTH = 12


@dataclass(frozen=True, slots=True)
class TrainerImage:
    """An image's name, whether xpk builds it, and the build's arguments."""

    name: str
    ours: bool = False
    arguments: Mapping[str, str] = field(default_factory=dict)


def trainer_image(name: str | None = None, *, base: str | None = None) -> TrainerImage:
    """Return the image `name`, else the one that xpk builds, on the image `base`."""
    if name:
        return TrainerImage(name)
    arguments = {"BASE_IMAGE": base} if base else {}
    return TrainerImage(f"xpk-trainer:{_digest(arguments)}", True, arguments)


@contextmanager
def build_context() -> Iterator[Path]:
    """Yield a folder with everything that the image contains, and nothing else."""
    with tempfile.TemporaryDirectory(prefix="xpk-image-") as folder:
        Path(folder, "requirements").mkdir()
        for name in _RECIPE:
            shutil.copy(recipe_dir() / name, Path(folder, name))
        for package in (workloads_dir() / "trainer", workloads_dir() / "xpk_ray", shared_dir()):
            copy = Path(folder, "workloads", package.name)
            shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
        yield Path(folder)


def _digest(arguments: Mapping[str, str]) -> str:
    """Return a tag that is a digest of the image's content: equal files give equal images."""
    digest = hashlib.sha256(repr(sorted(arguments.items())).encode())
    with build_context() as folder:
        for file in sorted(file for file in folder.rglob("*") if file.is_file()):
            digest.update(f"{file.relative_to(folder)}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:_TAG_LENGTH]
