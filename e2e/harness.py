"""Tools of the demo, the drills and the benches: a private place for clusters, the `xpk` command, a run to follow.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

_POLL_SECONDS = 0.2
_LARGEST = 4 << 20  # bytes of a file to collect after a failure
_DESCRIBE_SECONDS = 4.0  # each poll costs a process while the machine is busy training
_RARELY_SECONDS = 30.0

# Option of a drill that is not about chips. The kernel's work for collectives of four emulated chips per host, between
# processes on a few cores, takes two thirds of the time of its steps.
ONE_CHIP = ("--env", "JAX_NUM_CPU_DEVICES=1")


class DrillError(Exception):
    """A drill that cannot continue; the message gives the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """A private environment with its own state and settings, so that the user's clusters are not changed.

    `say` prints a line; every command is printed before it runs.
    """

    folder: Path
    cluster: str
    say: Callable[[str], None]
    provider: ClassVar[str] = "local"

    def prepare(self) -> None:
        """End remains of an interrupted drill and start with an empty folder.

        Raises DrillError for a folder with other content, which is not removed.
        """
        marker = self.folder / ".drill"
        if marker.exists():
            self.xpk("cluster", "delete", self.cluster, "--provider", self.provider, "--force", "--ignore-not-found")
            shutil.rmtree(self.folder)
        elif self.folder.exists() and any(self.folder.iterdir()):
            raise DrillError(f"{self.folder} is not empty and was not made by a drill; choose another folder")
        self.folder.mkdir(parents=True, exist_ok=True)
        marker.touch()

    def create_cluster(self, tpu_type: str, num_slices: int) -> None:
        """Create the cluster of local slices."""
        options = ("--provider", self.provider, "--tpu-type", tpu_type, "--num-slices", str(num_slices))
        self.xpk("cluster", "create", self.cluster, *options)

    def create_workload(
        self, name: str, *, num_slices: int, max_restarts: int, trainer: list[str], options: Sequence[str] = ()
    ) -> Workload:
        """Start the bundled trainer; the applied objects are kept in `manifests`."""
        size = {"num_slices": num_slices, "max_restarts": max_restarts}
        self.xpk(*self.create_arguments(name, **size, trainer=trainer, options=options))
        return Workload(self, name)

    def create_arguments(
        self, name: str, *, num_slices: int, max_restarts: int, trainer: Sequence[str], options: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Return the arguments of `xpk` that start the bundled trainer, or a command of `options`."""
        self.manifests.mkdir(exist_ok=True)
        size = ("--num-slices", str(num_slices), "--max-restarts", str(max_restarts))
        kept = ("--output-manifest-file", str(self.manifests / f"{name}.yaml"))
        arguments = ("--", *trainer) if trainer else ()
        return ("workload", "create", name, "--cluster", self.cluster, *size, *kept, *options, *arguments)

    @property
    def manifests(self) -> Path:
        """Return the folder of the manifests of its workloads."""
        return self.folder / "manifests"

    def kill(self, host: Mapping[str, Any], number: signal.Signals) -> None:
        """Send a signal to a running host, as Kubernetes would. Raises ProcessLookupError if it has ended."""
        os.kill(int(host["pid"]), number)

    def kill_program(self, host: Mapping[str, Any], pid: int, number: signal.Signals) -> float:
        """Send a signal to the program of a host by its own pid; return the time in Unix seconds.

        Raises ProcessLookupError if it has ended.
        """
        own = self.pid_here(host, pid)
        at = time.time()
        os.kill(own, number)
        return at

    def pid_here(self, host: Mapping[str, Any], pid: int) -> int:
        """Return the number on this machine of a host's process with a pid of its own.

        Raises ProcessLookupError if it has ended.
        """
        return pid

    def delete_cluster(self) -> None:
        """End everything on the cluster and delete it."""
        self.xpk("cluster", "delete", self.cluster, "--yes", "--force", "--ignore-not-found")

    def xpk(self, *arguments: str, show: bool = True, capture: bool = False, timeout: float = 600) -> str:
        """Run an `xpk` command; return its stdout if `capture`. Raises DrillError if it fails.

        Its messages go to stderr, so that the last line of our own stdout is ours.
        """
        if show:
            self.say(f"$ xpk {shlex.join(arguments)}")
        try:
            done = subprocess.run(
                [_xpk(), *arguments],
                env=self.environ,
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

    def processes(self) -> list[int]:
        """Return every process of the cluster on this machine: hosts, their supervisors, the control plane."""
        processes = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) != os.getpid():
                try:
                    command = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
                except OSError:
                    continue
                if f"{self.folder}/state/clusters/".encode() in command:
                    processes.append(int(folder.name))
        return processes

    def collect(self, into: Path) -> None:
        """Copy diagnostics of a failure into a folder: manifests, hosts' output, and the cluster's state."""
        into.mkdir(parents=True, exist_ok=True)
        for folder in (self.manifests, self.folder / "state"):
            if folder.exists():
                # Hosts' output and logs without large files: data sets, checkpoints, stores.
                shutil.copytree(folder, into / folder.name, dirs_exist_ok=True, ignore=_bulk, symlinks=True)

    @property
    def environ(self) -> dict[str, str]:
        """Return the environment of its commands."""
        ours = {"XPK_STATE_DIR": str(self.folder / "state"), "XPK_CONFIG_DIR": str(self.folder / "config")}
        # The user's own settings for all commands, such as a cluster or output format, must not apply here.
        return {key: value for key, value in os.environ.items() if not key.startswith("XPK_")} | ours


@dataclass(slots=True)
class Lines:
    """JSON lines of a growing file."""

    path: Path
    _read_to: int = 0

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the complete lines that were added; a line truncated by a kill is ignored."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read_to)
                content = file.read()
        except FileNotFoundError:
            return
        whole = content[: content.rfind(b"\n") + 1]
        self._read_to += len(whole)
        yield from filter(None, map(_object, whole.splitlines()))


@dataclass(slots=True)
class Workload:
    """A running workload: its state from `xpk`, its progress from its files."""

    lab: Lab
    name: str
    steps: list[dict[str, Any]] = field(default_factory=list)
    evals: list[dict[str, Any]] = field(default_factory=list)
    _folder: Path | None = None
    _metrics: Lines | None = None
    _looked: float = 0.0

    @property
    def folder(self) -> Path:
        """The run's output folder."""
        if self._folder is None:
            self._folder = Path(self.describe()["output_dir"])
        return self._folder

    def use_folder(self, folder: Path) -> None:
        """Read the output from a folder, which may be a copy of the output in a bucket."""
        self._folder = folder

    def describe(self) -> dict[str, Any]:
        """Return the output of `xpk workload describe -o json`."""
        asked = ("workload", "describe", self.name, "--cluster", self.lab.cluster, "-o", "json")
        described: dict[str, Any] = json.loads(self.lab.xpk(*asked, show=False, capture=True))
        self._looked = time.monotonic()
        return described

    def host(self, slice_id: int, host: int) -> dict[str, Any]:
        """Return one host's state. Raises DrillError if it is not running."""
        for one in self.describe()["hosts"]:
            if (one["slice"], one["host"]) == (slice_id, host) and one["phase"] == "Running":
                return dict(one)
        raise DrillError(f"slice {slice_id} host {host} is not running")

    def end_host(self, slice_id: int, host: int, number: signal.Signals = signal.SIGKILL) -> float:
        """Send a signal to a host with its supervisor; return the time in Unix seconds."""
        running = self.host(slice_id, host)
        at = time.time()
        try:
            self.lab.kill(running, number)
        except ProcessLookupError:
            raise DrillError(f"slice {slice_id} host {host} ended before it was ended") from None
        return at

    def end_program(self, slice_id: int, host: int, number: signal.Signals = signal.SIGKILL) -> float:
        """Send a signal to only a host's trainer; return the time in Unix seconds."""
        running, pid = self.host(slice_id, host), self.pid(slice_id, host)
        try:
            return self.lab.kill_program(running, pid, number)
        except ProcessLookupError:
            raise DrillError(f"the trainer of slice {slice_id} host {host} ended before it was ended") from None

    def pid(self, slice_id: int, host: int) -> int:
        """Return the pid of a host's newest trainer in the host's own namespace."""
        started = [e for e in self.events("start") if (e["slice"], e["host"]) == (slice_id, host)]
        return int(started[-1]["pid"])

    def read(self) -> int:
        """Read new lines of metrics.jsonl; return their number."""
        self._metrics = self._metrics or Lines(self.folder / "metrics.jsonl")
        lines = list(self._metrics.read())
        self.steps += [line for line in lines if "loss" in line]
        self.evals += [line for line in lines if "eval_loss" in line]
        return len(lines)

    def saved(self, attempt: int = 0) -> int:
        """Return the newest step with a checkpoint committed in an attempt or before; 0 for none."""
        newest = 0
        for line in self._events():
            if line.get("event") == "save" and line.get("attempt", 0) <= attempt:
                newest = max(newest, line.get("step") or 0)
        return newest

    def newest_checkpoint(self) -> Path:
        """Return the folder of the newest checkpoint."""
        folders = (self.folder / "checkpoints").iterdir()
        return max(folders, key=lambda folder: int(folder.name) if folder.name.isdigit() else -1)

    @property
    def losses(self) -> dict[int, str]:
        """Return every step's final loss in hexadecimal."""
        return {line["step"]: line["loss_hex"] for line in self.steps}

    @property
    def lost_steps(self) -> int:
        """Return the number of steps that were completed twice."""
        return len(self.steps) - len({line["step"] for line in self.steps})

    def steps_beside_a_save(self, before: float) -> int:
        """Return the steps that ran beside the newest save begun before a time, if that save was not committed."""
        begun, saved = ([e for e in self.events(name) if e["time"] <= before] for name in ("save_begin", "save"))
        newest = max(begun, key=lambda event: event["time"])
        if any(event["step"] == newest["step"] and event["time"] >= newest["time"] for event in saved):
            return 0
        reached = max(line["step"] for line in self.steps if line["time"] <= before)
        return max(0, int(reached - newest["step"]))

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return all hosts' events with a name."""
        return [event for event in self._events() if event.get("event") == name]

    def wait(self, timeout: float) -> None:
        """Wait for the end and read the remaining files. Raises DrillError unless it succeeds in time."""
        self.lab.xpk("workload", "wait", self.name, "--cluster", self.lab.cluster, "--timeout", f"{timeout:.0f}")
        self.read()

    def follow(
        self, until: Callable[[], bool], timeout: float, describe_every: float = _DESCRIBE_SECONDS
    ) -> Iterator[dict[str, Any] | None]:
        """Read until `until()` is true; yield after each poll, sometimes with a new description.

        Descriptions are made on a thread: on a busy machine each takes seconds, in which the awaited moment may pass,
        or the run may end. Raises DrillError if the workload ends before, or after `timeout` seconds.
        """
        deadline, pool = time.monotonic() + timeout, ThreadPoolExecutor(1)
        asked: Future[dict[str, Any]] | None = None
        try:
            while True:
                self.read()
                if until():
                    return
                if time.monotonic() > deadline:
                    raise DrillError(f"nothing came of '{self.name}' within {timeout:.0f} s")
                description = None
                if asked and asked.done():
                    description, asked = asked.result(), None
                    self._require_running(description, until)
                elif not asked and time.monotonic() - self._looked > describe_every:
                    asked = pool.submit(self.describe)
                yield description
                time.sleep(_POLL_SECONDS)
        finally:
            pool.shutdown(wait=False)

    def await_(self, until: Callable[[], bool], timeout: float) -> None:
        """Read until `until()` is true, without output."""
        for _ in self.follow(until, timeout, describe_every=_RARELY_SECONDS):
            pass

    def _require_running(self, description: Mapping[str, Any], until: Callable[[], bool]) -> None:
        """Raise DrillError if the workload has ended, and all that it has written does not make `until()` true."""
        ended = description["phase"] in ("Failed", "Succeeded")
        if ended and not self.read() and not until():
            raise DrillError(f"'{self.name}' has ended: {description['phase']}, {description['reason']}")

    def _events(self) -> Iterator[dict[str, Any]]:
        for path in sorted((self.folder / "events").glob("*.jsonl")):
            yield from filter(None, map(_object, path.read_bytes().splitlines()))


def largest_file(folder: Path) -> Path:
    """Return the largest file below a folder."""
    return max((file for file in folder.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)


def _bulk(folder: str, entries: list[str]) -> set[str]:
    """Return the names that `Lab.collect` omits: all except readable files of moderate size."""
    return {
        entry
        for entry in entries
        if entry in ("checkpoints", "compile-cache", "data", "kubeconfig")
        or not (Path(folder, entry).is_dir() or (Path(folder, entry).is_file() and _size(folder, entry) < _LARGEST))
    }


def _size(folder: str, entry: str) -> int:
    try:
        return Path(folder, entry).stat().st_size
    except OSError:  # it was removed concurrently
        return _LARGEST


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        parsed = json.loads(line)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _xpk() -> str:
    beside = Path(sys.executable).with_name("xpk")
    program = str(beside) if beside.exists() else shutil.which("xpk")
    if not program:
        raise DrillError("there is no `xpk` command; run `pip install -e '.[trainer]'` first")
    return program


@contextmanager
def own_cluster(folder: Path, name: str, tpu_type: str, num_slices: int) -> Iterator[Lab]:
    """Yield the lab of a new local cluster, which is deleted at the end."""
    lab = Lab(folder=folder / "lab", cluster=name, say=lambda text: print(text, file=sys.stderr))
    lab.prepare()
    lab.create_cluster(tpu_type, num_slices)
    try:
        yield lab
    finally:
        lab.delete_cluster()
