"""Faults of the command line, and of the control plane of local clusters."""

from __future__ import annotations

import signal
import subprocess
import time

from e2e.harness import DrillError
from e2e.kind_cluster import XPK
from e2e.matrix.cell import Cell, send_if_alive
from e2e.matrix.fault import LOCAL, Holds, fault
from xpk.local import daemon_control, process

_SHARES = (0.2, 0.4, 0.6, 0.75, 0.9)  # of the time of `workload create`, after which it is killed
_EXISTS = 4  # exit code: the workload exists


@fault("kill-control-plane", "SIGKILL of the cluster's daemon.", Holds.CONTINUES, platforms=(LOCAL,))
def _kill_daemon(cell: Cell) -> None:
    cell.train()
    lock = cell.lab.folder / "state" / "clusters" / cell.lab.cluster / daemon_control.LOCK
    cell.strike(lambda: process.tell(lock, signal.SIGKILL))


@fault(
    "kill-everything",
    "SIGKILL of all processes of the cluster at once: hosts, supervisors and the daemon.",
    Holds.RESTARTS,
    platforms=(LOCAL,),
)
def _kill_everything(cell: Cell) -> None:
    cell.train()
    cell.strike(lambda: send_if_alive(signal.SIGKILL, cell.lab.processes()))
    cell.run.describe()  # as any command: it starts the daemon again


@fault(
    "kill-create",
    f"SIGKILL of `xpk workload create` at {len(_SHARES)} moments; then the same command again.",
    Holds.CONTINUES,
    platforms=(LOCAL,),
)
def _kill_create(cell: Cell) -> None:
    arguments, began = cell.create_arguments(), time.monotonic()
    cell.lab.xpk(*arguments)
    usual, argv = time.monotonic() - began, [*XPK, *arguments]
    for share in _SHARES:
        cell.end()
        with subprocess.Popen(argv, env=cell.lab.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
            time.sleep(share * usual * cell.random.uniform(0.8, 1.0))
            run.kill()
        again = subprocess.run(argv, env=cell.lab.environ, capture_output=True, text=True, check=False)
        if again.returncode not in (0, _EXISTS):
            raise DrillError(f"create after a killed create: {again.stderr}")
        cell.follow()
    cell.await_training()
    cell.strike(str)
