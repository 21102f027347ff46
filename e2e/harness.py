"""What the demo and the benches share: a private place for clusters, the `xpk` command, a run to follow.

Standard library only. Everything is done by `xpk` commands as a user would type them, and everything that
is known of a run is read from its own files and from `xpk workload describe`.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_POLL_SECONDS = 0.2
_DESCRIBE_SECONDS = 4.0  # each look costs a process; the machine is busy training


class DrillError(Exception):
    """The drill cannot go on; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """A private place: its own state and settings, so that the user's clusters are not touched.

    `say` prints a line for people; every command is shown to it before it runs.
    """

    folder: Path
    cluster: str
    say: Callable[[str], None]

    def prepare(self) -> None:
        """End what an interrupted drill left behind and begin with an empty folder.

        Raises DrillError for a folder with content that is not a drill's: nobody else's files are removed.
        """
        marker = self.folder / ".drill"
        if marker.exists():
            self.xpk("cluster", "delete", self.cluster, "--provider", "local", "--force", "--ignore-not-found")
            shutil.rmtree(self.folder)
        elif self.folder.exists() and any(self.folder.iterdir()):
            raise DrillError(f"{self.folder} is not empty and was not made by a drill; choose another folder")
        self.folder.mkdir(parents=True, exist_ok=True)
        marker.touch()

    def create_cluster(self, tpu_type: str, num_slices: int) -> None:
        """Create the cluster of local slices."""
        wanted = ("--provider", "local", "--tpu-type", tpu_type, "--num-slices", str(num_slices))
        self.xpk("cluster", "create", self.cluster, *wanted)

    def create_workload(self, name: str, *, num_slices: int, max_restarts: int, trainer: list[str]) -> Workload:
        """Start the bundled trainer."""
        size = ("--num-slices", str(num_slices), "--max-restarts", str(max_restarts))
        self.xpk("workload", "create", name, "--cluster", self.cluster, *size, "--", *trainer)
        return Workload(self, name)

    def delete_cluster(self) -> None:
        """End everything on the cluster and remove it."""
        self.xpk("cluster", "delete", self.cluster, "--yes", "--force", "--ignore-not-found")

    def xpk(self, *arguments: str, show: bool = True, capture: bool = False, timeout: float = 600) -> str:
        """Run an `xpk` command; return its stdout if `capture`. Raises DrillError if it fails.

        What it says goes to stderr, so that the last line of our own stdout stays ours.
        """
        if show:
            self.say(f"$ xpk {shlex.join(arguments)}")
        try:
            done = subprocess.run(
                [_xpk(), *arguments],
                env=self._environ(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if capture else sys.stderr,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise DrillError(f"`xpk {shlex.join(arguments)}` did not end within {timeout:.0f} s") from None
        if done.returncode != 0:
            raise DrillError(f"`xpk {shlex.join(arguments)}` ended with exit code {done.returncode}")
        return done.stdout or ""

    def _environ(self) -> dict[str, str]:
        ours = {"XPK_STATE_DIR": str(self.folder / "state"), "XPK_CONFIG_DIR": str(self.folder / "config")}
        # A cluster or an output format that the user has chosen for all commands is not meant for these.
        return {key: value for key, value in os.environ.items() if not key.startswith("XPK_")} | ours


@dataclass(slots=True)
class Workload:
    """A running workload: its state as `xpk` tells it, its progress as its files tell it."""

    lab: Lab
    name: str
    steps: list[dict[str, Any]] = field(default_factory=list)
    evals: list[dict[str, Any]] = field(default_factory=list)
    _folder: Path | None = None
    _read_to: int = 0
    _looked: float = 0.0

    @property
    def folder(self) -> Path:
        """The run's output folder."""
        if self._folder is None:
            self._folder = Path(self.describe()["output_dir"])
        return self._folder

    def describe(self) -> dict[str, Any]:
        """Return what `xpk workload describe -o json` prints."""
        asked = ("workload", "describe", self.name, "--cluster", self.lab.cluster, "-o", "json")
        described: dict[str, Any] = json.loads(self.lab.xpk(*asked, show=False, capture=True))
        return described

    def host(self, slice_id: int, host: int) -> dict[str, Any]:
        """Return one host's state. Raises DrillError if it is not running."""
        for one in self.describe()["hosts"]:
            if (one["slice"], one["host"]) == (slice_id, host) and one["pid"]:
                return dict(one)
        raise DrillError(f"slice {slice_id} host {host} is not running")

    def end_host(self, slice_id: int, host: int, number: signal.Signals = signal.SIGKILL) -> float:
        """Send a signal to a host's process; return when, in Unix seconds."""
        pid = int(self.host(slice_id, host)["pid"])
        at = time.time()
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            raise DrillError(f"slice {slice_id} host {host} ended before it was ended") from None
        return at

    def read(self) -> int:
        """Read what metrics.jsonl has gained; return how many lines."""
        try:
            with (self.folder / "metrics.jsonl").open("rb") as file:
                file.seek(self._read_to)
                content = file.read()
        except FileNotFoundError:
            return 0
        whole = content[: content.rfind(b"\n") + 1]  # a line may be only half there
        self._read_to += len(whole)
        lines = [line for line in map(_object, whole.splitlines()) if line]
        self.steps += [line for line in lines if "loss" in line]
        self.evals += [line for line in lines if "eval_loss" in line]
        return len(lines)

    def saved(self, attempt: int = 0) -> int:
        """Return the newest step that a checkpoint was committed of in an attempt or before; 0 for none."""
        newest = 0
        for line in self._events():
            if line.get("event") == "save" and line.get("attempt", 0) <= attempt:
                newest = max(newest, line.get("step") or 0)
        return newest

    def follow(self, until: Callable[[], bool], timeout: float) -> Iterator[dict[str, Any] | None]:
        """Read on until `until()`; yield at each turn, now and then with a fresh description.

        Raises DrillError when the workload fails meanwhile, or after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            self.read()
            if until():
                return
            if time.monotonic() > deadline:
                raise DrillError(f"nothing came of '{self.name}' within {timeout:.0f} s")
            description = None
            if time.monotonic() - self._looked > _DESCRIBE_SECONDS:
                description, self._looked = self.describe(), time.monotonic()
                if description["phase"] == "Failed":
                    raise DrillError(f"'{self.name}' failed: {description['reason']}")
            yield description
            time.sleep(_POLL_SECONDS)

    def await_(self, until: Callable[[], bool], timeout: float) -> None:
        """Read on until `until()`, saying nothing."""
        for _ in self.follow(until, timeout):
            pass

    def _events(self) -> Iterator[dict[str, Any]]:
        for path in sorted((self.folder / "events").glob("*.jsonl")):
            yield from filter(None, map(_object, path.read_bytes().splitlines()))


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        parsed = json.loads(line)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _xpk() -> str:
    beside = Path(sys.executable).with_name("xpk")
    found = str(beside) if beside.exists() else shutil.which("xpk")
    if not found:
        raise DrillError("there is no `xpk` command; run `pip install -e '.[trainer]'` first")
    return found
