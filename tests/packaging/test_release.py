"""A release: the same bytes from each build, and refusals before anything is built."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tests.packaging.sources import commit_release, copy_repository, git, small_repository
from tools.release.__main__ import main, write_release
from tools.release.packages import compare_builds
from tools.release.provenance import provenance
from tools.release.source import find_source
from xpk.model.errors import XpkError

NAMES = {
    "xpk_multislice-7.1.0-py3-none-any.whl",
    "xpk_multislice-7.1.0.tar.gz",
    "xpk_multislice-7.1.0.cdx.json",
    "xpk_trainer_image-7.1.0.cdx.json",
    "xpk_multislice-7.1.0.provenance.json",
}


@pytest.mark.slow
def test_two_releases_of_a_commit_have_the_same_bytes(tmp_path: Path) -> None:
    repository = copy_repository(tmp_path / "repository")
    git(tmp_path, "clone", "--quiet", str(repository), "another-path")
    write_release(repository, tmp_path / "one", "v7.1.0")
    write_release(tmp_path / "another-path", tmp_path / "two")
    one, two = ({file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("one", "two"))
    assert one.keys() == NAMES | {"SHA256SUMS"} and one == two
    lines = one.pop("SHA256SUMS").decode().splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert sums == {name: hashlib.sha256(content).hexdigest() for name, content in one.items()}
    (digest,) = json.loads(one["xpk_multislice-7.1.0.cdx.json"])["metadata"]["component"]["hashes"]
    assert digest["content"] == sums["xpk_multislice-7.1.0-py3-none-any.whl"]
    subjects = json.loads(one["xpk_multislice-7.1.0.provenance.json"])["subject"]
    del sums["xpk_multislice-7.1.0.provenance.json"]
    assert {subject["name"]: subject["digest"]["sha256"] for subject in subjects} == sums


def test_the_provenance_names_the_commit_the_files_and_what_built_them(tmp_path: Path) -> None:
    source = find_source(copy_repository(tmp_path))
    statement = json.loads(provenance(source, {"a.whl": b"1", "b.tar.gz": b"2"}))
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert [subject["name"] for subject in statement["subject"]] == ["a.whl", "b.tar.gz"]
    assert statement["subject"][0]["digest"] == {"sha256": hashlib.sha256(b"1").hexdigest()}
    code, lock = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert code["digest"] == {"gitCommit": source.commit}
    assert lock["digest"]["sha256"] == hashlib.sha256((tmp_path / lock["name"]).read_bytes()).hexdigest()
    assert "hatchling" in statement["predicate"]["runDetails"]["builder"]["version"]


def test_a_commit_with_its_version_in_the_changelog_is_released(tmp_path: Path) -> None:
    source = find_source(small_repository(tmp_path), "v7.1.0")
    assert source.version == "7.1.0" and len(source.commit) == 40


@pytest.mark.parametrize(("file", "text"), [("new.py", ""), ("CHANGELOG.md", "# Changelog\n"), ("a b\n.py", "")])
def test_a_changed_working_tree_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, text: str
) -> None:
    repository = small_repository(tmp_path / "repository")
    (repository / file).write_text(text, encoding="utf-8")
    assert main(["--repository", str(repository), "--output", str(tmp_path / "dist")]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: the working tree differs from the checked-out commit: ")
    assert hint.startswith("  hint: commit the changes")
    assert not (tmp_path / "dist").exists()


def test_a_version_without_a_section_in_the_changelog_is_refused(tmp_path: Path) -> None:
    repository = small_repository(tmp_path)
    (repository / "xpk" / "version.py").write_text('__version__ = "7.2.0"\n', encoding="utf-8")
    git(repository, "commit", "--quiet", "--all", "--message", "Set the version")
    with pytest.raises(XpkError, match=r"^CHANGELOG.md has no section for version 7.2.0$") as raised:
        find_source(repository)
    assert "'7.2.0 - YYYY-MM-DD'" in raised.value.hint


@pytest.mark.parametrize("line", ['__version__ = "7.1"', '__version__ = version("xpk")', ""])
def test_an_invalid_version_is_refused(tmp_path: Path, line: str) -> None:
    repository = small_repository(tmp_path)
    (repository / "xpk" / "version.py").write_text(line, encoding="utf-8")
    git(repository, "commit", "--quiet", "--all", "--message", "Break the version")
    with pytest.raises(XpkError, match=r"xpk/version\.py has no valid version"):
        find_source(repository)


@pytest.mark.parametrize("tag", ["v7.2.0", "7.1.0", "v7.1.0-rc1", "$(touch x)"])
def test_a_tag_of_another_version_is_refused(tmp_path: Path, tag: str) -> None:
    with pytest.raises(XpkError, match=r"is not of version 7\.1\.0"):
        find_source(small_repository(tmp_path), tag)


def test_a_folder_outside_a_repository_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", str(commit_release_elsewhere(tmp_path)))
    with pytest.raises(XpkError, match=r"^git status failed: .*not a git repository"):
        find_source(tmp_path)


def commit_release_elsewhere(folder: Path) -> Path:
    """Return the .git of a releasable repository: as in a hook, GIT_DIR must not lead there."""
    other = folder / "other"
    (other / "xpk").mkdir(parents=True)
    (other / "CHANGELOG.md").write_text("## Unreleased\n", encoding="utf-8")
    return commit_release(other) / ".git"


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        ({"a.whl": b"1", "a.tar.gz": b"3"}, "two builds of a.tar.gz differ: sha256 "),
        ({"a.whl": b"1"}, "two builds of the commit have different files: a.tar.gz"),
    ],
)
def test_builds_that_differ_are_refused(second: dict[str, bytes], problem: str) -> None:
    with pytest.raises(XpkError, match=problem):
        compare_builds({"a.whl": b"1", "a.tar.gz": b"2"}, second)


def test_a_build_that_depends_on_its_path_is_refused(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    (repository / "xpk").mkdir(parents=True)
    (repository / "CHANGELOG.md").write_text("## Unreleased\n", encoding="utf-8")
    (repository / "README.md").write_text("", encoding="utf-8")
    (repository / "pyproject.toml").write_text(BUILD_WITH_PATH, encoding="utf-8")
    (repository / "hatch_build.py").write_text(HOOK_WITH_PATH, encoding="utf-8")
    commit_release(repository)
    with pytest.raises(XpkError, match=r"two builds of xpk_multislice-7.1.0\S* differ"):
        write_release(repository, tmp_path / "dist")
    assert not (tmp_path / "dist").exists()


def test_a_failed_build_is_reported_in_one_line(tmp_path: Path) -> None:
    repository = small_repository(tmp_path / "repository")
    with pytest.raises(XpkError, match=r"^hatchling failed: .+$") as raised:
        write_release(repository, tmp_path / "dist")
    assert "\n" not in raised.value.message


BUILD_WITH_PATH = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "xpk-multislice"
version = "7.1.0"
[tool.hatch.build.targets.wheel]
packages = ["xpk"]
[tool.hatch.build.hooks.custom]
"""
HOOK_WITH_PATH = """
from pathlib import Path
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

class Hook(BuildHookInterface):
    def initialize(self, version, build_data):
        file = Path(self.root, "xpk", "path.py")
        file.write_text(f"PATH = {self.root!r}")
        build_data["artifacts"].append("xpk/path.py")
"""
