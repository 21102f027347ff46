"""What is recorded of a step."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.small import SETTINGS
from trainer import config
from trainer.distributed import Host
from trainer.errors import ExitCode
from trainer.job import Job
from trainer.metrics import Events, JsonLines
from trainer.peers import Peers
from trainer.places import open_place
from trainer.progress import Progress
from trainer.stop import Stop


def ignore(code: ExitCode) -> None:
    """Do nothing."""


class Number:
    """A number of a step that ends `seconds` from now."""

    def __init__(self, value: Any, seconds: float) -> None:
        self.value, self.end = np.asarray(value), threading.Event()
        threading.Timer(seconds, self.end.set).start()

    def block_until_ready(self) -> "Number":
        """Wait as an array of JAX does."""
        self.end.wait()
        return self

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.end.wait()
        return self.value


def test_a_step_takes_its_own_time_however_late_it_is_looked_at(tmp_path: Path) -> None:
    out = open_place(tmp_path)
    events = Events(JsonLines(out / "events.jsonl"), 0, 0, 0, time.monotonic())
    peers = Peers(0, 1, on_lost=lambda peer: None, on_told=lambda what, by: None)
    job = Job(config.load("tiny", SETTINGS), Host(), out, events, peers, Stop(ignore, ignore))
    progress, now = Progress(job, 8, 1), time.monotonic()
    outs = [
        {
            "loss": Number(1.0, seconds),
            "grad_norm": np.float32(1),
            "learning_rate": np.float32(1),
            "flags": np.zeros(2, np.int32),
        }
        for seconds in (0.3, 0.6, 0.9)
    ]
    begun = [progress.began(step, out, now) for step, out in enumerate(outs, 1)]
    time.sleep(1.2)  # as dispatching the next step may take
    for pending in begun:
        progress.finish(pending)
    took = [json.loads(line)["step_seconds"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert took == pytest.approx([0.3] * 3, abs=0.15)
