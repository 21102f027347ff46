"""Exit codes of a command: one fault for each class that docs/exit-codes.md has."""

from __future__ import annotations

from e2e.matrix.cell import Cell
from e2e.matrix.fault import Holds, fault
from e2e.matrix.programs import HOSTS

_STEP = 12  # of the first attempt, at which the host exits
_OWN = "chooses its exit codes itself; its own faults have them"
RESTARTING = {
    "done": (0, "success before the others"),
    "crash": (1, "a crash"),
    "unknown": (3, "a code without a meaning"),
    "peer-lost": (75, "another host was lost"),
    "hung": (76, "this host hung"),
    "corrupt": (77, "copies of the state differ"),
    "reserved": (78, "the code of a supervisor without restarts, which means nothing from a command"),
    "interrupted": (130, "SIGINT after a checkpoint"),
    "preempted": (143, "SIGTERM after a checkpoint, although no host was asked"),
}
FATAL = {
    "fatal": (42, "a retry cannot succeed"),
    "not-executable": (126, "the command cannot be executed"),
    "not-found": (127, "the command was not found"),
}


def _planned(code: int) -> tuple[str, str]:
    return "--env", f"PLANNED_EXIT={HOSTS - 1}:{_STEP}:{code}"


def _restarting(name: str, code: int, meaning: str) -> None:
    @fault(f"exit-{name}", f"A host exits with {code}: {meaning}.", Holds.RESTARTS, trainer=_OWN, ray=_OWN)
    def inject(cell: Cell) -> None:
        cell.start(*_planned(code))
        cell.until(lambda: cell.run.events("exit"))
        cell.struck = cell.run.events("exit")[0]["time"]


def _fatal(name: str, code: int, meaning: str) -> None:
    @fault(f"exit-{name}", f"A host exits with {code}: {meaning}.", Holds.REFUSED, trainer=_OWN, ray=_OWN)
    def inject(cell: Cell) -> None:
        cell.start(*_planned(code))
        cell.fails_with(str(code))


for _name, (_code, _meaning) in RESTARTING.items():
    _restarting(_name, _code, _meaning)
for _name, (_code, _meaning) in FATAL.items():
    _fatal(_name, _code, _meaning)
