"""Launcher of a host under Ray: connect to the other hosts, start Ray, run the work on the head, exit together.

The head is slice 0 host 0. In addition to Ray, the hosts keep the connections of `trainer.hosts.peers`, so that a
host's death is detected within milliseconds, a SIGTERM to any host reaches the head, and all hosts exit with the same
code.
"""

import contextlib
import functools
import hashlib
import hmac
import importlib.metadata
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from trainer.errors import AddressError, ExitCode, FatalError, PeerAbsent, Problem
from trainer.hosts.bootstrap import Host, bracketed, own_address, read_host, resolve
from trainer.hosts.peers import Peers
from trainer.hosts.signals import Stop
from trainer.telemetry.metrics import say
from xpk_ray import raylet, shipping
from xpk_ray.raylet import Raylet, Services, Shape
from xpk_shared.supervisor import termination_message

JOIN_SECONDS = 300.0  # for all hosts to connect and to start Ray
_PROGRESS_SECONDS = 2.0  # between lines of progress
_POLL_SECONDS = 0.1
_LEAVE_SECONDS = 5.0
_AFTER_HEAD_SECONDS = 0.5  # lets the head fail first, so that the cause is attributed to its host

Work = Callable[["Launcher"], int]


@dataclass
class Launcher:
    """Launcher of one host. `stopping` is set on the head once any host has received SIGTERM."""

    host: Host
    shape: Shape
    services: Services
    join_seconds: float
    environ: Mapping[str, str]
    ships_code: bool = False  # ship the head's working folder to all tasks and actors
    stopping: threading.Event = field(default_factory=threading.Event)
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)  # process groups that end with this host
    head: str = ""  # host:port of Ray's head
    address: str = ""
    _ray: Raylet | None = None
    _ending: threading.Lock = field(default_factory=threading.Lock)
    _code: int | None = None

    def __post_init__(self) -> None:
        names = ("ray", self.host.workload, self.host.job_id)
        identity = self.host.process_id, self.host.processes, self.host.attempt, names
        self.peers = Peers(*identity, secret=self.host.secret, on_lost=self._on_lost, on_message=self._on_message)
        self.stop = Stop(self._on_first_signal, self._on_second_signal)

    @property
    def name(self) -> str:
        """Name of this host in messages."""
        return self.host.name(self.host.process_id)

    @property
    def is_head(self) -> bool:
        """True if Ray's head and the driver run here."""
        return self.host.process_id == 0

    def run(self, work: Work) -> NoReturn:
        """Run this host until it ends; the head runs `work` once all hosts have joined. Exits the process."""
        self.stop.install()
        try:
            self._connect()
            self._start_ray()
            if not self.is_head:
                self._end_with(self.peers.await_("end"))
            code = work(self)
        except FatalError as error:  # raised on all hosts
            for problem in error.problems:
                print(problem, file=sys.stderr, flush=True)
            self.end(ExitCode.FATAL, is_agreed=True)
        except (PeerAbsent, AddressError) as error:
            print(f"error: {self.name}: {error}", file=sys.stderr, flush=True)
            code = ExitCode.PEER_LOST if isinstance(error, PeerAbsent) else ExitCode.CRASH
        except BaseException as error:
            if self.stopping.is_set():
                code = ExitCode.PREEMPTED
            else:
                text = " ".join(str(error).split())
                print(f"error: {self.name}: {type(error).__name__}: {text}", file=sys.stderr, flush=True)
                code = ExitCode.CRASH
        self.end(code)

    def end(self, code: int, *, is_agreed: bool = False, message: str = "") -> NoReturn:
        """End this host and, from the head, all others. Any thread may call this.

        `is_agreed`: all hosts expect this end. `message`: this host's termination message.
        """
        with self._ending:  # a second caller waits here for the end of the process
            termination_message.write(termination_message.ASKED if code == ExitCode.PREEMPTED else message)
            if self.is_head:
                self.peers.announce("end", int(code))
            for child in self.children:
                with contextlib.suppress(OSError):
                    os.killpg(child.pid, signal.SIGKILL)
            if is_agreed or code in (ExitCode.DONE, ExitCode.PREEMPTED):
                self.peers.leave(_LEAVE_SECONDS)
            if self._ray is not None:
                self._ray.kill()
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            os._exit(int(code))

    def _connect(self) -> None:
        """Wait for all hosts, and check that they have the same version of Ray. Raises PeerAbsent, FatalError."""
        resolve_coordinator = functools.partial(resolve, self.host.coordinator, self.join_seconds, say)
        address, port = ("", 0)
        if self.host.coordinator:
            address, port = own_address(resolve_coordinator) if self.is_head else resolve_coordinator()
        self.address = self._own_address(address)
        done = threading.Event()
        if self.is_head:
            threading.Thread(target=self._report_progress, args=(done,), name="progress", daemon=True).start()
        try:
            self.peers.connect(address, port + 1, self.join_seconds, lambda: resolve_coordinator()[0])
        except PeerAbsent as error:
            if not error.missing:
                raise PeerAbsent(
                    f"not all hosts connected within {self.join_seconds:.0f} s; the log of slice 0 host 0 names them"
                ) from error
            names = ", ".join(map(self.host.name, error.missing))
            raise PeerAbsent(f"did not join within {self.join_seconds:.0f} s: {names}", error.missing) from error
        finally:
            done.set()
        self.peers.report("versions", versions())
        if self.is_head:
            self.peers.announce("versions", version_problems(self.host, self.peers.collect("versions")))
        if problems := self.peers.await_("versions"):
            raise FatalError(*(Problem(*problem) for problem in problems))

    def _start_ray(self) -> None:
        """Start Ray on this host, on the head first. Raises RuntimeError if it does not start."""
        if self.is_head:
            self.head = bracketed(self.address, raylet.free_port(self.address))
            self._start_raylet()
            self.peers.announce("head", self.head)
        self.head = self.peers.await_("head")
        if not self.is_head:
            self._start_raylet()

    def _start_raylet(self) -> None:
        deadline = time.monotonic() + self.join_seconds
        while True:
            ray = self._ray = raylet.start(
                self.host, self.shape, self.services, address=self.address, head=self.head, environ=self.environ
            )
            while ray.process.poll() is None and not ray.has_started() and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
            if ray.has_started():
                break
            if ray.process.poll() is None:
                raise RuntimeError(f"Ray did not start within {self.join_seconds:.0f} s ({ray.log})")
            if time.monotonic() > deadline or not ray.may_start_later():
                raise RuntimeError(f"Ray did not start: {ray.last_words()} ({ray.log})")
            say(f"{self.name}: this machine is too busy to start Ray; retrying")

        def watch() -> None:
            ray.process.wait()
            if self._ending.locked():  # we ended it
                return
            print(f"error: {self.name}: Ray exited: {ray.last_words()} ({ray.log})", file=sys.stderr, flush=True)
            self.end(ExitCode.CRASH)

        threading.Thread(target=watch, name="ray", daemon=True).start()

    def _own_address(self, head: str) -> str:
        """Return the address at which the other hosts reach this one."""
        names = self.environ.get("TPU_WORKER_HOSTNAMES", "").split(",")
        if self.is_head and head:
            return head
        if self.host.worker_id < len(names) and names[self.host.worker_id]:
            return resolve(f"{names[self.host.worker_id]}:0", self.join_seconds, say)[0]
        return "127.0.0.1"

    def _report_progress(self, done: threading.Event) -> None:
        reported = 0
        while not done.wait(_PROGRESS_SECONDS):
            if self.peers.present != reported:
                reported = self.peers.present
                say(f"{self.name}: {reported} of {self.host.processes} hosts are connected")

    def _end_with(self, code: int) -> NoReturn:
        self._code = code
        if code not in (ExitCode.DONE, ExitCode.PREEMPTED):
            say(f"{self.name}: the driver on {self.host.name(0)} exited with {code}; see its log")
            time.sleep(_AFTER_HEAD_SECONDS)
        self.end(code, is_agreed=True)

    def _on_lost(self, peer: int) -> None:
        """End this host after another one died, because only a restart of the JobSet can recover."""
        if peer == 0:
            time.sleep(_POLL_SECONDS)  # it may just have announced the exit code
        if self._code is None and not self.peers.is_announced("end") and not self._ending.locked():
            say(f"{self.name}: lost {self.host.name(peer)}; exiting so that the job can restart")
            self.end(ExitCode.PEER_LOST, message=termination_message.LOST + self.host.name(peer))

    def _on_message(self, message: str, peer: int) -> None:
        if message == "stop":
            self.stopping.set()

    def _on_first_signal(self, code: ExitCode) -> None:
        self.peers.broadcast("stop")
        self.stopping.set()
        if not self.head:  # nothing has started
            self.end(ExitCode.PREEMPTED)

    def _on_second_signal(self, code: ExitCode) -> None:
        say(f"{self.name}: received a second signal; exiting immediately")
        self.end(ExitCode.INTERRUPTED if code == ExitCode.INTERRUPTED else ExitCode.CRASH)


