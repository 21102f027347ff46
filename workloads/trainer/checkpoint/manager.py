"""Persistent checkpoints: written in the background, committed atomically, read by one slice. The only user of Orbax.

Orbax writes the arrays; the commit is ours, because a host that cannot write must not leave the others waiting in a
barrier. Each host reports the outcome of its writes, process 0 collects the reports, commits (or removes) the
checkpoint, and announces the verdict. storage/local.py and storage/gcs_checkpoints.py describe the commit on a disk and
in a bucket.
"""

# mypy: disallow-untyped-calls=False

import asyncio
import errno
import functools
import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from trainer.checkpoint.broadcast import held, spread
from trainer.checkpoint.shelves import Shelf, open_shelf
from trainer.errors import StorageError, reason
from trainer.hosts import background
from trainer.hosts.background import Background
from trainer.hosts.own_work import OwnWork
from trainer.hosts.peers import Peers
from trainer.step.compiler import Compile
from trainer.step.programs import State
from trainer.telemetry.metrics import Events, flush, say
from xpk_shared.storage import Place
from xpk_shared.storage.errors import Unreachable

_MARGIN = 8 << 20  # bytes to leave free beside a checkpoint, for logs and the folder itself
_FLUSH_SECONDS = 10.0  # for the log lines of a checkpoint's steps, which must be written before it


class Checkpoints:
    """The checkpoints of a run at `place`, as used by one host."""

    def __init__(
        self,
        place: Place,
        max_to_keep: int,
        notes: dict[str, Any],
        peers: Peers,
        events: Events,
        *,
        shelf: Shelf | None = None,
    ) -> None:
        self.place, self.max_to_keep, self.notes = place, max_to_keep, notes
        self._shelf = shelf or open_shelf(place)
        self._peers, self._events = peers, events
        self._claim = ""  # name of this attempt's saves, once all hosts know it
        self._committing = Background("commit")
        self._failure = ""
        self._unreadable: set[int] = set()  # steps that may be complete, but could not be read
        self._warned = False  # about older checkpoints that are not removed
        self.last: int | None = None  # step of the newest committed checkpoint, the same on all hosts
        self._own_work = OwnWork()

    @property
    def busy(self) -> bool:
        """True if this host itself reads or writes a checkpoint, rather than waiting for others."""
        return self._own_work.busy

    def choose(self, newer_than: int = -1) -> tuple[int, dict[str, Any]] | None:
        """Agree with all hosts on the newest complete checkpoint after step `newer_than`.

        Returns (step, notes), or None.
        Process 0 removes the remains of aborted saves and skips damaged checkpoints. Call it before the first save.
        Raises StorageError if checkpoints cannot be read: a run that has some does not start over.
        """
        if self._peers.process_id == 0:
            with self._own_work:
                newest = self._look(newer_than)
            self._peers.announce("restore", newest)
        self._claim, self.last, notes = self._peers.await_("restore")
        return None if notes is None or self.last is None else (self.last, notes)

    def _look(self, newer_than: int) -> tuple[str, int | None, dict[str, Any] | None]:
        """Return (name of this attempt's saves, newest complete checkpoint after a step, its notes).

        If there is none: the newest checkpoint up to that step, unread and without notes.
        """
        claim = self._shelf.claim(self._events.attempt)
        steps = self._shelf.steps()
        newer = reversed([step for step in steps if step > newer_than])
        whole = next(filter(self._is_whole, newer), None)
        if whole is None and newer_than < 0 and self._unreadable:
            raise StorageError(f"none of the checkpoints in {self.place} can be read. They are not removed")
        if whole is None:
            return claim, max((step for step in steps if step <= newer_than), default=None), None
        return claim, whole, self._shelf.notes(whole)

    def room(self, state: State) -> tuple[int | None, int]:
        """Return (bytes free, bytes that a save of `state` needs); None means unlimited."""
        need = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)) + _MARGIN
        free = None if self.place.path is None else shutil.disk_usage(self.place.path).free
        return free, need

    def save(self, step: int, state: State, **notes: Any) -> None:
        """Start to save `state`; return once it is copied off the chips, so that it may be donated.

        `notes` are saved with it, beside those of all checkpoints of the run.

        A failure costs only this checkpoint: the older ones stay, and an event and a line report it.
        """
        began = time.monotonic()
        self.wait()
        self._events.write("save_begin", step)
        writes: list[Any] = []
        failure = ""
        try:
            with self._own_work:
                draft = self._shelf.draft(step, self._claim)
                begun = _handler().async_save(_epath(draft), args=orbax().args.PyTreeSave(state))
                writes = asyncio.run(begun) or []
        except Exception as error:
            failure = reason(error)
        timed = began, time.monotonic() - began
        self._committing.begin(functools.partial(self._commit, step, writes, failure, timed, self.notes | notes))

    def wait(self) -> str:
        """Wait for the save in progress; return the reason of its failure, or ""."""
        self._committing.wait()
        return self._failure

    def ended(self, seconds: float) -> bool:
        """Wait up to this many seconds for the save in progress; return whether it has ended."""
        return self._committing.ended(seconds)

    def restore(
        self, step: int, notes: dict[str, Any], mesh: Mesh, abstract: State, compiler: Compile
    ) -> Callable[[], tuple[State, bool]]:
        """Start to read checkpoint `step`, which has these notes; the returned function returns (state, `read`).

        `read` is True if this host read it: only hosts with chips in the first "dp" replica do; the others get the
        state over the network.
        """
        readers = {device.process_index for device in mesh.devices[0].flat}
        reads = jax.process_index() in readers

        def read() -> Any:
            with self._own_work:
                return _read(self._shelf.content(step, notes), mesh, abstract, readers) if reads else None

        result = background.start(read, "restore")

        def finish() -> tuple[State, bool]:
            first = set(mesh.devices[0].flat)
            return spread(held(result(), abstract), first, mesh, abstract, compiler), reads

        return finish

    def fail(self, step: int, why: str) -> None:
        """Record that a checkpoint was not written."""
        self._failure = why
        self._events.write("save_failed", step, reason=why)
        if self._peers.process_id == 0:
            latest = "no earlier one exists" if self.last is None else f"the latest one is of step {self.last}"
            say(f"warning: checkpoint of step {step} not saved in {self.place}: {why}; {latest}")

    def _is_whole(self, step: int) -> bool:
        """Return whether a checkpoint is complete; one that is certainly damaged is set aside."""
        try:
            damage = self._shelf.damage(step)
        except (PermissionError, Unreachable):
            raise
        except OSError as error:
            if error.errno != errno.EIO:  # a later attempt may be able to read it
                raise StorageError(f"checkpoint {self.place / str(step)} cannot be read: {reason(error)}") from error
            self._unreadable.add(step)
            self._pass_over(step, "cannot be read and is skipped", f"{error.filename}: {reason(error)}")
            return False
        if damage:
            self._pass_over(step, "is damaged and skipped", damage)
            self._shelf.set_aside(step)
        return not damage

    def _pass_over(self, step: int, what: str, why: str) -> None:
        self._events.write("restore_skipped", step, reason=why)
        say(f"warning: checkpoint {self.place / str(step)} {what}: {why}")

    def _commit(
        self, step: int, writes: list[Any], failure: str, timed: tuple[float, float], notes: dict[str, Any]
    ) -> None:
        """Wait for the writes and the verdict. `timed`: start of the save, and seconds that it blocked the steps."""
        with self._own_work:
            for write in writes:
                try:
                    write.result()
                except Exception as error:
                    failure = failure or reason(error)
        self._peers.report(f"written/{step}", failure)
        if self._peers.process_id == 0:
            failures = self._peers.collect(f"written/{step}")
            with self._own_work:
                failure = self._seal(step, failures, notes)
            self._peers.announce(f"saved/{step}", failure)
        self._failure = self._peers.await_(f"saved/{step}")
        if self._failure:
            self.fail(step, self._failure)
        else:
            self.last = step
            began, blocked = timed
            self._events.write("save", step, time.monotonic() - began, blocked=round(blocked, 4))

    def _seal(self, step: int, failures: list[str], notes: dict[str, Any]) -> str:
        """Commit or remove a written checkpoint (process 0 only); return the reason of a failure, or ""."""
        failure = next(filter(None, failures), "")
        if not failure:
            try:
                _handler().finalize(_epath(self._shelf.draft(step, self._claim)))
                flush(_FLUSH_SECONDS)
                if step in self._unreadable:  # an unreadable checkpoint has its name
                    self._shelf.set_aside(step)
                    self._unreadable.remove(step)
                self._shelf.commit(step, self._claim, notes)
            except Exception as error:
                failure = reason(error)
        if failure:
            self._shelf.discard(step, self._claim)
        else:
            self._remove_older(step)
        return failure

    def _remove_older(self, committed: int) -> None:
        """Remove old checkpoints; errors are not raised, as the others wait for the verdict."""
        try:
            self._shelf.keep(self.max_to_keep, committed, self._unreadable)
        except OSError as error:
            if not self._warned:
                say(f"warning: older checkpoints in {self.place} are not removed: {reason(error)}")
            self._warned = True


