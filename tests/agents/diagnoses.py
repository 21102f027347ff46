"""Faults of the chaos matrix (e2e/matrix) that an agent diagnoses by its tools alone."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import yaml

from tests.agents.conftest import CLUSTER, Agent
from tests.http_server import http_server, url_of
from tests.trainer.small import WORKLOADS, arguments
from tests.waiting import until
from xpk.local import daemon_control, process

CALLS = 3
AWAY = "context:away"  # a cluster whose API server is down
_PYTHON = shlex.quote(sys.executable)
_PATH = f"export PYTHONPATH={WORKLOADS}:{WORKLOADS.parent}; "
_DAMAGED_STEP = 4


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A workload with a fault: its command, the phase in which it is diagnosed, and the facts that the answers have.

    `act`: what happens once it runs. `log`: text of its log that comes before it is diagnosed. `cluster`: is asked.
    """

    command: str
    facts: tuple[str, ...]
    phase: str = "Failed"
    arguments: Mapping[str, Any] = field(default_factory=lambda: {"max_restarts": 0})
    act: Callable[[Agent, str], None] = lambda agent, name: None
    log: str = ""
    cluster: str = CLUSTER


def _train(*settings: str, planted: str = "", steps: int = 6) -> str:
    """Return the command of a small trainer, with a fault of `tests.trainer.planted`."""
    words = arguments([f"run.steps={steps}", "run.eval_every=0", "data.max_bytes=50000", *settings])
    program = f"tests.trainer.planted {planted}" if planted else "trainer"
    return f"{_PYTHON} -m {program} train {shlex.join(words)}"


def _await(agent: Agent, name: str, fault: Fault) -> None:
    """Wait until a fault has happened."""
    agent.wait(name, fault.phase, seconds=200)
    if fault.log:
        until(lambda: fault.log in json.dumps(agent.of("workload_logs", name)), seconds=200, every=1.0)


