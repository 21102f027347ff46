"""Lock by which only one xpk command of this machine changes a cluster at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from xpk.capacity.plan.plan import Plan, Progress
from xpk.model.errors import ConflictError, XpkError
from xpk.storage.private import make_folder, open_file, wait_for_lock

LOCK_SECONDS = 60.0  # for which a command waits for another one


def locked(made: Plan, root: Path, name: str, plan: Callable[[], Plan], *, seconds: float = LOCK_SECONDS) -> Plan:
    """Return a plan that is carried out under a lock of its cluster, and only if `plan` still returns its steps.

    `root`: the folder of the provider's clusters, beside which the locks are. Carrying it out raises ConflictError if
    the steps are others, and TimedOutError if another command holds the lock for longer than `seconds`.
    """
    file = root.parent / "locks" / f"{name}.lock"

    @contextmanager
    def hold(tell: Progress) -> Iterator[None]:
        try:
            make_folder(file.parent)
            lock = open_file(file, os.O_RDWR)
        except OSError as error:
            message = f"cannot write to '{file}': {error.strerror}"
            raise XpkError(message, hint="set XPK_STATE_DIR to a writable folder") from error
        try:
            hint = f"`fuser {file}` shows its process; run this command again when it has ended"
            wait_for_lock(lock, f"cluster '{name}'", seconds=seconds, tell=tell, hint=hint)
            if _titles(plan()) != _titles(made):
                raise ConflictError(f"cluster '{name}' was modified concurrently", hint="run the same command again")
            yield
        finally:
            os.close(lock)

    return replace(made, alone=hold)


def _titles(plan: Plan) -> list[str]:
    return [step.title for step in plan.steps]
