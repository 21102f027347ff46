"""Checkpoints in a folder or a bucket: each exists completely or not at all."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Protocol, cast

from xpk_shared.storage import Place

if TYPE_CHECKING:
    from xpk_shared.storage.bucket import Bucket  # heavy, and an extra


class Shelf(Protocol):
    """Checkpoints, named by their step. Only process 0 calls methods that change them."""

    def claim(self, attempt: int) -> str:
        """Remove the remains of aborted saves; return the name of this attempt's saves. Fences earlier attempts."""

    def steps(self) -> list[int]:
        """Return the steps of the committed checkpoints, oldest first."""

    def draft(self, step: int, claim: str) -> str:
        """Return the path or address that all hosts write checkpoint `step` to; every host calls it."""

    def commit(self, step: int, claim: str, notes: dict[str, Any]) -> None:
        """Commit the written checkpoint with `notes`. Raises OSError and commits nothing if it may not."""

    def discard(self, step: int, claim: str) -> None:
        """Remove the written files; errors are ignored."""

    def damage(self, step: int) -> str:
        """Return the defect of a checkpoint, or ""."""

    def notes(self, step: int) -> dict[str, Any]:
        """Return the notes of a complete checkpoint."""

    def content(self, step: int, notes: dict[str, Any]) -> str:
        """Return the path or address to read a checkpoint from; every reading host calls it."""

    def set_aside(self, step: int) -> None:
        """Exclude a damaged checkpoint; the next `keep` removes it."""

    def keep(self, newest: int, committed: int, unread: Collection[int] = ()) -> None:
        """Remove all but the newest checkpoints up to the one just committed, as far as possible.

        Those that are `unread` may be incomplete, so they do not count. Nor do any after `committed`, as the run did
        not resume from them.
        """


def open_shelf(place: Place) -> Shelf:
    """Return the checkpoints of a folder, which is created, or of a bucket, which Orbax can write to from now on."""
    if place.path is None:
        from trainer.checkpoint.shelves.bucket import BucketShelf
        from trainer.checkpoint.shelves.orbax_files import register

        register()
        return BucketShelf(cast("Bucket", place))
    from trainer.checkpoint.shelves.folder import FolderShelf

    place.path.mkdir(parents=True, exist_ok=True)
    return FolderShelf(place.path)
