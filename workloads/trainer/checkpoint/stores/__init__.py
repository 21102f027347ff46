"""Stores of checkpoints in a folder or a bucket: each checkpoint exists completely or not at all."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Protocol, cast

from xpk_shared.storage import Place

if TYPE_CHECKING:
    from xpk_shared.storage.bucket import Bucket  # heavy, and an extra


class CheckpointStore(Protocol):
    """Store of checkpoints, named by their step. Only process 0 calls methods that change them."""

    def begin_attempt(self, attempt: int) -> str:
        """Remove the remains of aborted saves; return the name of this attempt's saves. Fences earlier attempts."""

    def steps(self) -> list[int]:
        """Return the steps of the committed checkpoints, oldest first."""

    def staging_path(self, step: int, attempt_id: str) -> str:
        """Return the path or address that all hosts write checkpoint `step` to; every host calls it."""

    def commit(self, step: int, attempt_id: str, notes: dict[str, Any]) -> None:
        """Commit the written checkpoint with `notes`. Raises OSError if a newer attempt has begun."""

    def abort(self, step: int, attempt_id: str) -> None:
        """Remove the written files; errors are ignored."""

    def damage(self, step: int) -> str:
        """Return the defect of a checkpoint, or ""."""

    def notes(self, step: int) -> dict[str, Any]:
        """Return the notes of a complete checkpoint."""

    def content(self, step: int, notes: dict[str, Any]) -> str:
        """Return the path or address to read a checkpoint from; every reading host calls it."""

    def quarantine(self, step: int) -> None:
        """Exclude a damaged checkpoint; the next `remove_old` removes it."""

    def remove_old(self, newest: int, committed: int, unread: Collection[int] = ()) -> None:
        """Remove all but the newest checkpoints up to the one just committed, as far as possible.

        Checkpoints in `unread` may be incomplete, so they do not count. Neither do those after `committed`, because the
        run did not resume from them.
        """


def open_store(place: Place) -> CheckpointStore:
    """Return the store in a folder, which is created, or in a bucket, which is registered with Orbax."""
    if place.path is None:
        from trainer.checkpoint.stores.bucket import BucketStore
        from trainer.checkpoint.stores.orbax_files import register

        register()
        return BucketStore(cast("Bucket", place))
    from trainer.checkpoint.stores.folder import FolderStore

    place.path.mkdir(parents=True, exist_ok=True)
    return FolderStore(place.path)
