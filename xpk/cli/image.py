"""`xpk image`: images for the hosts of workloads."""

from __future__ import annotations

from pathlib import Path

import click

from xpk.capacity.docker import Engine
from xpk.capacity.images import build as image_build
from xpk.capacity.kind.options import KindOptions
from xpk.cli.cluster.provider_options import provider_options
from xpk.cli.terminal.help import CommandGroup
from xpk.cli.terminal.output import Console
from xpk.jobs.code import archive
from xpk.model.errors import UsageError
from xpk.proc import LocalRunner


@click.group(cls=CommandGroup)
def image() -> None:
    """Build and push images for the hosts of workloads."""


@image.command()
@click.argument("name", required=False)
@click.option(
    "--base-docker-image", metavar="IMAGE", help="Build on this image from a folder, instead of the trainer's image."
)
@click.option(
    "--script-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder to copy into /app of --base-docker-image. [default: the current folder]",
)
@provider_options("image", KindOptions)
@click.option("--tpu", is_flag=True, help="Install JAX for TPUs in the trainer's image.")
@click.option("--platform", metavar="PLATFORM", help="Build for another platform with buildx, such as linux/arm64.")
@click.option("--push", is_flag=True, help="Push the image to its registry.")
@click.option("--dry-run", is_flag=True, help="Print the image's name without building it.")
@click.pass_obj
def build(
    console: Console,
    name: str | None,
    base_docker_image: str | None,
    script_dir: Path | None,
    base_image: str | None,
    tpu: bool,
    platform: str | None,
    push: bool,
    dry_run: bool,
) -> None:
    """Build an image of the bundled trainer, or of a folder on top of another image, and print its name.

    Unless NAME has a tag, the tag is derived from the content and --platform. An image that Docker already has is not
    rebuilt.

    \b
      xpk image build us-docker.pkg.dev/PROJECT/REPO/xpk-trainer --tpu --push
      xpk image build us-docker.pkg.dev/PROJECT/REPO/mine --base-docker-image python:3.11 --script-dir . --push
    """
    if base_docker_image is None and script_dir is not None:
        raise UsageError("--script-dir requires --base-docker-image", hint="--base-docker-image python:3.11-slim")
    if base_docker_image is None:
        request = image_build.trainer_build(name, base=base_image, tpu=tpu, platform=platform)
    elif tpu or name is None:
        raise UsageError(
            "--tpu and --base-docker-image exclude each other" if tpu else "--base-docker-image requires NAME",
            hint="xpk image build NAME --base-docker-image IMAGE",
        )
    else:
        packed = archive.pack(script_dir or Path())
        request = image_build.folder_build(name, base_docker_image, packed.content, packed.name, platform=platform)
    if push:
        image_build.check_pushable(request.name)
    if not dry_run:
        engine = _engine()
        console.tell(f" • building {request.name}")
        if not image_build.build(engine, request, platform):
            console.tell(" • unchanged: Docker already has it")
        if push:
            _push(console, engine, request.name)
    click.echo(request.name)


@image.command()
@click.argument("name")
@click.pass_obj
def push(console: Console, name: str) -> None:
    """Push a local image to the registry in its name."""
    image_build.check_pushable(name)
    _push(console, _engine(), name)


def _engine() -> Engine:
    engine = Engine(LocalRunner(), user="`xpk image`")
    engine.check_docker()
    return engine


def _push(console: Console, engine: Engine, name: str) -> None:
    console.tell(f" • pushing {name}")
    image_build.push(engine, name)
    console.done(f"pushed {name}")
