"""Locked requirements of `make install` and the trainer's image: every package, each file with its SHA-256."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.release.lock import LockedPackage, read_lock

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IMAGE = ("trainer", "tokenizer", "images", "translation", "gcs", "ray")


def locked(name: str) -> dict[str, LockedPackage]:
    """Return the packages of a list by their names."""
    return {package.name: package for package in read_lock(ROOT / "requirements" / name)}


@pytest.mark.parametrize(
    ("name", "extras"),
    [
        ("development.txt", [item for item in PROJECT["optional-dependencies"] if item != "tpu"]),
        ("extras.txt", [item for item in PROJECT["optional-dependencies"] if item != "dev"]),
        ("base.txt", []),
        ("image.txt", IMAGE),
    ],
)
def test_lock_files_have_all_dependencies(name: str, extras: list[str]) -> None:
    """Otherwise pip stops in the middle of `make install`, or of the image's build."""
    have = locked(name)
    asked = [*PROJECT["dependencies"], *(line for item in extras for line in PROJECT["optional-dependencies"][item])]
    for requirement in map(Requirement, asked):
        package = have[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(package.version), f"{requirement}: run `make lock`"


@pytest.mark.parametrize(
    "name",
    [file.name for file in sorted((ROOT / "requirements").iterdir()) if file.name != "newest.txt"],
)
def test_versions_are_those_that_are_tested_together_and_every_file_has_a_hash(name: str) -> None:
    pins = [line for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if "==" in line]
    tested = {str(canonicalize_name(name)): version for name, _, version in (line.partition("==") for line in pins)}
    for package in locked(name).values():  # each has a hash, otherwise it is refused
        assert tested.get(package.name, package.version) == package.version, f"{package.name}: run `make lock`"


@pytest.mark.parametrize("name", ["base.txt", "image.txt", "tpu.txt"])
def test_packages_of_users_are_the_same_in_all_lists(name: str) -> None:
    everything = locked("extras.txt")
    for package in locked(name).values():
        assert everything[package.name].version == package.version, f"{package.name}: run `make lock`"
        assert everything[package.name].sha256 == package.sha256, f"{package.name}: run `make lock`"


def test_lock_files_do_not_name_an_index() -> None:
    for file in (ROOT / "requirements").iterdir():
        assert not re.search(r"https?://|--(extra-)?index-url|--find-links", file.read_text(encoding="utf-8")), file


def test_the_trainers_image_is_built_of_nothing_that_can_change() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert re.findall(r"^FROM (.*)$", text, re.MULTILINE) == ["${BASE_IMAGE}"]
    assert re.search(r"^ARG BASE_IMAGE=\S+@sha256:[0-9a-f]{64}$", text, re.MULTILINE)
    installs = re.findall(r"pip install.*", text)
    assert len(installs) == 2 and all("--require-hashes --only-binary :all:" in each for each in installs)
