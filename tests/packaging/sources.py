"""A repository with the files that a release is built from, and a commit that may be released."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("xpk", "manifests", "docs", "workloads", "requirements")
FILES = ("pyproject.toml", "Dockerfile", "README.md", "LICENSE", "CHANGELOG.md", ".gitignore")


def git(repository: Path, *arguments: str) -> None:
    """Run git in a repository, without the user's configuration."""
    environment = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    identity = ("-c", "user.name=Release", "-c", "user.email=release@example.com")
    subprocess.run(["git", *identity, *arguments], cwd=repository, env=environment, check=True, capture_output=True)


def copy_repository(folder: Path) -> Path:
    """Return a new repository with this one's sources, in which CHANGELOG.md has a section for version 7.1.0."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    return commit_release(folder)


def small_repository(folder: Path) -> Path:
    """Return a new repository with only the files that are checked before a build."""
    (folder / "xpk").mkdir(parents=True)
    shutil.copy(ROOT / "CHANGELOG.md", folder)
    return commit_release(folder)


def commit_release(folder: Path) -> Path:
    """Make a folder a repository whose only commit has version 7.1.0."""
    (folder / "xpk" / "version.py").write_text('"""Version."""\n\n__version__ = "7.1.0"\n', encoding="utf-8")
    changes = folder / "CHANGELOG.md"
    text = changes.read_text(encoding="utf-8")
    changes.write_text(text.replace("## Unreleased\n", "## Unreleased\n\n## 7.1.0 - 2026-01-31\n"), encoding="utf-8")
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "Release 7.1.0", "--date", "2026-01-31T12:00:00Z")
    return folder
