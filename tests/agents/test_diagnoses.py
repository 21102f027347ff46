"""Diagnoses by tools alone: for each fault, the answers of at most 3 calls have what an agent must know."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.agents.conftest import CLUSTER, Agent
from tests.cli.conftest import state as state
from xpk import create_cluster
from xpk.agents.server import Tools

_CALLS = 3


@dataclass(frozen=True)
class Fault:
    """A workload with a fault: its command, the phase in which it is diagnosed, and the facts that the answers have."""

    command: str
    facts: tuple[str, ...]
    phase: str = "Failed"
    arguments: tuple[tuple[str, Any], ...] = (("max_restarts", 0),)
    after: Callable[[Agent, str], None] = lambda agent, name: None  # once it runs


def _kill_host(agent: Agent, name: str) -> None:
    status = agent.wait(name, "Running")
    os.kill(status["hosts"][0]["pid"], signal.SIGKILL)


def _suspend(agent: Agent, name: str) -> None:
    agent.wait(name, "Running")
    agent.call("apply", digest=agent.of("plan_suspend_workload", name)["digest"])


FAULTS = {
    "crash": Fault("echo 'ValueError: bad shape' >&2; exit 1", ("exit code 1", "ValueError: bad shape")),
    "unknown-code": Fault("exit 3", ("exit code 3",)),
    "fatal": Fault("echo 'no data at /data' >&2; exit 42", ("42", "no data at /data")),
    "not-executable": Fault("touch $PWD/plain; $PWD/plain", ("126",)),
    "not-found": Fault("no-such-program --steps 3", ("127", "no-such-program")),
    "killed": Fault("kill -9 $$", ("137",)),
    "segfault": Fault("kill -11 $$", ("139",)),
    "killed-from-outside": Fault("sleep 600", ("137",), after=_kill_host),
    "peer-lost": Fault("exit 75", ("75",)),
    "hung": Fault("exit 76", ("76",)),
    "corrupt": Fault("exit 77", ("77",)),
    "crash-loop": Fault("exit 1", ("max_restarts", "exit code 1"), arguments=(("max_restarts", 1),)),
    "restarted": Fault(
        'test "$XPK_RESTART_ATTEMPT" != 0 || exit 9; sleep 600',
        ("exit code 9", '"restarts": 1'),
        "Running",
        (("max_restarts", 3),),
    ),
    "waits": Fault("true", ("Queued", "position"), "Queued", (("num_slices", 16), ("priority", "low"))),
    "suspended": Fault("sleep 600", ("Suspended",), "Suspended", after=_suspend),
    "full-disk": Fault("echo x > /dev/full", ("No space left on device",)),
    "out-of-memory": Fault("ulimit -v 100000; python3 -c 'x = bytearray(10**9)'", ("MemoryError",)),
    "no-connection": Fault(
        "python3 -c \"import socket; socket.create_connection(('127.0.0.1', 9))\"", ("Connection refused",)
    ),
    "no-name": Fault("python3 -c \"import socket; socket.gethostbyname('nowhere.invalid')\"", ("gaierror",)),
    "succeeds": Fault("echo loss 0.1", ("Succeeded", "loss 0.1"), "Succeeded"),
}


def test_the_cause_of_every_fault_is_in_the_answers_of_three_calls(state: Path) -> None:
    create_cluster(CLUSTER, "v5litepod-1", num_slices=16)
    agent = Agent(Tools("apply"))
    missing = {}
    for name, fault in FAULTS.items():
        agent.create(name, fault.command, **dict(fault.arguments))
        fault.after(agent, name)
    for name, fault in FAULTS.items():
        agent.wait(name, fault.phase)
        agent.calls = 0
        answers = [
            agent.of("workload_status", name),
            agent.of("workload_logs", name),
            agent.of("workload_logs", name, previous=True),
        ]
        assert agent.calls <= _CALLS
        text = "\n".join(json.dumps(answer) for answer in answers)
        if lacking := [fact for fact in fault.facts if fact not in text]:
            missing[name] = (lacking, answers[0].get("reason"), text[:1500])
    assert not missing and len(FAULTS) >= 20
