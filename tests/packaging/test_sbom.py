"""SBOMs of the wheel and the trainer's image: exactly the locked packages, in valid CycloneDX."""

from __future__ import annotations

import functools
import json
import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tools.release.lock import read_lock
from tools.release.sbom import image_sbom, validate_sbom, wheel_sbom
from tools.release.source import Source
from xpk.model.errors import XpkError

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "requirements"
SOURCE = Source(ROOT, "0" * 40, 1769860800, "7.1.0")
DIGEST = "a" * 64


def python_packages(bom: dict[str, Any]) -> dict[tuple[str, str], tuple[str, tuple[str, ...]]]:
    """Return scope and hashes of each Python package by name and version."""
    libraries = [each for each in bom["components"] if each["type"] == "library"]
    return {
        (each["name"], each["version"]): (
            each["scope"],
            tuple(digest["content"] for digest in each["externalReferences"][0]["hashes"]),
        )
        for each in libraries
    }


def expected(required: str, others: str) -> dict[tuple[str, str], tuple[str, tuple[str, ...]]]:
    """Return the packages of two lock files as `python_packages` does."""
    names = {package.name for package in read_lock(LOCKS / required)}
    return {
        (package.name, package.version): (
            "required" if package.name in names else "optional",
            tuple(sorted(package.sha256)),
        )
        for package in (*read_lock(LOCKS / required), *read_lock(LOCKS / others))
    }


@functools.cache
def wheel_text(wheel: bytes = b"wheel") -> str:
    return wheel_sbom(SOURCE, wheel)


@functools.cache
def image_text() -> str:
    return image_sbom(SOURCE)


def dependencies(bom: dict[str, Any], reference: str) -> set[str]:
    """Return the names of the packages that a component requires."""
    (entry,) = (each for each in bom["dependencies"] if each["ref"] == reference)
    return {re.sub(r"^pkg:\w+/([^@]+)@.*", r"\1", each) for each in entry.get("dependsOn", [])}


@pytest.mark.slow
def test_the_wheels_sbom_has_exactly_the_locked_packages() -> None:
    bom = json.loads(wheel_text())
    assert python_packages(bom) == expected("base.txt", "extras.txt")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = (lines for name, lines in project["optional-dependencies"].items() if name != "dev")
    direct = {Requirement(line).name for lines in (project["dependencies"], *extras) for line in lines}
    assert dependencies(bom, "pkg:pypi/xpk-multislice@7.1.0") == direct


def test_the_images_sbom_has_exactly_the_locked_packages_and_its_base_image() -> None:
    bom = json.loads(image_text())
    assert python_packages(bom) == expected("image.txt", "tpu.txt")
    (base,) = (each for each in bom["components"] if each["type"] == "container")
    (digest,) = (each["content"] for each in base["hashes"])
    assert f"@sha256:{digest}\n" in (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert dependencies(bom, "xpk-trainer@7.1.0") == {"python", "xpk-multislice"}


@pytest.mark.parametrize("text", [wheel_text, image_text])
def test_every_component_is_a_dependency_of_another_one(text: Callable[[], str]) -> None:
    bom = json.loads(text())
    reached = {reference for each in bom["dependencies"] for reference in each.get("dependsOn", [])}
    assert reached == {each["bom-ref"] for each in bom["components"]}


@pytest.mark.slow
def test_an_sbom_is_the_same_for_the_same_commit_and_another_for_another_wheel() -> None:
    one, other = json.loads(wheel_text()), json.loads(wheel_text(b"another"))
    assert wheel_sbom(SOURCE, b"wheel") == wheel_text() and one["serialNumber"] != other["serialNumber"]
    assert one["metadata"]["timestamp"] == "2026-01-31T12:00:00+00:00"


def test_an_sbom_that_breaks_the_schema_is_refused() -> None:
    bom = json.loads(image_text())
    bom["components"][0]["type"] = "program"
    with pytest.raises(XpkError, match="the SBOM does not follow the schema"):
        validate_sbom(json.dumps(bom))


@pytest.mark.parametrize("line", ["ARG BASE_IMAGE=python:3.11-slim", "FROM python", f"ARG BASE_IMAGE=@sha256:{DIGEST}"])
def test_a_base_image_without_a_digest_is_refused(tmp_path: Path, line: str) -> None:
    shutil.copytree(LOCKS, tmp_path / "requirements")
    (tmp_path / "Dockerfile").write_text(f"{line}\n", encoding="utf-8")
    with pytest.raises(XpkError, match="the Dockerfile's BASE_IMAGE has no digest"):
        image_sbom(Source(tmp_path, "0" * 40, 0, "7.1.0"))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (f"click>=8 --hash=sha256:{DIGEST}", "'click>=8': it has no exact version"),
        (f"click==8,<9 --hash=sha256:{DIGEST}", "it has no exact version"),
        (f"click --hash=sha256:{DIGEST}", "'click': it has no exact version"),
        ("click==8.5.1", "'click==8.5.1': it has no SHA-256"),
        (f"click==8.5.1 --hash=md5:{'a' * 32}", "it has no SHA-256"),
        (f"--index-url=x --hash=sha256:{DIGEST}", "it is not a requirement"),
    ],
)
def test_a_requirement_that_is_not_locked_is_refused(tmp_path: Path, line: str, problem: str) -> None:
    file = tmp_path / "base.txt"
    file.write_text(f"jinja2==3.1.6 \\\n    --hash=sha256:{DIGEST}\n    # via x\n{line}\n", encoding="utf-8")
    with pytest.raises(XpkError, match=r"invalid line in base\.txt: ") as raised:
        read_lock(file)
    assert problem in raised.value.message


def test_a_lock_file_names_what_requires_a_package(tmp_path: Path) -> None:
    file = tmp_path / "extras.txt"
    file.write_text(
        f"Click==8.5.1 ; sys_platform == 'linux' \\\n    --hash=sha256:{DIGEST} \\\n    --hash=sha256:{'b' * 64}\n"
        "    # via\n    #   -c constraints.txt\n    #   xpk-multislice (pyproject.toml)\n    #   Ray\n",
        encoding="utf-8",
    )
    (package,) = read_lock(file)
    assert (package.name, package.version, package.marker) == ("click", "8.5.1", 'sys_platform == "linux"')
    assert package.sha256 == (DIGEST, "b" * 64) and package.required_by == {"xpk-multislice", "ray"}
