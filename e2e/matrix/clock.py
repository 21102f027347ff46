"""Faults of the clock of a local host: a library shifts its time of day, and the machine's clock stays as it is."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

from e2e.harness import DrillError
from e2e.matrix.cell import Cell
from e2e.matrix.fault import LOCAL, Holds, fault
from e2e.matrix.programs import HOSTS, place_of

_HOUR, _SECONDS = 3600, 15.0
_SOURCE = Path(__file__).with_name("clock.c")


@fault(
    "clock-jump",
    f"The clock of a host jumps an hour ahead, {_SECONDS:.0f} s later to an hour behind, and later back.",
    Holds.CONTINUES,
    platforms=(LOCAL,),
)
def _jump(cell: Cell) -> None:
    folder = cell.lab.folder / f"clock-{cell.name}"
    folder.mkdir()
    cell.removals.callback(shutil.rmtree, folder, ignore_errors=True)
    for host in range(HOSTS):
        _set(_file(folder, host), 0)
    cell.train("--env", f"LD_PRELOAD={_library(folder)}", "--env", f"MATRIX_CLOCK={folder}")
    host = cell.any_host()
    file = _file(folder, host)
    if str(folder) not in Path(f"/proc/{cell.process(host)}/maps").read_text(encoding="utf-8"):
        raise DrillError("the host's process has not loaded the clock")
    cell.strike(lambda: _set(file, _HOUR))
    cell.wait(_SECONDS)
    _set(file, -_HOUR)
    cell.heal_after(_SECONDS, lambda: _set(file, 0))


def _library(folder: Path) -> Path:
    """Compile the library. Raises DrillError without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise DrillError("clock-jump requires a C compiler (cc)")
    library = folder / "clock.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, _SOURCE, "-ldl"], check=True)
    return library


def _file(folder: Path, host: int) -> Path:
    return folder / "{}-{}".format(*place_of(host))


def _set(file: Path, seconds: int) -> None:
    """Shift the clock of a host; its processes have mapped the file."""
    with file.open("r+b" if file.exists() else "wb", buffering=0) as stream:
        stream.write(struct.pack("l", seconds))
