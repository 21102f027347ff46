"""A checkpoint of a ResNet from which the trunk of another model starts: found and checked. Imports no JAX.

Only the stem and the stages are read, with batch norm's averages; the other model may have fewer stages.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from trainer.checkpoint.stores import CheckpointStore, manifest
from trainer.checkpoint.stores.folder import FolderStore
from trainer.errors import FatalError, Problem, reason
from trainer.storage import open_place
from xpk_shared.storage import Place, in_bucket
from xpk_shared.storage.errors import Unreachable

if TYPE_CHECKING:
    from xpk_shared.storage.bucket import Bucket  # heavy, and an extra

PARTS = ("stem", "stages")  # of a ResNet's parameters and averages
SETTING = "checkpoint.trunk_path"
_HINT = "Use the output folder of a run of resnet, or one of its checkpoints, such as OUT/checkpoints/100"
_SHOWN = 2  # arrays that do not fit, in the message
Shapes = Mapping[str, tuple[int, ...]]  # by name, such as params/stem/kernel


class TrunkCheckpoint(NamedTuple):
    """A complete checkpoint of a ResNet."""

    place: Place  # folder of the run's checkpoints
    step: int
    notes: dict[str, Any]

    @property
    def name(self) -> str:
        """Path or address of the checkpoint."""
        return str(self.place / str(self.step))


def find_checkpoint(path: str) -> TrunkCheckpoint:
    """Return the checkpoint that `path` names: itself, or the newest complete one of a run's output folder.

    Raises FatalError if there is none, or if it is not of a ResNet, and Unreachable, as a retry may succeed.
    """
    try:
        checkpoint = _find(path)
    except Unreachable:
        raise
    except OSError as error:
        raise FatalError(_unreadable(path, error)) from error
    family = checkpoint.notes.get("model", {}).get("family", "decoder")
    if family != "resnet":
        raise FatalError(Problem(f"{SETTING}={path!r} is of {family}, not of resnet", _HINT))
    return checkpoint


def check(path: str) -> list[Problem]:
    """Return the problem of `checkpoint.trunk_path`; a folder is not read, because it may exist on the hosts only."""
    try:
        open_place(path)
        if in_bucket(path):
            find_checkpoint(path)
    except FatalError as error:
        return list(error.problems)
    except OSError as error:
        return [_unreadable(path, error)]
    return []


def _unreadable(path: str, error: OSError) -> Problem:
    return Problem(f"{SETTING}={path!r} cannot be read: {reason(error)}", _HINT)


def _find(path: str) -> TrunkCheckpoint:
    folder, _, name = path.rstrip("/").rpartition("/")
    step = manifest.read_step(name)
    if step is not None and (open_place(path) / manifest.MANIFEST).is_file():
        place = open_place(folder or ("/" if path.startswith("/") else "."))
        store = _store(place)
        if damage := store.damage(step):
            raise FatalError(Problem(f"{SETTING}={path!r} is damaged: {damage}", "Use another checkpoint"))
        return TrunkCheckpoint(place, step, store.notes(step))
    place = open_place(path) / "checkpoints"
    if not place.is_folder():
        raise FatalError(Problem(f"{SETTING}={path!r} has no checkpoint", _HINT))
    store = _store(place)
    newest = _newest(store)
    if newest is None:
        raise FatalError(Problem(f"{SETTING}={path!r} has no complete checkpoint", _HINT))
    return TrunkCheckpoint(place, newest, store.notes(newest))


def _store(place: Place) -> CheckpointStore:
    """Return the store in a folder or a bucket, only to find a checkpoint: nothing is created or registered."""
    if place.path is not None:
        return FolderStore(place.path)
    from trainer.checkpoint.stores.bucket import BucketStore  # heavy, and an extra

    return BucketStore(cast("Bucket", place))


def _newest(store: CheckpointStore) -> int | None:
    """Return the step of the newest checkpoint that is not damaged."""
    return next((step for step in reversed(store.steps()) if not store.damage(step)), None)


def mismatch(checkpoint: TrunkCheckpoint, family: str, expected: Shapes, actual: Shapes) -> Problem | None:
    """Return the problem of a checkpoint that has not all arrays of a trunk, with their shapes; None if it has."""
    names = sorted(expected, key=lambda name: (name.startswith("averages"), name))
    wrong = [
        f"{name} is missing"
        if name not in actual
        else f"{name} has the shape {actual[name]} instead of {expected[name]}"
        for name in names
        if actual.get(name) != expected[name]
    ]
    if not wrong:
        return None
    more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    model = checkpoint.notes.get("model", {})
    settings = ", ".join(f"model.{key}={model[key]}" for key in ("block", "blocks", "width") if key in model)
    message = f"checkpoint {checkpoint.name} does not fit the trunk of {family}: {', '.join(wrong[:_SHOWN])}{more}"
    needed = "model.block=basic" if family == "ssd" else "model.block=bottleneck"
    hint = f"It was trained with {settings}; use one of {needed}, with this model's width and the blocks of its stages"
    return Problem(message, hint)
