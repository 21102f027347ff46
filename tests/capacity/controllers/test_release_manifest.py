"""Release manifests are applied only if their checksums match."""

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


def test_content_with_a_wrong_checksum_is_rejected_before_anything_is_applied(file: Path) -> None:
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
def test_invalid_sources_are_rejected(source: str, problem: str) -> None:
    (result,) = install.source_problems(ControllerOptions(kueue_manifest=source))
    assert problem in result
    with pytest.raises(XpkError, match="cannot read the manifest of Kueue"):
        install.read_manifest(KUEUE, source)


def test_a_url_without_a_checksum_is_rejected() -> None:
    (result,) = release_manifest.problems_of("Kueue", "https://mirror/kueue.yaml")
    assert result.endswith("requires its SHA-256: https://mirror/kueue.yaml#sha256=HEX")
    assert not release_manifest.problems_of("Kueue", "https://mirror/kueue.yaml", pinned=SHA256)


def test_a_release_is_pinned_by_the_version_in_its_url() -> None:
    for item in (JOBSET, KUEUE):
        assert f"/v{item.version}/" in item.url and item.url.startswith("https://")
        assert release_manifest.problems_of(item.name, f"{item.url}#sha256={item.sha256}") == []


def test_an_endless_file_is_not_read_completely(file: Path) -> None:
    with pytest.raises(XpkError, match="not a file"):
        release_manifest.read_objects("Kueue", "/dev/zero", hint="")
    with file.open("ab") as huge:
        huge.truncate(64 << 20)
    with pytest.raises(XpkError, match="more than 32 MiB"):
        release_manifest.read_objects("Kueue", str(file), hint="")


def test_the_environment_of_the_drills_uses_the_same_releases() -> None:
    up = (Path(__file__).resolve().parents[3] / "e2e" / "environment" / "up").read_text(encoding="utf-8")
    for item in (JOBSET, KUEUE):
        assert f"{item.name.upper()}=v{item.version}" in up
        assert f"{item.name.upper()}_SHA256={item.sha256}" in up
