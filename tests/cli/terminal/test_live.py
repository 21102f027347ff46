"""Progress output: the bar, its text, and waiting with and without a terminal."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.cli.conftest import Xpk
from tests.cli.terminal.pseudo_terminal import on_terminal
from xpk.cli.terminal.live import progress_bar, progress_words
from xpk.cli.terminal.output import duration
from xpk.jobs.output.folder import Progress

FULL = Progress(75, 3.28421, 1.4, 0, 150, 2099.6, "tokens/s", 105.0)
# The first host of the first slice writes the trainer's records; before its last step it waits for the file `go`.
PROGRAM = """
import json, os, time
if (os.environ["TPU_WORKER_ID"], os.environ["MEGASCALE_SLICE_ID"]) != ("0", "0"):
    raise SystemExit(time.sleep(0.1))
os.makedirs(os.environ["XPK_OUTPUT_DIR"], exist_ok=True)
with open(os.environ["XPK_OUTPUT_DIR"] + "/metrics.jsonl", "a") as file:
    for step in range(1, STEPS + 1):
        row = {"time": time.time(), "attempt": 0, "step": step, "total_steps": STEPS, "loss": 9 / step}
        while step == STEPS and not os.path.exists(GO):
            time.sleep(0.05)
        print(json.dumps(row | {"step_seconds": 0.2, "tokens_per_second": 1234.5}), file=file, flush=True)
"""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0s"), (59.4, "59s"), (59.6, "1m00s"), (190, "3m10s"), (7500, "2h05m"), (273600, "3d04h")],
)
def test_times_have_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_progress_messages() -> None:
    words = "step 75 of 150, loss 3.2842, 1.4 s a step, 2,100 tokens/s, ETA 1m45s"
    assert ", ".join(progress_words(FULL)) == words
    assert progress_words(Progress(5, None)) == ["step 5", "loss not finite"]


@pytest.mark.parametrize("width", [30, 40, 60, 79, 100, 140])
def test_a_progress_bar_fits_and_keeps_the_most_important_parts(width: int) -> None:
    line = click.unstyle(progress_bar(FULL, width, losses=[3.0, 2.0, 1.0] * 20))
    assert len(line) <= width and "step 75/150" in line
    assert 0 <= line.count("╌") - line.count("━") <= 1 and "━" in line
    assert ("ETA 1m45s" in line) is (width >= 60) and ("tokens/s" in line) is (width >= 79)
    assert bool(re.search("[▁-█]", line)) is (width >= 140)


def test_a_note_replaces_the_rates() -> None:
    line = click.unstyle(progress_bar(FULL, 79, "Restarting: 2 of 4 hosts running"))
    assert line.endswith("step 75/150  loss 3.2842  Restarting: 2 of 4 hosts running")


def start(dev: Xpk, folder: Path, steps: int) -> None:
    """Create the workload `run` of the program above."""
    program = PROGRAM.replace("STEPS", str(steps)).replace("GO", repr(str(folder / "go")))
    (folder / "train.py").write_text(program)
    assert dev("workload", "create", "run", "--command", f"{sys.executable} {folder}/train.py").code == 0


def test_wait_draws_a_bar_on_a_terminal(dev: Xpk, tmp_path: Path) -> None:
    start(dev, tmp_path, 10)

    def finish(_: object, seen: str) -> bool:
        if "step 9/10" in seen:
            (tmp_path / "go").touch()
        return "step 9/10" in seen

    code, seen = on_terminal("workload", "wait", "run", do=finish)
    assert code == 0
    last = [click.unstyle(line) for line in re.split(r"[\r\n]+", seen) if "step 10/10" in line][-1]
    assert "━" * 8 in last and "loss 0.9000" in last and "1,234 tokens/s" in last and len(last) < 80
    assert click.unstyle(seen).splitlines()[-1] == " ✓ run: Succeeded, all hosts finished"


def test_interrupted_wait_says_that_the_workload_continues(dev: Xpk, tmp_path: Path) -> None:
    start(dev, tmp_path, 3)

    def interrupt(running: subprocess.Popen[bytes], seen: str) -> bool:
        if "step 2/3" in seen:
            running.send_signal(signal.SIGINT)
            return True
        return False

    code, seen = on_terminal("workload", "wait", "run", do=interrupt)
    assert code == 130
    assert re.search(r"stopped waiting; workload 'run' continues \(Running, step 2 of 3\)", seen)
    assert "xpk workload wait run --cluster dev" in seen


def test_without_a_terminal_progress_is_plain_lines(dev: Xpk, tmp_path: Path) -> None:
    start(dev, tmp_path, 5)
    argv = [sys.executable, "-m", "xpk", "workload", "wait", "run", "--timeout", "60"]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr
        message = ""
        while "run: Running" not in message:
            line = waiting.stderr.readline()
            assert line, message
            message += line
        (tmp_path / "go").touch()
        message += waiting.stderr.read()
    assert waiting.returncode == 0
    assert " • run: step 5 of 5, loss 1.8000, 0.2 s a step, 1,234 tokens/s" in message.splitlines()
    assert "\x1b" not in message and "\r" not in message