class _Store(BaseHTTPRequestHandler):
    """An object store without objects; once it is away, it answers 503."""

    is_away = False

    def do_GET(self) -> None:
        """Answer."""
        body = json.dumps({"error": {"code": 503, "message": "backend error"}} if self.is_away else {}).encode()
        self.send_response(503 if self.is_away else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_PUT = do_DELETE = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Do nothing."""


def _lose_bucket(agent: Agent, name: str) -> None:
    _Store.is_away = True


def _kill_host(agent: Agent, name: str) -> None:
    os.kill(agent.wait(name, "Running")["hosts"][0]["pid"], signal.SIGKILL)


def _terminate_host(agent: Agent, name: str) -> None:
    os.kill(agent.wait(name, "Running")["hosts"][0]["pid"], signal.SIGTERM)


def _kill_daemon(agent: Agent, name: str) -> None:
    agent.wait(name, "Running")
    process.tell(Path(os.environ["XPK_STATE_DIR"]) / "clusters" / CLUSTER / daemon_control.LOCK, signal.SIGKILL)


_FLIP = (
    f"import pathlib; file = max(pathlib.Path('$XPK_OUTPUT_DIR').glob('checkpoints/*{_DAMAGED_STEP}/**/*'), "
    "key=lambda path: path.stat().st_size if path.is_file() else 0); content = bytearray(file.read_bytes()); "
    "content[len(content) // 2] ^= 1; file.write_bytes(content)"
)
_DAMAGED = (
    f'{_PATH}if [ "$XPK_RESTART_ATTEMPT" = 0 ]; then '
    f'{_train("checkpoint.every=2", steps=_DAMAGED_STEP)} && {_PYTHON} -c "{_FLIP}"; exit 1; '
    f"else exec {_train('checkpoint.every=2')}; fi"
)
# Commands that end as a program with this fault does.
COMMANDS = {
    "exit-crash": Fault(command="echo 'ValueError: bad shape' >&2; exit 1", facts=("exit code 1", "bad shape")),
    "exit-unknown": Fault(command="exit 3", facts=("exit code 3",)),
    "exit-fatal": Fault(command="echo 'no data at /data' >&2; exit 42", facts=("42", "no data at /data")),
    "exit-not-executable": Fault(command="touch $PWD/plain; $PWD/plain", facts=("126", "Permission denied")),
    "exit-not-found": Fault(command="no-such-program --steps 3", facts=("127", "no-such-program")),
    "exit-peer-lost": Fault(command="exit 75", facts=("75", "lost a peer")),
    "exit-hung": Fault(command="exit 76", facts=("76", "hung")),
    "exit-corrupt": Fault(command="exit 77", facts=("77", "state differs from the other replicas")),
    "exit-reserved": Fault(command="exit 78", facts=("exit code 78",)),
    "kill-process": Fault(command="kill -9 $$", facts=("137", "SIGKILL")),
    "kill-host": Fault(command="sleep 600", facts=("137",), act=_kill_host),
    "terminate-host": Fault(command="sleep 600", facts=("143",), act=_terminate_host),
    "out-of-memory": Fault(
        command="ulimit -v 100000; python3 -c 'x = bytearray(10**9)'", facts=("exit code 1", "MemoryError")
    ),
    "full-disk-at-start": Fault(command="echo x > /dev/full", facts=("No space left on device",)),
    "dns-wrong": Fault(
        command="python3 -c \"import socket; socket.gethostbyname('nowhere.invalid')\"", facts=("gaierror",)
    ),
    "kill-control-plane": Fault(
        command="echo step 7; sleep 600",
        facts=('"phase": "Running"', '"restarts": 0', "step 7"),
        phase="Running",
        act=_kill_daemon,
    ),
}
# What takes longer: trainers with the fault in one of them, and a command that tries again for some seconds.
LONG = {
    "kill-api-server": Fault(command="", facts=("no answer from https://127.0.0.1:9",), cluster=AWAY),
    "hang": Fault(
        command=f"{_PATH}exec {_train('observe.hang_seconds=5', planted='hang:3')}",
        facts=("76 (hung)", "slice 0 host 0: hangs", "read_that_never_ends"),
    ),
    "flip-byte": Fault(
        command=_DAMAGED,
        facts=(f"checkpoints/{_DAMAGED_STEP} is damaged and skipped", "resuming from step 2"),
        phase="Succeeded",
        arguments={"max_restarts": 1},
    ),
    "bucket-errors": Fault(
        command=f"{_PATH}exec {_train()}",
        facts=('"phase": "Running"', "without writing records: the bucket does not answer", "backend error"),
        phase="Running",
        log="the bucket does not answer",
        arguments={"max_restarts": 0, "output_root": "gs://bucket"},
        act=_lose_bucket,
    ),
    "partition": Fault(
        command=f'{_PATH}if [ "$MEGASCALE_SLICE_ID" = 1 ]; then exec {_train(planted="cut:3", steps=100000)}; '
        f"else exec {_train(steps=100000)}; fi",
        facts=("75 (lost a peer)", "lost slice 1 host 0"),
        arguments={"max_restarts": 0, "num_slices": 2},
    ),
}
FAULTS = COMMANDS | LONG


def diagnose(agent: Agent, faults: Mapping[str, Fault]) -> dict[str, list[str]]:
    """Let faults happen on a cluster of 16 slices; return the facts that are not in the answers to `CALLS` calls."""
    for name, fault in faults.items():
        if fault.cluster == CLUSTER:
            agent.create(name, fault.command, **fault.arguments)
            fault.act(agent, name)
    missing = {}
    for name, fault in faults.items():
        if fault.cluster == CLUSTER:
            _await(agent, name, fault)
        agent.calls = 0
        missing[name] = list(fault.facts)
        for tool, more in (("workload_status", {}), ("workload_logs", {}), ("workload_logs", {"previous": True})):
            if missing[name]:
                answer = json.dumps(agent.call(tool, cluster=fault.cluster, workload=name, **more))
                missing[name] = [fact for fact in missing[name] if fact not in answer]
        assert agent.calls <= CALLS
    return {name: facts for name, facts in missing.items() if facts}


@contextmanager
def servers(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the environment of a machine with a bucket that can fail, and with a kubeconfig of `AWAY`."""
    with http_server(_Store) as server:
        _Store.is_away = False
        write_kubeconfig(folder / "kubeconfig")
        yield {"STORAGE_EMULATOR_HOST": url_of(server), "KUBECONFIG": str(folder / "kubeconfig")}


def write_kubeconfig(file: Path) -> None:
    """Write a kubeconfig with the context of `AWAY`."""
    name = AWAY.partition(":")[2]
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [{"name": name, "cluster": {"server": "https://127.0.0.1:9"}}],
        "users": [{"name": name, "user": {"token": "x"}}],
    }
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
