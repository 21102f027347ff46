"""The bundled trainer's image: built from a checkout, tagged by what is in it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from xpk.render.resources import workloads_dir

_FILES = ("Dockerfile", ".dockerignore", "constraints.txt", "pyproject.toml")
_TAG_LENGTH = 12


@dataclass(frozen=True, slots=True)
class TrainerImage:
    """An image's name and, if it is for us to build, the folder of its Dockerfile and the build's arguments."""

    name: str
    folder: Path | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)


def trainer_image(environ: Mapping[str, str], root: Path | None = None) -> TrainerImage | None:
    """Return the image that XPK_TRAINER_IMAGE names, else the one that a checkout makes, None without either.

    XPK_BASE_IMAGE (in our end-to-end environment XPK_E2E_PYTHON_IMAGE) is what it is built on.
    """
    if given := environ.get("XPK_TRAINER_IMAGE"):
        return TrainerImage(given)
    root = root or workloads_dir().parent
    if not (root / "Dockerfile").is_file():
        return None  # installed from a wheel
    base = environ.get("XPK_BASE_IMAGE") or environ.get("XPK_E2E_PYTHON_IMAGE")
    arguments = {"BASE_IMAGE": base} if base else {}
    return TrainerImage(f"xpk-trainer:{_digest(root, arguments)}", root, arguments)


def _digest(root: Path, arguments: Mapping[str, str]) -> str:
    """Return a tag for all that goes into the image: equal files give equal images."""
    digest = hashlib.sha256(repr(sorted(arguments.items())).encode())
    trainer = root / "workloads" / "trainer"
    modules = (file for file in trainer.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    for file in [*(root / name for name in _FILES), *sorted(modules)]:
        if file.is_file():
            digest.update(f"{file.relative_to(root)}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:_TAG_LENGTH]
