"""Checkpoints: written in the background, committed whole, read by one slice. The only user of Orbax.

Orbax writes the arrays; the commit is ours, because a host that cannot write must not leave the others
waiting in a barrier. Each host reports how its writing went, process 0 collects the reports, commits
(or removes) what was written, and announces the verdict. What that means on a disk and in a bucket is
told in storage/local.py and storage/gcs_checkpoints.py.
"""

# mypy: disallow-untyped-calls=False

import asyncio
import errno
import functools
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from trainer.checkpoint.broadcast import held, spread
from trainer.errors import StorageError, Unreachable, reason
from trainer.hosts.background import Background
from trainer.hosts.own_work import Alone
from trainer.hosts.peers import Peers
from trainer.step.compiler import Compile
from trainer.step.programs import State
from trainer.storage.base import Place
from trainer.telemetry.metrics import Events, flush, say

_MARGIN = 8 << 20  # bytes that stay free beside a checkpoint, for logs and the folder itself
_FLUSH_SECONDS = 10.0  # for the lines of the steps that a checkpoint holds, to be there before it


class Checkpoints:
    """The checkpoints of a run at `place`, seen by one host."""

    def __init__(self, place: Place, keep: int, notes: dict[str, Any], peers: Peers, events: Events) -> None:
        self.place, self.keep, self.notes = place, keep, notes
        self._shelf = place.shelf()
        self._peers, self._events = peers, events
        self._claim = ""  # names this attempt's saves, once all hosts know it
        self._committing = Background("commit")
        self._failure = ""
        self._unreadable: set[int] = set()  # steps that may be whole, and are not read from now
        self._warned = False  # that older ones are not removed
        self.last: int | None = None  # step of the newest committed checkpoint; all hosts know of the same
        self._alone = Alone()

    @property
    def busy(self) -> bool:
        """Whether this host itself reads or writes a checkpoint, and does not just wait for others."""
        return self._alone.busy

    def choose(self, newer_than: int = -1) -> tuple[int, dict[str, Any]] | None:
        """Agree with all hosts on the newest whole checkpoint after step `newer_than`; return (step, notes), or None.

        Process 0 looks: it removes what a killed save left and passes over damaged checkpoints. Comes before
        the first save. Raises StorageError where checkpoints cannot be read: a run that has some does not begin anew.
        """
        if self._peers.process_id == 0:
            with self._alone:
                found = self._look(newer_than)
            self._peers.announce("restore", found)
        self._claim, self.last, notes = self._peers.await_("restore")
        return None if notes is None or self.last is None else (self.last, notes)

    def _look(self, newer_than: int) -> tuple[str, int | None, dict[str, Any] | None]:
        """Return (what names this attempt's saves, the newest whole checkpoint after a step, its notes).

        Where there is none, without notes the newest one up to that step, which nobody has read.
        """
        claim = self._shelf.claim(self._events.attempt)
        steps = self._shelf.steps()
        newer = reversed([step for step in steps if step > newer_than])
        whole = next(filter(self._is_whole, newer), None)
        if whole is None and newer_than < 0 and self._unreadable:
            raise StorageError(f"none of the checkpoints in {self.place} can be read. They are kept there")
        if whole is None:
            return claim, max((step for step in steps if step <= newer_than), default=None), None
        return claim, whole, self._shelf.notes(whole)

    def room(self, state: State) -> tuple[int | None, int]:
        """Return (bytes free, bytes that a save of `state` needs); None is room without end."""
        need = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)) + _MARGIN
        return self.place.room(), need

    def save(self, step: int, state: State, **notes: Any) -> None:
        """Begin to save `state`; returns once it is copied off the chips, so it may be donated.

        `notes` are kept with it, beside those that all checkpoints of the run have.

        A failure costs this one checkpoint: the older ones stay, and an event and a line tell of it.
        """
        began = time.monotonic()
        self.wait()
        self._events.write("save_begin", step)
        writes: list[Any] = []
        failure = ""
        try:
            with self._alone:
                draft = self._shelf.draft(step, self._claim)
                begun = _handler().async_save(_epath(draft), args=_orbax().args.PyTreeSave(state))
                writes = asyncio.run(begun) or []
        except Exception as error:
            failure = reason(error)
        timed = began, time.monotonic() - began
        self._committing.begin(functools.partial(self._commit, step, writes, failure, timed, self.notes | notes))

    def wait(self) -> str:
        """Wait for the save under way; return why it failed, or nothing."""
        self._committing.wait()
        return self._failure

    def ended(self, seconds: float) -> bool:
        """Wait so long for the save under way; return whether there is none any more."""
        return self._committing.ended(seconds)

    def restore(
        self, step: int, notes: dict[str, Any], mesh: Mesh, abstract: State, compiler: Compile
    ) -> Callable[[], tuple[State, bool]]:
        """Begin to read checkpoint `step`, whose notes these are; the returned function gives (state, `read`).

        `read` is whether this host read it: only hosts with chips in the first "dp" replica do; the others get
        the state over the network.
        """
        readers = {device.process_index for device in mesh.devices[0].flat}
        reads = jax.process_index() in readers
        outcome: list[Any] = []

        def read() -> None:
            try:
                with self._alone:
                    outcome.append(_read(self._shelf.content(step, notes), mesh, abstract, readers) if reads else None)
            except BaseException as error:
                outcome.append(error)

        thread = threading.Thread(target=read, name="restore", daemon=True)
        thread.start()

        def finish() -> tuple[State, bool]:
            thread.join()
            if isinstance(outcome[0], BaseException):
                raise outcome[0]
            first = set(mesh.devices[0].flat)
            return spread(held(outcome[0], abstract), first, mesh, abstract, compiler), reads

        return finish

    def fail(self, step: int, why: str) -> None:
        """Record that a checkpoint was not written."""
        self._failure = why
        self._events.write("save_failed", step, reason=why)
        if self._peers.process_id == 0:
            kept = "there is none before it" if self.last is None else f"the one of step {self.last} stays"
            say(f"warning: checkpoint of step {step} not saved in {self.place}: {why}; {kept}")

    def _is_whole(self, step: int) -> bool:
        """Look whether a checkpoint is whole; one that is damaged for certain is set aside."""
        try:
            damage = self._shelf.damage(step)
        except (PermissionError, Unreachable):
            raise
        except OSError as error:
            if error.errno != errno.EIO:  # an attempt to come may read it
                raise StorageError(f"checkpoint {self.place / str(step)} cannot be read: {reason(error)}") from error
            self._unreadable.add(step)
            self._pass_over(step, "cannot be read and is passed over", f"{error.filename}: {reason(error)}")
            return False
        if damage:
            self._pass_over(step, "is damaged and passed over", damage)
            self._shelf.set_aside(step)
        return not damage

    def _pass_over(self, step: int, what: str, why: str) -> None:
        self._events.write("restore_skipped", step, reason=why)
        say(f"warning: checkpoint {self.place / str(step)} {what}: {why}")

    def _commit(
        self, step: int, writes: list[Any], failure: str, timed: tuple[float, float], notes: dict[str, Any]
    ) -> None:
        """Wait for the writes and the verdict; `timed`: when the save began, and how long it held up the steps."""
        with self._alone:
            for write in writes:
                try:
                    write.result()
                except Exception as error:
                    failure = failure or reason(error)
        self._peers.report(f"written/{step}", failure)
        if self._peers.process_id == 0:
            failures = self._peers.collect(f"written/{step}")
            with self._alone:
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
        """Commit or remove a written checkpoint, process 0 only; return why it failed, or nothing."""
        failure = next(filter(None, failures), "")
        if not failure:
            try:
                _handler().finalize(_epath(self._shelf.draft(step, self._claim)))
                flush(_FLUSH_SECONDS)
                if step in self._unreadable:  # its place is taken
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
        """Remove what is too old, as far as that works: the others wait to hear of what is committed."""
        try:
            self._shelf.keep(self.keep, committed, self._unreadable)
        except OSError as error:
            if not self._warned:
                say(f"warning: older checkpoints in {self.place} are not removed: {reason(error)}")
            self._warned = True


