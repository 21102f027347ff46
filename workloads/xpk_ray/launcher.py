"""Launcher of a host under Ray: connect to the other hosts, start Ray, run the work on the head, end together.

The head is slice 0 host 0. Beside Ray the hosts keep the connections of `trainer.hosts.peers`, so that a host's death
is known within milliseconds, a SIGTERM to one reaches the head, and all end with one exit code.
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
_TOLD_SECONDS = 2.0  # between lines of progress
_POLL_SECONDS = 0.1
_LEAVE_SECONDS = 5.0
_AFTER_HEAD_SECONDS = 0.5  # lets the head fail first, so that the cause is attributed to its host

Work = Callable[["Launcher"], int]


@dataclass
class Launcher:
    """Launcher of one host. `stopping` is set on the head once any host got SIGTERM."""

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
        me = self.host.process_id, self.host.processes, self.host.attempt, names
        self.peers = Peers(*me, secret=self.host.secret, on_lost=self._lost, on_told=self._told)
        self.stop = Stop(self._asked, self._asked_again)

    @property
    def name(self) -> str:
        """Name of this host for people."""
        return self.host.name(self.host.process_id)

    @property
    def is_head(self) -> bool:
        """True if Ray's head and the driver run here."""
        return self.host.process_id == 0

    def run(self, work: Work) -> NoReturn:
        """Run this host to its end; the head does `work` when all hosts have joined. Ends the process."""
        self.stop.install()
        try:
            self._meet()
            self._start_ray()
            if not self.is_head:
                self._end_as_told(self.peers.await_("end"))
            code = work(self)
        except FatalError as error:  # only for problems that all hosts know
            for problem in error.problems:
                print(problem, file=sys.stderr, flush=True)
            self.end(ExitCode.FATAL, agreed=True)
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

    def end(self, code: int, *, agreed: bool = False, word: str = "") -> NoReturn:
        """End this host and, from the head, all others, from any thread; `agreed`: all know that it ends.

        `word`: its termination message.
        """
        with self._ending:  # a second caller waits here for the end of the process
            termination_message.write(termination_message.ASKED if code == ExitCode.PREEMPTED else word)
            if self.is_head:
                self.peers.announce("end", int(code))
            for child in self.children:
                with contextlib.suppress(OSError):
                    os.killpg(child.pid, signal.SIGKILL)
            if agreed or code in (ExitCode.DONE, ExitCode.PREEMPTED):
                self.peers.leave(_LEAVE_SECONDS)
            if self._ray is not None:
                self._ray.kill()
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            os._exit(int(code))

    def _meet(self) -> None:
        """Wait for all hosts, and check that they have the same version of Ray. Raises PeerAbsent, FatalError."""
        find = functools.partial(resolve, self.host.coordinator, self.join_seconds, say)
        address, port = ("", 0)
        if self.host.coordinator:
            address, port = own_address(find) if self.is_head else find()
        self.address = self._own_address(address)
        done = threading.Event()
        if self.is_head:
            threading.Thread(target=self._tell_who_is_here, args=(done,), name="progress", daemon=True).start()
        try:
            self.peers.connect(address, port + 1, self.join_seconds, lambda: find()[0])
        except PeerAbsent as error:
            if not error.missing:
                raise PeerAbsent(
                    f"not all hosts connected within {self.join_seconds:.0f} s; slice 0 host 0 names them"
                ) from error
            names = ", ".join(map(self.host.name, error.missing))
            raise PeerAbsent(f"did not join within {self.join_seconds:.0f} s: {names}", error.missing) from error
        finally:
            done.set()
        self.peers.report("versions", versions())
        if self.is_head:
            self.peers.announce("versions", odd_hosts(self.host, self.peers.collect("versions")))
        if problems := self.peers.await_("versions"):
            raise FatalError(*(Problem(*problem) for problem in problems))

    def _start_ray(self) -> None:
        """Start Ray on this host, on the head first. Raises RuntimeError if it does not start."""
        if self.is_head:
            self.head = bracketed(self.address, raylet.free_port(self.address))
            self._bring_up()
            self.peers.announce("head", self.head)
        self.head = self.peers.await_("head")
        if not self.is_head:
            self._bring_up()

    def _bring_up(self) -> None:
        deadline = time.monotonic() + self.join_seconds
        while True:
            ray = self._ray = raylet.start(
                self.host, self.shape, self.services, address=self.address, head=self.head, environ=self.environ
            )
            while ray.process.poll() is None and not ray.has_started():
                time.sleep(_POLL_SECONDS)
            if ray.has_started():
                break
            if time.monotonic() > deadline or not ray.may_start_later():
                raise RuntimeError(f"Ray did not start: {ray.last_words()} ({ray.log})")
            say(f"{self.name}: this machine is too busy to start Ray; trying again")

        def watch() -> None:
            ray.process.wait()
            if self._ending.locked():  # we ended it
                return
            print(f"error: {self.name}: Ray ended: {ray.last_words()} ({ray.log})", file=sys.stderr, flush=True)
            self.end(ExitCode.CRASH)

        threading.Thread(target=watch, name="ray", daemon=True).start()

    def _own_address(self, head: str) -> str:
        """Return the address by which the other hosts reach this one."""
        names = self.environ.get("TPU_WORKER_HOSTNAMES", "").split(",")
        if self.is_head and head:
            return head
        if self.host.worker_id < len(names) and names[self.host.worker_id]:
            return resolve(f"{names[self.host.worker_id]}:0", self.join_seconds, say)[0]
        return "127.0.0.1"

    def _tell_who_is_here(self, done: threading.Event) -> None:
        reported = 0
        while not done.wait(_TOLD_SECONDS):
            if self.peers.present != reported:
                reported = self.peers.present
                say(f"{self.name}: {reported} of {self.host.processes} hosts are connected")

    def _end_as_told(self, code: int) -> NoReturn:
        self._code = code
        if code not in (ExitCode.DONE, ExitCode.PREEMPTED):
            say(f"{self.name}: the driver on {self.host.name(0)} exited with {code}; see its log")
            time.sleep(_AFTER_HEAD_SECONDS)
        self.end(code, agreed=True)

    def _lost(self, peer: int) -> None:
        """End this host after another one died: only a restart of the JobSet can recover its work."""
        if peer == 0:
            time.sleep(_POLL_SECONDS)  # it may just have announced the exit code
        if self._code is None and not self.peers.is_announced("end") and not self._ending.locked():
            say(f"{self.name}: lost {self.host.name(peer)}; ending so that the job can restart")
            self.end(ExitCode.PEER_LOST, word=termination_message.LOST + self.host.name(peer))

    def _told(self, what: str, peer: int) -> None:
        if what == "stop":
            self.stopping.set()

    def _asked(self, code: ExitCode) -> None:
        self.peers.tell("stop")
        self.stopping.set()
        if not self.head:  # nothing has started
            self.end(ExitCode.PREEMPTED)

    def _asked_again(self, code: ExitCode) -> None:
        say(f"{self.name}: a second signal to stop; ending at once")
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
    """Run this host to its end; the exit code is the whole workload's. Raises FatalError for a bad environment."""
    host = read_host(environ)
    if host.processes == 1 and not host.coordinator:
        raise FatalError(Problem("this is not a host of a workload", "Use `xpk workload create --launcher ray`"))
    if not environ.get("RAY_AUTH_MODE"):
        # Ray listens at all addresses and runs anybody's code: restrict it to this workload's hosts and user.
        if not host.secret:
            message = "environment variable XPK_PEER_SECRET_FILE is not set: anybody could use this workload's Ray"
            raise FatalError(Problem(message, "Recreate the workload, or set RAY_AUTH_MODE=disabled"))
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token(host.secret)}
        environ = {**environ, **os.environ}
    Launcher(host, shape, services, join_seconds, dict(environ), ships_code).run(work)


