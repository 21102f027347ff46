"""Persistent checkpoints: written in the background, committed atomically, read by one slice. The only user of Orbax.

Orbax writes the arrays; the commit is ours, because a host that cannot write must not leave the others waiting in a
barrier. Each host reports the outcome of its writes, process 0 collects the reports, commits (or removes) the
checkpoint, and announces the result. stores/folder.py and stores/bucket.py describe the commit on a disk and in a
bucket.
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

from trainer.checkpoint.broadcast import broadcast, local_shards
from trainer.checkpoint.stores import CheckpointStore, open_store
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
        store: CheckpointStore | None = None,
        check_lease: Callable[[], str] = lambda: "",
    ) -> None:
        """Prepare; `check_lease` returns why process 0 may not commit a checkpoint, "" if it may."""
        self.place, self.max_to_keep, self.notes = place, max_to_keep, notes
        self._store = store or open_store(place)
        self._peers, self._events, self._check_lease = peers, events, check_lease
        self._attempt_id = ""  # name of this attempt's saves, once all hosts know it
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
        Raises StorageError if checkpoints exist but none can be read: the run must not start from scratch.
        """
        if self._peers.process_id == 0:
            with self._own_work:
                newest = self._find_newest(newer_than)
            self._peers.announce("restore", newest)
        self._attempt_id, self.last, notes = self._peers.await_("restore")
        return None if notes is None or self.last is None else (self.last, notes)

    def take_over(self) -> None:
        """Prepare to save in a slice that has restored nothing itself; do nothing later. All of its hosts call it."""
        if self._attempt_id:
            return
        if self._peers.process_id == 0:
            with self._own_work:
                attempt_id = self._store.begin_attempt(self._events.attempt)
                self._peers.announce("take over", [attempt_id, max(self._store.steps(), default=None)])
        self._attempt_id, self.last = self._peers.await_("take over")

    def _find_newest(self, newer_than: int) -> tuple[str, int | None, dict[str, Any] | None]:
        """Return (name of this attempt's saves, newest complete checkpoint after a step, its notes).

        If there is none, return the newest checkpoint up to that step, unread and without notes.
        """
        attempt_id = self._store.begin_attempt(self._events.attempt)
        steps = self._store.steps()
        newer = reversed([step for step in steps if step > newer_than])
        newest = next(filter(self._is_complete, newer), None)
        if newest is None and newer_than < 0 and self._unreadable:
            raise StorageError(f"none of the checkpoints in {self.place} can be read. They are not removed")
        if newest is None:
            return attempt_id, max((step for step in steps if step <= newer_than), default=None), None
        return attempt_id, newest, self._store.notes(newest)

    def free_and_needed_bytes(self, state: State) -> tuple[int | None, int]:
        """Return (bytes free, bytes that a save of `state` needs); None means unlimited."""
        need = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)) + _MARGIN
        free = None if self.place.path is None else shutil.disk_usage(self.place.path).free
        return free, need

    def save(self, step: int, state: State, **notes: Any) -> None:
        """Start to save `state`; return once it is copied off the chips, so that it may be donated.

        `notes` are saved with it, in addition to those of all checkpoints of the run.

        A failure loses only this checkpoint: the older ones stay, and an event and a log line report it.
        """
        began = time.monotonic()
        self.wait()
        self._events.write("save_begin", step)
        writes: list[Any] = []
        failure = ""
        try:
            with self._own_work:
                staging = self._store.staging_path(step, self._attempt_id)
                begun = _handler().async_save(_epath(staging), args=orbax().args.PyTreeSave(state))
                writes = asyncio.run(begun) or []
        except Exception as error:
            failure = reason(error)
        timing = began, time.monotonic() - began
        self._committing.begin(functools.partial(self._commit, step, writes, failure, timing, self.notes | notes))

    def wait(self) -> str:
        """Wait for the save in progress; return the reason of its failure, or ""."""
        self._committing.wait()
        return self._failure

    def join(self, seconds: float) -> bool:
        """Wait up to this many seconds for the save in progress; return whether it has ended."""
        return self._committing.join(seconds)

    def shapes(self, step: int, notes: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        """Return the shape of each array of checkpoint `step`, which has these notes, by name (params/stem/kernel)."""
        with self._own_work:
            return array_shapes(_handler().metadata(_epath(self._store.content(step, notes))).tree)

    def restore(
        self,
        step: int,
        notes: dict[str, Any],
        mesh: Mesh,
        abstract: State,
        compiler: Compile,
        *,
        is_partial: bool = False,
    ) -> Callable[[], tuple[State, bool]]:
        """Start to read checkpoint `step`, which has these notes; the returned function returns (state, `read`).

        With `is_partial`, the checkpoint may have other arrays, too.
        `read` is True if this host read it: only hosts with chips in the first "dp" replica do; the others get the
        state over the network.
        """
        readers = {device.process_index for device in mesh.devices[0].flat}
        reads = jax.process_index() in readers

        def read() -> Any:
            with self._own_work:
                folder = self._store.content(step, notes)
                return _read(folder, mesh, abstract, readers, is_partial=is_partial) if reads else None

        result = background.start(read, "restore")

        def finish() -> tuple[State, bool]:
            source_devices = set(mesh.devices[0].flat)
            return broadcast(local_shards(result(), abstract), source_devices, mesh, abstract, compiler), reads

        return finish

    def record_failure(self, step: int, cause: str) -> None:
        """Record that a checkpoint was not written."""
        self._failure = cause
        self._events.write("save_failed", step, reason=cause)
        if self._peers.process_id == 0:
            latest = "no earlier one exists" if self.last is None else f"the latest one is of step {self.last}"
            say(f"warning: checkpoint of step {step} not saved in {self.place}: {cause}; {latest}")

    def _is_complete(self, step: int) -> bool:
        """Return whether a checkpoint is complete; quarantine one that is certainly damaged."""
        try:
            damage = self._store.damage(step)
        except (PermissionError, Unreachable):
            raise
        except OSError as error:
            if error.errno != errno.EIO:  # a later attempt may be able to read it
                raise StorageError(f"checkpoint {self.place / str(step)} cannot be read: {reason(error)}") from error
            self._unreadable.add(step)
            self._skip(step, "cannot be read and is skipped", f"{error.filename}: {reason(error)}")
            return False
        if damage:
            self._skip(step, "is damaged and skipped", damage)
            self._store.quarantine(step)
        return not damage

    def _skip(self, step: int, problem: str, cause: str) -> None:
        self._events.write("restore_skipped", step, reason=cause)
        say(f"warning: checkpoint {self.place / str(step)} {problem}: {cause}")

    def _commit(
        self, step: int, writes: list[Any], failure: str, timing: tuple[float, float], notes: dict[str, Any]
    ) -> None:
        """Wait for the writes and the result. `timing`: start of the save, and seconds that it blocked the steps."""
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
                failure = self._commit_or_abort(step, failures, notes)
            self._conclude(step, failure, timing)  # before the others know, because they may then end the job
            self._peers.announce(f"saved/{step}", failure)
            self._peers.await_(f"saved/{step}")
        else:
            self._conclude(step, self._peers.await_(f"saved/{step}"), timing)

    def _conclude(self, step: int, failure: str, timing: tuple[float, float]) -> None:
        """Record the result of a save."""
        self._failure = failure
        if failure:
            self.record_failure(step, failure)
        else:
            self.last = step
            began, blocked = timing
            self._events.write("save", step, time.monotonic() - began, blocked=round(blocked, 4))

    def _commit_or_abort(self, step: int, failures: list[str], notes: dict[str, Any]) -> str:
        """Commit or remove a written checkpoint (process 0 only); return the reason of a failure, or ""."""
        failure = next(filter(None, failures), "")
        if not failure:
            try:
                self._finalize(step)
                flush(_FLUSH_SECONDS)
                if step in self._unreadable:  # an unreadable checkpoint occupies its name
                    self._store.quarantine(step)
                    self._unreadable.remove(step)
                failure = self._check_lease()  # last: a run that has taken over may be reading the newest one
                if not failure:
                    self._store.commit(step, self._attempt_id, notes)
            except Exception as error:
                failure = reason(error)
        if failure:
            self._store.abort(step, self._attempt_id)
        else:
            self._remove_older(step)
        return failure

    def _finalize(self, step: int) -> None:
        """Let Orbax complete the files that all hosts have written."""
        _handler().finalize(_epath(self._store.staging_path(step, self._attempt_id)))

    def _remove_older(self, committed: int) -> None:
        """Remove old checkpoints; errors are not raised, because the other hosts wait for the result."""
        try:
            self._store.remove_old(self.max_to_keep, committed, self._unreadable)
        except OSError as error:
            if not self._warned:
                say(f"warning: older checkpoints in {self.place} are not removed: {reason(error)}")
            self._warned = True


def array_shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    """Return the shape of each array of a state, or of what describes one, by name (params/stem/kernel)."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="/"): tuple(leaf.shape) for path, leaf in leaves}


@functools.cache
def warm_up() -> None:
    """Import Orbax on a thread: the import is slow, and nothing needs it before the first save or restore."""
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
    # Replica-parallel writing is off: it compiles a program for every slice of every array, and one slice's hosts write
    # fast enough.
    arrays = kinds.ArrayHandler(use_replica_parallel=False, enable_write_sharding_file=False)
    return orbax().PyTreeCheckpointHandler(
        use_ocdbt=True,
        multiprocessing_options=options,
        type_handler_registry=kinds.create_type_handler_registry((jax.Array, arrays)),
    )


def _epath(path: str) -> Any:
    from etils import epath  # type: ignore[import-untyped]

    return epath.Path(path)


def _read(folder: str, mesh: Mesh, abstract: State, readers: set[int], *, is_partial: bool) -> State:
    """Read a checkpoint onto the chips of the first replica only."""
    first_replica = Mesh(mesh.devices[:1], mesh.axis_names)
    target = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=NamedSharding(first_replica, leaf.sharding.spec)
        ),
        abstract,
    )
    restore_args = orbax().checkpoint_utils.construct_restore_args(target)
    handler = _handler(readers)
    args = orbax().args.PyTreeRestore(item=target, restore_args=restore_args, partial_restore=is_partial)
    state: State = handler.restore(_epath(folder), args=args)
    return state
