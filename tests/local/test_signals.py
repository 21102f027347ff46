"""Signals of hosts: they begin with the defaults, as in a container, and are asked to end once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.waiting import until
from xpk.local import process, shim

COUNTING = (
    "import signal, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True))\n"
    "signal.signal(signal.SIGUSR2, lambda *_: print('seen', flush=True))\n"
    "print('up', flush=True)\n"
    "while True: time.sleep(60)\n"
)


def launch(folder: Path, command: list[str]) -> subprocess.Popen[bytes]:
    spec = {"command": command, "environment": dict(os.environ), "folder": "/"}
    return process.launch(folder, spec, folder.parent / "bell")


def output(folder: Path) -> list[str]:
    return [line.split(" ", 3)[3] for line in (folder / "log").read_text().splitlines()]


def test_a_host_ignores_and_blocks_no_signal(tmp_path: Path) -> None:
    """The daemon ignores SIGINT, and the shell that started it may ignore others: both would be inherited."""
    folder = tmp_path / "pod"
    folder.mkdir()
    spec = {"command": ["grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status"], "environment": dict(os.environ)}
    shim.write(str(folder), "spec.json", {**spec, "folder": "/", "bell": ""})
    start = (
        "import os, signal, sys\n"
        "for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT): signal.signal(number, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])\n"
        "os.execv(sys.executable, [sys.executable, '-S', '-E', '-s', *sys.argv[1:]])\n"
    )
    subprocess.run([sys.executable, "-c", start, shim.__file__, str(folder)], check=True)
    of_the_library = 0b11 << 31  # signals 32 and 33, which no program can change; a thread may pass them on blocked
    assert [int(line.split()[1], 16) & ~of_the_library for line in output(folder)] == [0, 0]


def test_a_host_is_asked_to_end_once(tmp_path: Path) -> None:
    """The daemon may be killed before it has recorded that it did; a second SIGTERM ends a trainer without a save."""
    folder = tmp_path / "pod"
    supervisor = launch(folder, [sys.executable, "-S", "-c", COUNTING])
    until(lambda: (folder / "log").exists() and output(folder) == ["up"])
    host = process.observe(folder).facts["pid"]
    assert process.tell(folder / "lock", signal.SIGTERM)
    until(lambda: output(folder) == ["up", "asked"])
    assert process.tell(folder / "lock", signal.SIGTERM)
    for number in range(1, 4):  # the supervisor has copied the first one's output after it got the signal
        os.kill(host, signal.SIGUSR2)
        until(lambda seen=number: output(folder).count("seen") == seen)  # type: ignore[misc]
    assert process.tell(folder / "lock", signal.SIGUSR1)
    assert supervisor.wait(30) == 0
    assert output(folder).count("asked") == 1
