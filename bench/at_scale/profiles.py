"""CPU profiles of the control plane's programs, for `go tool pprof`."""

from __future__ import annotations

import ssl
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.at_scale.server import Server
from tests.ports import free_ports

_PATH = "/debug/pprof/profile?seconds={}"


@dataclass(frozen=True, slots=True)
class Profiler:
    """Takes profiles of kube-apiserver, kube-controller-manager and kube-scheduler."""

    folder: Path
    ports: Mapping[str, int]

    @classmethod
    def into(cls, folder: Path) -> Profiler:
        """Return a profiler that writes into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        programs = ("kube-controller-manager", "kube-scheduler")
        return cls(folder, dict(zip(programs, free_ports(len(programs)), strict=True)))

    def flags(self, flags: Mapping[str, Sequence[str]], certificates: Path) -> dict[str, Sequence[str]]:
        """Return the programs' flags, with those that serve profiles."""
        serving = (f"--cert-dir={certificates}", "--authorization-always-allow-paths=/debug/pprof/*")
        return {
            **flags,
            **{name: (*flags[name], f"--secure-port={port}", *serving) for name, port in self.ports.items()},
        }

    @contextmanager
    def profiling(self, server: Server, name: str, after: float, seconds: int) -> Iterator[None]:
        """Write a profile of each program as `NAME-PROGRAM.pprof`, from some seconds into the block on."""
        threads = [threading.Thread(target=self._of_server, args=(server, name, after, seconds))]
        threads += [threading.Thread(target=self._of, args=(program, name, after, seconds)) for program in self.ports]
        for thread in threads:
            thread.start()
        yield
        for thread in threads:
            thread.join()

    def _of_server(self, server: Server, name: str, after: float, seconds: int) -> None:
        time.sleep(after)
        (self.folder / f"{name}-kube-apiserver.pprof").write_bytes(server.data(_PATH.format(seconds)))

    def _of(self, program: str, name: str, after: float, seconds: int) -> None:
        time.sleep(after)
        url = f"https://127.0.0.1:{self.ports[program]}{_PATH.format(seconds)}"
        trust = ssl._create_unverified_context()  # noqa: S323  # the cluster's own certificate, on this machine
        with urllib.request.urlopen(url, context=trust, timeout=seconds + 60) as answer:
            (self.folder / f"{name}-{program}.pprof").write_bytes(answer.read())
