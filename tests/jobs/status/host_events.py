"""Events that the hosts of a run write to its output folder."""

from __future__ import annotations

import json
from pathlib import Path

from tests.jobs.objects import NOW, Obj
from xpk.jobs.status.fields import when


def write_events(folder: Path, *lines: tuple[int, float, str, Obj]) -> None:
    """Write events of slice 0's hosts: (host, seconds after the creation, event, other fields)."""
    (folder / "events").mkdir()
    for host, seconds, name, more in lines:
        line = {"time": when(NOW).timestamp() + seconds, "event": name, "slice": 0, "host": host, "attempt": 0, **more}
        with (folder / "events" / f"s0-h{host}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
