"""Records of a step."""

import json
import math
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.small import SETTINGS
from trainer import config
from trainer.errors import ExitCode, FatalError
from trainer.hosts.bootstrap import Host
from trainer.hosts.job import Job
from trainer.hosts.lease import Lease
from trainer.hosts.peers import Peers
from trainer.hosts.signals import Stop
from trainer.hosts.stop_step import StopStep
from trainer.hosts.time_limits import TimeLimits
from trainer.hosts.watchdog import Watchdog
from trainer.observe.step_log import Progress
from trainer.storage import open_place
from trainer.telemetry import metrics
from trainer.telemetry.metrics import Events, JsonLines


def ignore(code: ExitCode) -> None:
    """Do nothing."""


class Number:
    """A number of a step that ends `seconds` from now."""

    def __init__(self, value: Any, seconds: float) -> None:
        self.value, self.end, self.ended_at = np.asarray(value), threading.Event(), math.nan
        threading.Timer(seconds, self._finish).start()

    def _finish(self) -> None:
        self.ended_at = time.monotonic()
        self.end.set()

    def block_until_ready(self) -> "Number":
        """Wait like an array of JAX."""
        self.end.wait()
        return self

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.end.wait()
        return self.value


def progress_of(folder: Path, *settings: str) -> Progress:
    """Return the progress of a job of one host; step S has the records 10 S to 10 S + 9 and one of padding."""
    events = Events(JsonLines(open_place(folder) / "events.jsonl"), 0, 0, 0, time.monotonic())
    peers = Peers(0, 1, on_lost=lambda peer: None, on_message=lambda what, by: None)
    out = open_place(folder)
    chosen = config.load("tiny", [*SETTINGS, "observe.hang_seconds=0", *settings])
    watchdog = Watchdog(
        Host(), TimeLimits(chosen), events, out, peers.broadcast, peers.reply, lambda code, seconds: None
    )
    lease = Lease(out, Host(), lambda holder, code: None)
    job = Job(chosen, Host(), out, lease, events, peers, Stop(ignore, ignore), StopStep(peers, lambda: None), watchdog)
    names = ("params.a", "params.b", "params.c", "opt.a")
    return Progress(job, 8, 1, lambda step: np.append(10 * step + np.arange(10), -1), arrays=names)


def out_of(loss: Any, grad_norm: float = 1.0) -> dict[str, Any]:
    """Return the outputs of a step."""
    return {
        "loss": loss,
        "grad_norm": np.float32(grad_norm),
        "learning_rate": np.float32(1),
        "flags": np.zeros(2, np.int32),
    }


def test_step_times_do_not_depend_on_when_they_are_read(tmp_path: Path) -> None:
    progress, now = progress_of(tmp_path), time.monotonic()
    numbers = [Number(1.0, seconds) for seconds in (0.3, 0.6, 0.9)]
    begun = [progress.watch(step, out_of(number), now) for step, number in enumerate(numbers, 1)]
    time.sleep(1.2)  # like dispatching the next step
    for pending in begun:
        progress.finish(pending)
    record_step = [json.loads(line)["step_seconds"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    expected = [late - early for early, late in pairwise([now, *(number.ended_at for number in numbers)])]
    assert record_step == pytest.approx(expected, abs=0.28), "not 1.2 s and twice nothing"


@pytest.mark.parametrize(
    ("loss", "grad_norm", "words"),
    [
        (math.nan, 1.0, "the loss of step 3 is nan"),
        (2.5, math.inf, "the norm of the gradient of step 3 is inf"),
        (math.inf, math.nan, "the loss of step 3 is inf and the norm of the gradient of step 3 is nan"),
    ],
)
def test_a_nonfinite_step_ends_the_run_and_names_its_records(
    loss: float, grad_norm: float, words: str, tmp_path: Path
) -> None:
    progress = progress_of(tmp_path)
    pending = progress.watch(3, out_of(Number(loss, 0.0), grad_norm), time.monotonic())
    with pytest.raises(FatalError) as raised:
        progress.finish(pending)
    expected = f"{words}; its records are 30, 31, 32, 33, 34, 35, 36, 37 and 2 more, listed in the event not_finite"
    assert str(raised.value) == expected
    message = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    (event,) = [event for event in message if event["event"] == "not_finite"]
    assert (event["step"], event["records"]) == (3, list(range(30, 40)))
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    written = json.loads(line, parse_constant=pytest.fail)
    assert (written["loss"], written["loss_hex"]) == (loss if math.isfinite(loss) else None, loss.hex())
    assert written["grad_norm"] == (grad_norm if math.isfinite(grad_norm) else None)
    assert metrics.losses(line.encode()) == {3: written["loss"]}
    record_evaluation = progress_of(tmp_path / "evaluated")
    record_evaluation.record_evaluation(3, math.nan, None, 8, 0.1)
    for file in ("metrics.jsonl", "events.jsonl"):
        for line in (tmp_path / "evaluated" / file).read_text().splitlines():
            json.loads(line, parse_constant=pytest.fail)


@pytest.mark.parametrize("due", [True, False])
def test_a_nonfinite_state_ends_the_run_and_names_its_arrays(due: bool, tmp_path: Path) -> None:
    progress = progress_of(tmp_path)
    for broken, named in (((0, 1, 0, 0), "params.b"), ((1, 1, 0, 1), "params.a, params.b and 1 more")):
        with pytest.raises(FatalError) as raised:
            if due:
                out = out_of(Number(2.5, 0.0)) | {"broken": np.array(broken, bool)}
                progress.finish(progress.watch(3, out, time.monotonic()))
            else:
                progress.require(3, np.array(broken, bool))
        assert str(raised.value).startswith(f"after step 3 the state is not finite ({named}); its records are 30, 31,")
    progress.require(3, np.zeros(4, bool))
    message = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    arrays = [event["arrays"] for event in message if event["event"] == "not_finite"]
    assert arrays == [["params.b"], ["params.a", "params.b", "opt.a"]]