@functools.cache
def warm_up() -> None:
    """Import Orbax on a thread: it takes a while, and nothing needs it before the first save or restore."""
    threading.Thread(target=_orbax, name="import-orbax", daemon=True).start()


@functools.cache
def _orbax() -> Any:
    import orbax.checkpoint  # type: ignore[import-untyped]

    # A save that fails is told in one line of ours; Orbax and TensorStore would print hundreds.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    report = sys.unraisablehook
    sys.unraisablehook = lambda args: None if str(args.exc_value) == "Event loop is closed" else report(args)
    return orbax.checkpoint


def _handler(readers: set[int] | None = None) -> Any:
    options = _orbax().options.MultiprocessingOptions(
        primary_host=0 if readers is None else min(readers), active_processes=readers
    )
    kinds = _orbax().type_handlers
    # Off: replicas sharing the writing of an array. It compiles a program for every slice of every array,
    # and one slice's hosts are enough.
    arrays = kinds.ArrayHandler(use_replica_parallel=False, enable_write_sharding_file=False)
    return _orbax().PyTreeCheckpointHandler(
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
    args = _orbax().args
    target = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(first, leaf.sharding.spec)),
        abstract,
    )
    restore_args = _orbax().checkpoint_utils.construct_restore_args(target)
    handler = _handler(readers)
    state: State = handler.restore(_epath(folder), args=args.PyTreeRestore(item=target, restore_args=restore_args))
    return state
