"""`xpk top` and `xpk serve`."""

from __future__ import annotations

import os
import pty
import re
import select
import socket
import subprocess
import sys
import time
from http.client import HTTPConnection
from pathlib import Path

from tests.cli.conftest import Xpk
from tests.cli.conftest import dev as dev
from tests.cli.conftest import state as state
from tests.cli.conftest import xpk as xpk
from tests.jobs.report.runs import RunWriter
from tests.waiting import until


def submit(run: Xpk, name: str) -> None:
    """Create a workload of one slice that only waits, with the output of a trainer."""
    assert run("workload", "create", name, "--command", "sleep 600").code == 0
    until(lambda: run("workload", "status", name, "-o", "json").data["phase"] == "Running", seconds=60)
    folder = Path(run("workload", "status", name, "-o", "json").data["output_dir"])
    writer = RunWriter(folder, slices=1, hosts=2, now=time.time() - 60)
    writer.train(0, 30)
    writer.write()


def test_top_shows_runs_and_queues(dev: Xpk) -> None:
    submit(dev, "lm")
    dev("workload", "create", "waits", "--num-slices", "2", "--command", "true")
    until(lambda: "1. waits" in dev("top").out)
    out = dev("top").out
    assert re.search(r"^lm +Running +30 +\d\.\d+ +0\.5s +\d+\.\d% +0 +2/2", out, re.MULTILINE), out
    assert re.search(r"1\. waits in (?:23h5\dm|1d00h) \(", out), out
    assert "dev: 1 Queued, 1 Running" in out and "1/2 v5litepod-8" in out
    (cluster,) = dev("top", "-o", "json").data
    assert cluster["problem"] == "" and {run["status"]["name"] for run in cluster["runs"]} == {"lm", "waits"}
    starts = {run["status"]["name"]: run["status"]["start"] for run in cluster["runs"]}
    assert starts["lm"] is None and starts["waits"]["rests_on"]
    assert dev("top", "-o", "name").out.splitlines() == [run["status"]["name"] for run in cluster["runs"]]


def test_top_in_a_terminal_ends_with_q(dev: Xpk, state: Path) -> None:
    terminal, inside = pty.openpty()
    shown = b""

    def read(text: bytes) -> bool:
        nonlocal shown
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                shown += os.read(terminal, 65536)
            except OSError:  # the other end is closed
                return True
        return text in shown

    command = [sys.executable, "-m", "xpk", "top"]
    with subprocess.Popen(command, stdin=inside, stdout=inside, stderr=inside) as process:
        until(lambda: read(b"q quits"))
        os.write(terminal, b"xq")
        until(lambda: read(b"\x1b[?25h"))  # the cursor is shown again
    assert process.returncode == 0
    os.close(terminal)
    os.close(inside)


def test_unknown_clusters_are_refused(dev: Xpk) -> None:
    for command in ("top", "serve"):
        outcome = dev(command, "--cluster", "dex")
        assert outcome.code == 3 and "cluster 'dex' not found" in outcome.err and "dev" in outcome.err


def test_serve_refuses_a_port_in_use(dev: Xpk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        outcome = dev("serve", "--port", port)
    assert outcome.code == 2 and f"cannot listen on 127.0.0.1:{port}: Address already in use" in outcome.err
    assert "token" not in outcome.out


def test_serve_prints_an_address_that_opens_the_console_and_ends_with_ctrl_c(dev: Xpk, state: Path) -> None:
    command = [sys.executable, "-u", "-m", "xpk", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stderr
        match = re.fullmatch(r"http://127\.0\.0\.1:(\d+)(/\?token=[\w-]{43})\n", process.stdout.readline())
        assert match
        connection = HTTPConnection("127.0.0.1", int(match[1]), timeout=10)
        connection.request("GET", match[2])
        answer = connection.getresponse()
        assert answer.status == 303 and answer.getheader("Set-Cookie", "").startswith(f"xpk-console-{match[1]}=")
        connection.close()
        assert "token=" in process.stdout.readline()
        process.send_signal(2)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Serving dev; Ctrl-C stops" in errors and "token" not in errors and "Traceback" not in errors
