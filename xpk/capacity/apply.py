"""Server-side apply of several objects."""

from __future__ import annotations

from xpk.api.base import ObjectApi, Objs


def apply_all(api: ObjectApi, objects: Objs, *, force: bool = False) -> None:
    """Apply objects in order; `force` takes over fields that another manager owns."""
    for obj in objects:
        api.apply(obj, force=force)
