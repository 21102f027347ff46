"""Surviving processes against standbys: time from the death of a process of a JAX job until all compute again.

    python -m bench.reform [--rounds 20] [--output bench/results/reform-<date>.json]

Four processes with four emulated chips each compute with collectives. One of them is killed, again and again. In turn,
the others leave the dead group and join a new one in the same process, or are ended and replaced by idle processes
that have imported JAX. See docs/adr/0011-no-re-form-in-the-same-process.md. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from e2e.machine import machine
from tests.ports import free_port

PROCESSES, SEED = 4, 1
LEAVE_SECONDS = 5.0  # a process that has not left by then has not left
_SECONDS = 120.0
_MEMBER = Path(__file__).with_name("reform_member.py")
_SERVICE = """
import sys
from jaxlib import _jax
service = None
for line in sys.stdin:
    if service:
        service.shutdown()
    service = _jax.get_distributed_runtime_service(line.strip(), PROCESSES, shutdown_timeout=2, recoverable=True)
    print("listens", flush=True)
""".replace("PROCESSES", str(PROCESSES))
_ENVIRON = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "4", "TF_CPP_MIN_LOG_LEVEL": "3"}


class StuckError(Exception):
    """A process has ended, or does not answer in time."""


class Member:
    """A process of the job, or one that stands by to become one."""

    def __init__(self, program: Path) -> None:
        own, its = os.pipe()
        argv = [sys.executable, str(_MEMBER), str(its), str(program)]
        quiet = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(argv, env=os.environ | _ENVIRON, pass_fds=(its,), **quiet)  # type: ignore[call-overload]
        os.close(its)
        self._answers = os.fdopen(own, "rb", 0)
        self.usage: dict[str, int] = {}

    def order(self, *words: object) -> None:
        """Send an order."""
        self._process.stdin.write(" ".join(map(str, words)).encode() + b"\n")
        self._process.stdin.flush()

    def hear(self, what: str, seconds: float = _SECONDS) -> float:
        """Return the time of an answer. Raises StuckError."""
        if not select.select([self._answers], [], [], seconds)[0] or not (line := self._answers.readline()):
            raise StuckError(what)
        answer = json.loads(line)
        if answer["what"] != what:
            raise StuckError(f"{answer} in place of {what}")
        self.usage = answer["usage"]
        return float(answer["time"])

    def kill(self) -> float:
        """Kill the process; return when, in Unix seconds."""
        at = time.time()
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._answers.close()
        return at


@dataclass(slots=True)
class Round:
    """One death: which way, and seconds from it until the last process has passed each mark."""

    way: str
    victim: int
    seconds: dict[str, float] = field(default_factory=dict)
    stuck: int = 0  # processes that did not leave
    usage: list[dict[str, int]] = field(default_factory=list)


class Job:
    """The job, its coordination service in a process of its own, and its standbys."""

    def __init__(self, folder: Path) -> None:
        self._program = folder / "program.bin"
        self._service = subprocess.Popen(
            [sys.executable, "-c", _SERVICE], env=os.environ | _ENVIRON, text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.members = self._standbys()
        self.start()

    def _standbys(self, count: int = PROCESSES) -> list[Member]:
        members = [Member(self._program) for _ in range(count)]
        for member in members:
            member.hear("ready")
        return members

    def start(self) -> dict[str, float]:
        """Form a group of all members; return when the last one has passed each mark."""
        assert self._service.stdin and self._service.stdout
        address = f"127.0.0.1:{free_port()}"
        self._service.stdin.write(f"{address}\n")
        self._service.stdout.readline()
        for number, member in enumerate(self.members):
            member.order("join", address, PROCESSES, number)
        return {mark: max(member.hear(mark) for member in self.members) for mark in ("initialized", "loaded", "step")}

    def kill(self, way: str, victim: int) -> Round:
        """Kill one member and let the job continue in one of both ways."""
        round_ = Round(way, victim)
        standbys = self._standbys(PROCESSES if way == "standbys" else 1)
        time.sleep(random.uniform(0.2, 0.5))
        at = self.members[victim].kill()
        if way == "standbys":
            for number, member in enumerate(self.members):
                if number != victim:
                    member.kill()
            self.members = standbys
            round_.seconds["ended"] = time.time() - at
        else:
            self._leave(round_, victim, standbys, at)
        round_.seconds |= {mark: done - at for mark, done in self.start().items()}
        round_.usage = [member.usage for member in self.members]
        return round_

    def _leave(self, round_: Round, victim: int, standbys: list[Member], at: float) -> None:
        survivors = [number for number in range(PROCESSES) if number != victim]
        for number in survivors:
            self.members[number].order("leave")
        left, deadline = [], time.monotonic() + LEAVE_SECONDS
        for number in survivors:
            try:
                left.append(self.members[number].hear("left", max(0.0, deadline - time.monotonic())))
            except StuckError:
                round_.stuck += 1
                self.members[number].kill()
                self.members[number] = Member(self._program)
                self.members[number].hear("ready")
        self.members[victim] = standbys[0]
        if not round_.stuck:
            round_.seconds["left"] = max(left) - at

    def end(self) -> None:
        """Kill all processes."""
        for member in self.members:
            member.kill()
        self._service.kill()
        self._service.wait()


def table(rounds: Sequence[Round]) -> str:
    """Return a Markdown table: seconds from the death, median and range, over the rounds in which nothing was stuck."""
    ways = sorted({each.way for each in rounds})
    lines = [f"| seconds from the death | {' | '.join(ways)} |", f"| --- |{' ---: |' * len(ways)}"]
    for mark in ("left", "ended", "initialized", "loaded", "step"):
        cells = []
        for way in ways:
            times = [e.seconds[mark] for e in rounds if e.way == way and not e.stuck and mark in e.seconds]
            cells.append(f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})" if times else "–")
        lines.append(f"| {mark} | {' | '.join(cells)} |")
    counts = [[e for e in rounds if e.way == way] for way in ways]
    stuck = [f"{sum(e.stuck for e in mine)} of {(PROCESSES - 1) * len(mine)}" for mine in counts]
    return "\n".join([*lines, f"| processes that did not leave or end | {' | '.join(stuck)} |"])


def main() -> int:
    """Run the rounds, print the table, write the file; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="deaths of each way [default: 20]")
    today = datetime.now(UTC).date().isoformat()
    parser.add_argument("--output", type=Path, default=Path(f"bench/results/reform-{today}.json"))
    options = parser.parse_args()
    random.seed(SEED)
    rounds: list[Round] = []
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder))
        try:
            for number in range(2 * options.rounds):
                way = ("survivors", "standbys")[number % 2]
                rounds.append(job.kill(way, random.randrange(PROCESSES)))
                done = {mark: round(seconds, 2) for mark, seconds in rounds[-1].seconds.items()}
                print(f"{number + 1:3} {way}: {done}", file=sys.stderr, flush=True)
        finally:
            job.end()
    print(table(rounds))
    document: dict[str, Any] = {"date": today, "machine": machine(), "processes": PROCESSES}
    document["rounds"] = [asdict(each) for each in rounds]
    options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
