"""Measurement of one process with its children: time, memory, and the number of child processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# A small process starts the command: the peak memory of a process begins with that of the one that starts it.
_LAUNCHER = """
import json, os, sys, time
start = time.perf_counter()
process = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(process, 0)
wall = time.perf_counter() - start
facts = [os.waitstatus_to_exitcode(status), wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss]
os.write(int(sys.argv[1]), json.dumps(facts).encode())
"""
# Python imports `sitecustomize` before a program: it notes every child process of any Python program.
_HOOK = """
import os, sys
def note(event, arguments):
    if event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.system"):
        with open(os.environ["BENCH_PROCESSES"], "a") as file:
            file.write(event + "\\n")
sys.addaudithook(note)
"""
_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of a command."""

    wall_seconds: float
    cpu_seconds: float  # user and system, with those of its children
    peak_mb: float


def run(argv: Sequence[str], environ: Mapping[str, str]) -> Sample:
    """Run a command and measure it. Raises RuntimeError, with its last words, if it fails."""
    read, write = os.pipe()
    try:
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(write), *argv]
        done = subprocess.run(
            launcher, env=environ, pass_fds=(write,), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=_SECONDS, check=False,
        )  # fmt: skip
        os.close(write)
        write = -1
        facts = os.read(read, 4096)
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)
    if not facts or (values := json.loads(facts))[0]:
        raise RuntimeError(f"{' '.join(argv)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return Sample(wall_seconds=values[1], cpu_seconds=values[2], peak_mb=values[3] / 1024)


def count_processes(argv: Sequence[str], environ: Mapping[str, str], folder: Path) -> int:
    """Run a Python program and return the number of processes that it starts."""
    (folder / "sitecustomize.py").write_text(_HOOK, encoding="utf-8")
    record = folder / "processes"
    record.unlink(missing_ok=True)
    path = os.pathsep.join(filter(None, (str(folder), environ.get("PYTHONPATH"))))
    run(argv, {**environ, "PYTHONPATH": path, "BENCH_PROCESSES": str(record)})
    return len(record.read_text(encoding="utf-8").splitlines()) if record.exists() else 0