@functools.cache
def warm_up() -> None:
    """Import Orbax on a thread: it is slow, and nothing needs it before the first save or restore."""
    threading.Thread(target=orbax, name="import-orbax", daemon=True).start()


@functools.cache
def orbax() -> Any:
    """Import Orbax, which is slow, and return it."""
    import orbax.checkpoint  # type: ignore[import-untyped]

    # We report a failed save in one line; Orbax and TensorStore would print hundreds.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    report = sys.unraisablehook
    sys.unraisablehook = lambda args: None if str(args.exc_value) == "Event loop is closed" else report(args)
    return orbax.checkpoint


def _handler(readers: set[int] | None = None) -> Any:
    options = orbax().options.MultiprocessingOptions(
        primary_host=0 if readers is None else min(readers), active_processes=readers
    )
    kinds = orbax().type_handlers
    # Off: replica-parallel writing, which compiles a program for every slice of every array,
    # and one slice's hosts are enough.
    arrays = kinds.ArrayHandler(use_replica_parallel=False, enable_write_sharding_file=False)
    return orbax().PyTreeCheckpointHandler(
        use_ocdbt=True,
        multiprocessing_options=options,
        type_handler_registry=kinds.create_type_handler_registry((jax.Array, arrays)),
    )


def _epath(path: str) -> Any:
    from etils import epath  # type: ignore[import-untyped]

    return epath.Path(path)


def _read(folder: str, mesh: Mesh, abstract: State, readers: set[int]) -> State:
    """Read a checkpoint onto the chips of the first replica only."""
    first = Mesh(mesh.devices[:1], mesh.axis_names)
    args = orbax().args
    target = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(first, leaf.sharding.spec)),
        abstract,
    )
    restore_args = orbax().checkpoint_utils.construct_restore_args(target)
    handler = _handler(readers)
    state: State = handler.restore(_epath(folder), args=args.PyTreeRestore(item=target, restore_args=restore_args))
    return state