def launch(
    work: Work,
    shape: Shape,
    services: Services,
    *,
    join_seconds: float,
    ships_code: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> NoReturn:
    """Run this host until it ends, with the exit code of the workload. Raises FatalError for an invalid environment."""
    host = read_host(environ)
    if host.processes == 1 and not host.coordinator:
        raise FatalError(Problem("this is not a host of a workload", "Use `xpk workload create --launcher ray`"))
    if not environ.get("RAY_AUTH_MODE"):
        # Ray listens at all addresses and runs code from any client: restrict it to this workload's hosts and user.
        if not host.secret:
            message = (
                "environment variable XPK_PEER_SECRET_FILE is not set; without it, anyone could use this workload's Ray"
            )
            raise FatalError(Problem(message, "Recreate the workload, or set RAY_AUTH_MODE=disabled"))
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token(host.secret)}
        environ = {**environ, **os.environ}
    Launcher(host, shape, services, join_seconds, dict(environ), ships_code).run(work)


def token(secret: bytes) -> str:
    """Return the token with which Ray's processes authenticate; docs/environment.md describes it."""
    return hmac.new(secret, b"xpk-ray", hashlib.sha256).hexdigest()


def versions() -> list[str]:
    """Return the versions of Ray ("" if it is not installed) and of Python on this host."""
    try:
        ray = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        ray = ""
    return [ray, platform.python_version()]


