"""Paths of the data files of the package, in a wheel or in a checkout."""

from __future__ import annotations

from pathlib import Path

import xpk_shared

_PACKAGE = Path(__file__).resolve().parent.parent


def manifests_dir() -> Path:
    """Return the folder of the jinja2 templates."""
    return _first(_PACKAGE / "_manifests", _PACKAGE.parent / "manifests")


def workloads_dir() -> Path:
    """Return the folder that holds the packages `trainer` and `xpk_ray`."""
    return _first(_PACKAGE / "_workloads", _PACKAGE.parent / "workloads")


def shared_dir() -> Path:
    """Return the folder of the package `xpk_shared`, which hosts need too."""
    return Path(xpk_shared.__file__).parent


def recipe_dir() -> Path:
    """Return the folder of the Dockerfile and of the files that pin the image's versions."""
    return _first(_PACKAGE / "_image", _PACKAGE.parent)


def docs_dir() -> Path:
    """Return the folder of the documentation."""
    return _first(_PACKAGE / "_docs", _PACKAGE.parent / "docs")


def _first(*folders: Path) -> Path:
    return next((folder for folder in folders if folder.is_dir()), folders[-1])
