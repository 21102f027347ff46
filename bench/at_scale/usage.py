"""CPU time by program, and the API server's counts of requests and webhook calls."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bench.at_scale.server import Server
from e2e.api_server import BINARIES

OBSERVER = "benchmark"
WRITES = ("POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION")
_SAMPLE = re.compile(r"(\w+)\{(.*)\} (\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
Key = TypeVar("Key")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts since the start of all programs."""

    cpu_seconds: dict[str, float]
    requests: Counter[tuple[str, str, str]]  # by resource, verb and HTTP status
    webhooks: Counter[str]  # calls by name

    def since(self, earlier: Usage) -> Usage:
        """Return the difference from an earlier look."""
        cpu = {name: seconds - earlier.cpu_seconds.get(name, 0.0) for name, seconds in self.cpu_seconds.items()}
        requests, webhooks = Counter(self.requests), Counter(self.webhooks)
        requests.subtract(earlier.requests)
        webhooks.subtract(earlier.webhooks)
        return Usage(cpu, requests, webhooks)

    def cpu_ms_per_pod(self, pods: int) -> dict[str, float]:
        """Return the CPU time by program, and of all programs but the benchmark."""
        parts = {name: round(1000 * seconds / pods, 2) for name, seconds in sorted(self.cpu_seconds.items())}
        total = sum(seconds for name, seconds in self.cpu_seconds.items() if name != OBSERVER)
        return parts | {"total": round(1000 * total / pods, 2)}

    def writes_per_pod(self, pods: int) -> dict[str, float]:
        """Return the writes by resource and verb, refused ones too, and their sum."""
        writes: Counter[str] = Counter()
        for (resource, verb, status), count in self.requests.items():
            if verb in WRITES and resource not in ("tokenreviews", "subjectaccessreviews", "leases"):
                writes[f"{resource} {verb}" + ("" if status < "400" else f" refused {status}")] += round(count)
        parts = {name: round(count / pods, 4) for name, count in writes.most_common() if count}
        return parts | {"total": round(sum(writes.values()) / pods, 3)}

    def webhook_calls_per_pod(self, pods: int) -> dict[str, float]:
        """Return the calls of webhooks for pods."""
        return {name: round(count / pods, 3) for name, count in sorted(self.webhooks.items()) if count}


def look(server: Server) -> Usage:
    """Return the counts now."""
    cpu = {name: _cpu_seconds(pid) for name, pid in processes().items()}
    text = server.text("/metrics").splitlines()
    requests = _counts(text, "apiserver_request_total", lambda of: (_resource(of), of["verb"], of["code"]))
    webhooks = _counts(text, "apiserver_admission_webhook_admission_duration_seconds_count", lambda of: of["name"])
    return Usage(cpu, requests, webhooks)


def processes() -> dict[str, int]:
    """Return the programs that this process has started, by name, and this process itself."""
    pids = {OBSERVER: os.getpid()}
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and _stat(int(folder.name))[1] == str(os.getpid()):
                program = Path(os.readlink(folder / "exe"))
                if program.parent == BINARIES.resolve():
                    pids[program.name] = int(folder.name)
        except OSError:  # it has ended meanwhile
            continue
    return pids


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()


def _cpu_seconds(pid: int) -> float:
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _resource(labels: dict[str, str]) -> str:
    part = labels.get("subresource")
    return labels["resource"] + (f"/{part}" if part else "")


def _counts(lines: Iterable[str], name: str, key: Callable[[dict[str, str]], Key]) -> Counter[Key]:
    counts: Counter[Key] = Counter()
    for line in lines:
        if line.startswith(f"{name}{{") and (match := _SAMPLE.match(line)):
            counts[key(dict(_LABEL.findall(match[2])))] += int(float(match[3]))
    return counts