def version_problems(host: Host, host_versions: Sequence[Sequence[str]]) -> list[tuple[str, str]]:
    """Return the differences between the hosts' versions and those of process 0, as (message, hint)."""
    driver, problems = host_versions[0], []
    for process, (ray, python) in enumerate(host_versions):
        name = host.name(process)
        if not ray:
            version = f"=={driver[0]}" if driver[0] else ""
            problems.append((f"{name}: Ray is not installed", f"Install ray[default]{version} in the hosts' image"))
        elif driver[0] and ray != driver[0]:
            message = f"{name} has Ray {ray}, but the driver on {host.name(0)} has {driver[0]}"
            problems.append((message, "Use one image for all hosts"))
        elif driver[0] and python.split(".")[:2] != driver[1].split(".")[:2]:
            message = f"{name} has Python {python}, but the driver on {host.name(0)} has {driver[1]}"
            problems.append((message, "Use one image for all hosts"))
    return problems


def join_ray(launcher: Launcher) -> Any:
    """Connect to Ray from the head, ship the code, and wait until every host has joined; return Ray.

    Raises PeerAbsent naming the hosts that do not join.
    """
    import ray

    from xpk_ray.slices import host_resource

    ray.init(
        address=launcher.head,
        namespace="xpk",
        log_to_driver=False,
        logging_level="warning",
        _node_ip_address=launcher.address,
        runtime_env=shipping.runtime_env(os.getcwd()) if launcher.ships_code else None,
    )
    launcher.stop.reinstall()  # Ray has replaced the SIGTERM handler
    host, deadline, reported = launcher.host, time.monotonic() + launcher.join_seconds, -1
    hosts = [divmod(process, host.hosts_per_slice) for process in range(host.processes)]
    while True:
        resources = {name for node in ray.nodes() if node["Alive"] for name in node["Resources"]}
        missing = [host_key for host_key in hosts if host_resource(*host_key) not in resources]
        if len(missing) != reported:
            reported = len(missing)
            progress = f"{host.processes - reported} of {host.processes} hosts have joined Ray"
            say(f"{launcher.name}: {progress} at {launcher.head}")
        if not missing or launcher.stopping.is_set():
            return ray
        if time.monotonic() > deadline:
            names = ", ".join(f"slice {slice_id} host {worker}" for slice_id, worker in missing)
            raise PeerAbsent(f"did not join Ray within {launcher.join_seconds:.0f} s: {names}")
        time.sleep(_POLL_SECONDS)