def token(secret: bytes) -> str:
    """Return the token by which Ray's processes authenticate; docs/environment.md describes it."""
    return hmac.new(secret, b"xpk-ray", hashlib.sha256).hexdigest()


def versions() -> list[str]:
    """Return the versions of Ray ("" if it is not installed) and of Python on this host."""
    try:
        ray = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        ray = ""
    return [ray, platform.python_version()]


def odd_hosts(host: Host, host_versions: Sequence[Sequence[str]]) -> list[tuple[str, str]]:
    """Return the hosts' version mismatches as (message, hint): all must have process 0's versions."""
    driver, problems = host_versions[0], []
    for process, (ray, python) in enumerate(host_versions):
        name = host.name(process)
        if not ray:
            version = f"=={driver[0]}" if driver[0] else ""
            problems.append((f"{name}: Ray is not installed", f"Put ray[default]{version} into the hosts' image"))
        elif driver[0] and ray != driver[0]:
            message = f"{name} has Ray {ray}, the driver on {host.name(0)} has {driver[0]}"
            problems.append((message, "Use one image for all hosts"))
        elif driver[0] and python.split(".")[:2] != driver[1].split(".")[:2]:
            message = f"{name} has Python {python}, the driver on {host.name(0)} has {driver[1]}"
            problems.append((message, "Use one image for all hosts"))
    return problems


def joined(launcher: Launcher) -> Any:
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
    launcher.stop.claim()  # Ray has replaced the SIGTERM handler
    host, deadline, reported = launcher.host, time.monotonic() + launcher.join_seconds, -1
    places = [divmod(process, host.hosts_per_slice) for process in range(host.processes)]
    while True:
        resources = {name for node in ray.nodes() if node["Alive"] for name in node["Resources"]}
        missing = [place for place in places if host_resource(*place) not in resources]
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
