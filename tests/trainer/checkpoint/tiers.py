"""Local tiers of several hosts in one process."""

import time
from pathlib import Path
from typing import Any

from trainer import config
from trainer.checkpoint.local import LocalTier
from trainer.hosts.bootstrap import Host
from trainer.hosts.job import Job
from trainer.hosts.lease import Lease
from trainer.hosts.peers import Peers
from trainer.hosts.signals import Stop
from trainer.hosts.stop_step import StopStep
from trainer.hosts.time_limits import TimeLimits
from trainer.hosts.watchdog import Watchdog
from trainer.storage import open_place
from trainer.telemetry.metrics import Events, JsonLines


def a_job(folder: Path, *asked: str, peers: Peers | None = None, local: str = "ram") -> Job:
    """Return the job of one host, with one slice per peer, that writes to `folder`."""
    peers = peers or Peers(0, 1, on_lost=lambda peer: None, on_message=lambda what, by: None)
    settings = ["checkpoint.local_every=1", f"checkpoint.local_path={folder / local}", "observe.hang_seconds=0", *asked]
    host = Host(num_slices=peers.processes, slice_id=peers.process_id)
    events = Events(JsonLines(open_place(folder / f"events-{peers.process_id}")), host.slice_id, 0, 0, time.monotonic())
    stop = Stop(lambda code: None, lambda code: None)
    made, out = config.load("tiny", settings), open_place(folder / "out")
    watchdog = Watchdog(host, TimeLimits(made), events, out, peers.broadcast, peers.reply, lambda code, seconds: None)
    return Job(
        made,
        host,
        out,
        Lease(out, host, lambda holder, code: None),
        events,
        peers,
        stop,
        StopStep(peers, lambda: None),
        watchdog,
    )


def tier(folder: Path, peers: Peers | None = None, local: str = "ram", **doubles: Any) -> LocalTier:
    """Return the tier of such a host."""
    return LocalTier(a_job(folder, peers=peers, local=local), {"note": 1}, **doubles)
