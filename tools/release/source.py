"""The commit of a release, and the checks before anything is built from it."""

from __future__ import annotations

import io
import os
import re
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from xpk.model.errors import XpkError

_VERSION = re.compile(r'^__version__ = "(\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?)"$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Source:
    """A commit, and the version that it has."""

    repository: Path
    commit: str
    seconds: int  # its date, since 1970
    version: str

    def extract(self, folder: Path) -> None:
        """Write the files of the commit to a folder."""
        archive = _git(self.repository, "archive", "--format=tar", self.commit)
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(folder, filter="data")


def find_source(repository: Path, tag: str = "") -> Source:
    """Return the checked-out commit.

    Raises XpkError if it is not the content of the working tree, if its version is not in CHANGELOG.md, or if `tag` is
    not that of its version.
    """
    changed = _git(repository, "status", "--porcelain").decode(errors="replace").splitlines()
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise XpkError(
            f"the working tree differs from the checked-out commit: {changed[0][3:]}{more}",
            hint="commit the changes, or `git stash --include-untracked`",
        )
    commit, seconds = _git(repository, "show", "--no-patch", "--format=%H %ct", "HEAD").decode().split()
    version = _version(repository)
    _check_changelog(repository, version)
    if tag and tag != f"v{version}":
        raise XpkError(
            f"tag '{tag}' is not of version {version}", hint=f"git tag --sign v{version}, or change xpk/version.py"
        )
    return Source(repository, commit, int(seconds), version)


def _version(repository: Path) -> str:
    match = _VERSION.search((repository / "xpk" / "version.py").read_text(encoding="utf-8"))
    if not match:
        raise XpkError("xpk/version.py has no valid version", hint='write __version__ = "MAJOR.MINOR.PATCH"')
    return match[1]


def _check_changelog(repository: Path, version: str) -> None:
    text = (repository / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## {re.escape(version)} - \d{{4}}-\d{{2}}-\d{{2}}$", text, re.MULTILINE):
        raise XpkError(
            f"CHANGELOG.md has no section for version {version}",
            hint=f"rename its section 'Unreleased' to '{version} - YYYY-MM-DD', or change xpk/version.py",
        )


def _git(repository: Path, *arguments: str) -> bytes:
    """Return the output of git. Raises XpkError with its last line if it fails."""
    # A hook calls `make` with GIT_DIR of another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(["git", *arguments], cwd=repository, env=environment, capture_output=True, check=False)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise XpkError(f"git {arguments[0]} failed: {lines[-1]}", hint="run it in a checkout of the repository")
    return done.stdout
