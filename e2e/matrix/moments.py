"""Faults at a certain moment of a run, and faults of the trainer itself, which tests/trainer/planted.py has."""

from __future__ import annotations

import os
import shlex
import signal
import time
from pathlib import Path

from e2e.matrix.cell import SECONDS, Cell
from e2e.matrix.fault import LOCAL, Holds, fault
from e2e.matrix.programs import HOSTS, HOSTS_PER_SLICE

_ROOT = Path(__file__).parents[2]
_MEMORY = Path("/sys/fs/cgroup/memory")
_SAVE_POLL_SECONDS = 0.005
_PLANTED_STEP, _AHEAD = 12, 4  # batches are read some steps ahead
_OWN_CODE = "planted in the code of the trainer, which has no other code under Ray"
_NOT_ITS_CODE = "planted in the code of the trainer"
_SAVE_LIMIT_SECONDS = 10  # instead of half an hour
_SLOW_SAVE_SECONDS = 15.0  # three saves that each take 5 s longer


@fault(
    "kill-in-save",
    "SIGKILL of a host's process just after a save has begun.",
    Holds.RESTARTS,
    plain="it saves within a step, without an event that shows the beginning",
)
def _kill_in_save(cell: Cell) -> None:
    cell.train()
    pid = cell.process(cell.any_host(but_first=False))
    saves = len(cell.progress.saves_begun)
    cell.until(lambda: len(cell.progress.saves_begun) > saves, every=_SAVE_POLL_SECONDS)
    cell.strike(lambda: os.kill(pid, signal.SIGKILL))


@fault("kill-in-restart", "SIGKILL of a host's process, and of another's while it starts again.", Holds.RESTARTS)
def _kill_in_restart(cell: Cell) -> None:
    cell.train()
    first, second = HOSTS - 1, cell.random.randrange(HOSTS - 1)
    descriptions = cell.run.describe()["hosts"]
    cell.send(signal.SIGKILL, first)
    struck = cell.struck
    cell.until(lambda: cell.progress.starts[second][-1].time > struck)
    cell.strike(lambda: cell.send_to(signal.SIGKILL, second, descriptions))


@fault(
    "kill-before-first-step", "SIGKILL of a host's process after the start and before the first step.", Holds.RESTARTS
)
def _kill_before_first_step(cell: Cell) -> None:
    cell.start()
    cell.until(lambda: all(cell.progress.starts.values()))
    cell.send(signal.SIGKILL, cell.any_host())


@fault(
    "out-of-memory",
    "The memory that a host's process may have ends (cgroup), so that the kernel kills it.",
    Holds.RESTARTS,
)
def _out_of_memory(cell: Cell) -> None:
    group = _MEMORY / f"matrix-{os.getpid()}"
    cell.train()
    pid = cell.process(cell.any_host())
    group.mkdir()
    cell.removals.callback(group.rmdir)
    (group / "memory.limit_in_bytes").write_text(str(os.sysconf("SC_PAGE_SIZE")))
    cell.strike(lambda: (group / "cgroup.procs").write_text(str(pid)))  # what it had before does not count


@fault(
    "hang",
    "A host's program waits forever for its next batch.",
    Holds.RESTARTS,
    platforms=(LOCAL,),
    plain=_NOT_ITS_CODE,
    ray=_OWN_CODE,
)
def _hang(cell: Cell) -> None:
    _plant(cell, "hang")


@fault(
    "hang-in-c",
    "A host's program waits forever in C code that holds Python's lock.",
    Holds.RESTARTS,
    platforms=(LOCAL,),
    plain=_NOT_ITS_CODE,
    ray=_OWN_CODE,
)
def _hang_in_c(cell: Cell) -> None:
    _plant(cell, "lock")


@fault(
    "hang-in-save",
    f"Writing a checkpoint never ends on one host, which is noticed after {_SAVE_LIMIT_SECONDS} s by a setting.",
    Holds.RESTARTS,
    platforms=(LOCAL,),
    plain=_NOT_ITS_CODE,
    ray=_OWN_CODE,
)
def _hang_in_save(cell: Cell) -> None:
    _plant(cell, "stuck", "--set", f"checkpoint.hang_seconds={_SAVE_LIMIT_SECONDS}")


@fault(
    "slow-disk",
    "Writing each checkpoint takes 5 s longer on one host.",
    Holds.CONTINUES,
    platforms=(LOCAL,),
    plain=_NOT_ITS_CODE,
    ray=_OWN_CODE,
)
def _slow_disk(cell: Cell) -> None:
    _plant(cell, "late")
    cell.wait(_SLOW_SAVE_SECONDS)


def _plant(cell: Cell, kind: str, *settings: str) -> None:
    """Start the trainer with a fault in the last host of the first attempt; the fault begins with a step."""
    arguments = shlex.join([*cell.programs.arguments(cell.program), *settings])
    place = f"0{(HOSTS - 1) // HOSTS_PER_SLICE}{(HOSTS - 1) % HOSTS_PER_SLICE}"
    command = (
        f'if [ "$XPK_RESTART_ATTEMPT$MEGASCALE_SLICE_ID$TPU_WORKER_ID" = {place} ]; '
        f"then exec python -m tests.trainer.planted {kind}:{_PLANTED_STEP} train {arguments}; "
        f"else exec python -m trainer train {arguments}; fi"
    )
    cell.start("--env", f"PYTHONPATH={_ROOT}", command=command)
    cell.until(lambda: any(line["step"] >= _PLANTED_STEP - _AHEAD for line in cell.progress.steps), SECONDS)
    cell.struck = time.time()
