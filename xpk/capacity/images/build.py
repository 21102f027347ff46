"""Image builds for hosts: the bundled trainer, or a folder on top of another image. Tags are content digests."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from xpk.capacity.docker import Engine
from xpk.capacity.images.trainer_image import build_context, trainer_image
from xpk.model.errors import NotFoundError, UsageError
from xpk.model.specs import image_problems
from xpk.render.unpack import unpack

_TAG_LENGTH = 12
_DOCKERFILE = "ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nWORKDIR /app\nCOPY code/ /app/\n"
_FORM = "[REGISTRY/]NAME[:TAG]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageBuild:
    """An image to build: its name, the build's arguments, and a folder's archive (None for the trainer).

    `follows_content`: the tag is a digest of the content.
    """

    name: str
    arguments: Mapping[str, str]
    follows_content: bool
    archive: bytes | None = None
    archive_name: str = ""

    @contextmanager
    def context(self) -> Iterator[Path]:
        """Yield the build context."""
        if self.archive is None:
            with build_context() as folder:
                yield folder
            return
        with tempfile.TemporaryDirectory(prefix="xpk-image-") as folder_name:
            folder = Path(folder_name)
            (folder / "Dockerfile").write_text(_DOCKERFILE, encoding="utf-8")
            (folder / "code").mkdir()
            unpack(self.archive, self.archive_name, str(folder / "code"))
            yield folder


def trainer_build(
    name: str | None, *, base: str | None = None, tpu: bool = False, platform: str | None = None
) -> ImageBuild:
    """Return the build of the bundled trainer's image on the image `base`. Raises UsageError for an invalid name."""
    image = trainer_image(base=base)
    arguments = {**image.arguments, **({"JAX_EXTRA": "tpu"} if tpu else {})}
    repository, _, digest = image.name.rpartition(":")
    tagged = _tagged(name or repository, f"{digest}{'-tpu' if tpu else ''}{_suffix(platform)}")
    return ImageBuild(name=tagged, arguments=arguments, follows_content=tagged != name)


def folder_build(name: str, base: str, archive: bytes, content_name: str, *, platform: str | None = None) -> ImageBuild:
    """Return the build of a packed folder on top of an image. Raises UsageError for invalid names."""
    if problems := image_problems([base]):
        raise UsageError(problems[0], hint=f"--base-docker-image {_FORM}")
    digest = hashlib.sha256(f"{base} {content_name}".encode()).hexdigest()[:_TAG_LENGTH]
    tagged = _tagged(name, f"{digest}{_suffix(platform)}")
    return ImageBuild(
        name=tagged,
        arguments={"BASE_IMAGE": base},
        follows_content=tagged != name,
        archive=archive,
        archive_name=content_name,
    )


def check_pushable(name: str) -> None:
    """Raise UsageError unless an image name contains a registry."""
    if problems := image_problems([name]):
        raise UsageError(problems[0], hint=_FORM)
    first, slash, _ = name.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        raise UsageError(
            f"image '{name}' has no registry",
            hint="use REGISTRY/NAME, such as us-docker.pkg.dev/PROJECT/REPO/NAME",
        )


def build(engine: Engine, request: ImageBuild, platform: str | None) -> bool:
    """Build an image unless the engine has it; return whether it was built."""
    if request.follows_content and engine.has_image(request.name):
        return False
    with request.context() as folder:
        engine.build(request.name, folder, request.arguments, platform)
    return True


def push(engine: Engine, name: str) -> None:
    """Push an image. Raises NotFoundError if the engine lacks it."""
    if not engine.has_image(name):
        raise NotFoundError(f"image '{name}' not found in Docker", hint="`xpk image build NAME` builds one")
    engine.push(name)


def _suffix(platform: str | None) -> str:
    """Return a tag's platform suffix, "" for this machine's, so that images of two platforms do not collide."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", f"-{platform}") if platform else ""


def _tagged(name: str, tag: str) -> str:
    """Return a name with its own tag, or with a digest of the content."""
    problems = image_problems([name]) or (
        [f"image '{name}' must not have a digest: the build determines it"] * ("@" in name)
    )
    if problems:
        raise UsageError(problems[0], hint=_FORM)
    return name if ":" in name.rpartition("/")[2] else f"{name}:{tag}"
