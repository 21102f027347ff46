"""Manifests are what they are said to be, or they are not applied."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from xpk.capacity.controllers import install, release_manifest
from xpk.capacity.controllers.install import JOBSET, KUEUE
from xpk.capacity.options import ControllerOptions
from xpk.model.errors import XpkError

TEXT = b"kind: A\n---\nkind: B\n"
SHA256 = hashlib.sha256(TEXT).hexdigest()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "kueue.yaml"
    file.write_bytes(TEXT)
    return file


def test_a_file_with_its_checksum_is_read(file: Path) -> None:
    for source in (str(file), f"{file}#sha256={SHA256}", f"{file}#sha256={SHA256.upper()}"):
        assert [obj["kind"] for obj in install.read_manifest(KUEUE, source)] == ["A", "B"]


def test_other_content_is_refused_before_anything_is_applied(file: Path) -> None:
    file.write_bytes(TEXT + b"---\nkind: ClusterRoleBinding\n")
    with pytest.raises(XpkError, match=f"SHA-256 is [0-9a-f]{{64}}, must be {SHA256}") as caught:
        install.read_manifest(KUEUE, f"{file}#sha256={SHA256}")
    received = hashlib.sha256(file.read_bytes()).hexdigest()
    assert "compare it with the release's" in caught.value.hint and received not in caught.value.hint
    assert "--kueue-manifest" in caught.value.hint


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("http://mirror/kueue.yaml", "must be a file or an https URL"),
        (f"http://mirror/kueue.yaml#sha256={SHA256}", "must be a file or an https URL"),
        ("ftp://mirror/kueue.yaml", "must be a file or an https URL"),
        ("https://mirror/kueue.yaml#sha256=abc", "invalid SHA-256 'abc'"),
        ("/nowhere", "/nowhere, is not a file"),
    ],
)
def test_sources_that_are_refused(source: str, problem: str) -> None:
    (found,) = install.source_problems(ControllerOptions(kueue_manifest=source))
    assert problem in found
    with pytest.raises(XpkError, match="cannot read the manifest of Kueue"):
        install.read_manifest(KUEUE, source)


def test_a_url_without_any_checksum_is_refused() -> None:
    (found,) = release_manifest.problems_of("Kueue", "https://mirror/kueue.yaml")
    assert found.endswith("requires its SHA-256: https://mirror/kueue.yaml#sha256=HEX")
    assert not release_manifest.problems_of("Kueue", "https://mirror/kueue.yaml", pinned=SHA256)


def test_a_release_is_pinned_for_the_version_that_its_url_names() -> None:
    for each in (JOBSET, KUEUE):
        assert f"/v{each.version}/" in each.url and each.url.startswith("https://")
        assert release_manifest.problems_of(each.name, f"{each.url}#sha256={each.sha256}") == []


def test_a_file_without_end_is_not_read_whole(file: Path) -> None:
    with pytest.raises(XpkError, match="not a file"):
        release_manifest.read_objects("Kueue", "/dev/zero", hint="")
    with file.open("ab") as huge:
        huge.truncate(64 << 20)
    with pytest.raises(XpkError, match="more than 32 MiB"):
        release_manifest.read_objects("Kueue", str(file), hint="")


def test_the_environment_of_the_drills_has_the_same_releases() -> None:
    up = (Path(__file__).resolve().parents[3] / "e2e" / "environment" / "up").read_text(encoding="utf-8")
    for each in (JOBSET, KUEUE):
        assert f"{each.name.upper()}=v{each.version}" in up
        assert f"{each.name.upper()}_SHA256={each.sha256}" in up
