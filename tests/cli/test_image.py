"""`xpk image`, with a program in place of Docker that records its arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Xpk

DOCKER = """#!/bin/sh
echo "$@" >> "{folder}/asked"
case "$1 $2" in
  "image inspect") grep -qx "$5" "{folder}/images" ;;
  "build --force-rm") for last; do :; done; cp -r "$last" "{folder}/context"; echo "$4" >> "{folder}/images" ;;
  "push r.example/p/denied:1") echo "denied: no permission" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which that program keeps its images."""
    folder = tmp_path / "docker"
    folder.mkdir()
    (folder / "images").touch()
    (folder / "docker").write_text(DOCKER.format(folder=folder))
    (folder / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    for name in ("XPK_TRAINER_IMAGE", "XPK_BASE_IMAGE", "XPK_E2E_PYTHON_IMAGE"):
        monkeypatch.delenv(name, raising=False)
    return folder


def test_a_folder_is_built_once_and_pushed(xpk: Xpk, docker: Path, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)")
    build = ("image", "build", "r.example/p/mine", "--base-docker-image", "python:3.11", "--script-dir", "code")
    name = xpk(*build, "--dry-run").out.strip()
    assert name.startswith("r.example/p/mine:") and not (docker / "asked").exists()
    done = xpk(*build, "--push")
    assert done.code == 0 and done.out.strip() == name and f"pushed {name}" in done.err
    assert (docker / "context" / "code" / "train.py").read_text() == "print(1)"
    assert "COPY code/ /app/" in (docker / "context" / "Dockerfile").read_text()
    assert "--build-arg BASE_IMAGE=python:3.11 " in (docker / "asked").read_text()
    assert "unchanged" in xpk(*build).err and (docker / "asked").read_text().count("build --force-rm") == 1
    (tmp_path / "code" / "train.py").write_text("print(2)")
    assert xpk(*build, "--dry-run").out.strip() != name


def test_the_trainers_image_is_the_one_that_kind_loads(xpk: Xpk, docker: Path) -> None:
    name = xpk("image", "build").out.strip()
    assert name.startswith("xpk-trainer:") and (docker / "context" / "workloads" / "trainer").is_dir()
    assert xpk("image", "build", "r.example/p/t", "--dry-run").out.strip() == name.replace(
        "xpk-trainer", "r.example/p/t"
    )
    tpu = xpk("image", "build", "r.example/p/t:v1", "--tpu", "--platform", "linux/amd64")
    assert tpu.out == "r.example/p/t:v1\n"
    asked = (docker / "asked").read_text()
    assert "buildx build --load --platform linux/amd64 --tag r.example/p/t:v1 --build-arg JAX_EXTRA=tpu" in asked


def test_images_of_two_platforms_have_two_names(xpk: Xpk, docker: Path, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)")
    folder = ("r.example/p/mine", "--base-docker-image", "python:3.11", "--script-dir", "code")
    for build in (("r.example/p/t",), ("r.example/p/t", "--tpu"), folder):
        own, arm = (
            xpk("image", "build", *build, *platform, "--dry-run").out.strip()
            for platform in ((), ("--platform", "linux/arm64"))
        )
        assert arm == f"{own}-linux-arm64"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("build", "Not An Image"), 2, "'Not An Image' is not a valid image name"),
        (("build", "--push"), 2, "has no registry"),
        (("build", "--base-docker-image", "python:3.11"), 2, "requires NAME"),
        (("build", "--script-dir", "."), 2, "--script-dir requires --base-docker-image"),
        (("build", "a", "--base-docker-image", "b", "--script-dir", "nowhere"), 2, "folder 'nowhere' not found"),
        (("push", "team/name"), 2, "has no registry"),
        (("push", "r.example/p/none:1"), 3, "not found in Docker"),
        (("push", "r.example/p/denied:1"), 1, "cannot push image r.example/p/denied:1: denied: no permission"),
    ],
)
def test_failed_builds_and_pushes_are_reported(
    xpk: Xpk, docker: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    (docker / "images").write_text("r.example/p/denied:1\n")
    done = xpk("image", *arguments)
    assert done.code == code and says in done.err and "  hint: " in done.err


def test_a_missing_docker_is_reported(xpk: Xpk, docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (docker / "docker").unlink()
    monkeypatch.setenv("PATH", str(docker))  # and none of this machine's variables
    done = xpk("image", "push", "r.example/p/t:1")
    assert done.code == 7 and "`xpk image` needs `docker`" in done.err
