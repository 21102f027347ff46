"""Google's xpk in an environment of its own, with programs that answer at once in place of kubectl, gcloud and crane.

So only its own time is measured. In use, each call of gcloud takes a second or more, and each of kubectl some tenths.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from bench.commands import process
from bench.upstream import VERSION, Upstream
from xpk.api.base import Obj

CACHE = Path(os.environ.get("XPK_BENCH_CACHE", Path.home() / ".cache" / "xpk-bench"))
_TOOLS = ("kubectl", "gcloud", "crane", "docker", "kueuectl")
# Its answers are those of a cluster that its own `cluster create` has made.
_FAKE = """#!/bin/sh
echo "${0##*/} $*" >> "$BENCH_TOOLS"
case "${0##*/} $*" in
"gcloud container clusters list --project=p --filter"*) echo us-central1 ;;
"kubectl get workloads"*) exec cat "$BENCH_WORKLOADS" ;;
*-resources-configmap*) echo 'map[v5litepod-256:12736]' ;;
*-metadata-configmap*) echo 'map[xpk_version:vVERSION capacity_type:on_demand]' ;;
esac
"""
_LOCAL = ("kubectl config", "kubectl --help", "kubectl version")  # no request
_PLACE = ("--project", "p", "--project-number", "1", "--zone", "us-central1-a", "--no-dependency-auto-download")


class GoogleXpk:
    """Google's xpk, whose workloads are those of the last `set_workloads`."""

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
        self.version = VERSION
        self._folder = folder
        programs = folder / "programs"
        programs.mkdir(parents=True)
        for tool in _TOOLS:
            (programs / tool).write_text(_FAKE.replace("VERSION", VERSION), encoding="utf-8")
            (programs / tool).chmod(0o755)
        credentials = {"type": "authorized_user", "client_id": "x", "client_secret": "x", "refresh_token": "x"}
        (folder / "credentials.json").write_text(json.dumps(credentials), encoding="utf-8")
        self._environ = {
            "HOME": str(folder),
            "PATH": f"{programs}{os.pathsep}{os.defpath}",
            "KUBECONFIG": str(kubeconfig),
            "GOOGLE_CLOUD_PROJECT": "p",
            "GOOGLE_APPLICATION_CREDENTIALS": str(folder / "credentials.json"),
            "BENCH_TOOLS": str(folder / "tools"),
            "BENCH_WORKLOADS": str(folder / "workloads.json"),
        }
        self.set_workloads([])

    @staticmethod
    def install() -> None:
        """Install it into the cache, unless it is there. Raises CalledProcessError."""
        CACHE.mkdir(parents=True, exist_ok=True)
        Upstream(CACHE).install()

    def set_workloads(self, objects: Sequence[Obj]) -> None:
        """Let `kubectl get workloads` print the Workloads of these objects, as its `-o json` does."""
        items = [obj for obj in objects if obj["kind"] == "Workload"]
        for obj in items:
            obj["metadata"].pop("managedFields", None)
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=4)
        Path(self._environ["BENCH_WORKLOADS"]).write_text(text, encoding="utf-8")

    def run(self, arguments: Sequence[str]) -> process.Sample:
        """Run a command and measure it."""
        return process.run(self._argv(arguments), self._environ)

    def count(self, arguments: Sequence[str]) -> tuple[int, dict[str, int]]:
        """Run a command; return the number of its child processes, and the calls of tools.

        `kubectl` counts only calls that send a request.
        """
        record = Path(self._environ["BENCH_TOOLS"])
        record.unlink(missing_ok=True)
        folder = self._folder / "hook"
        folder.mkdir(exist_ok=True)
        processes = process.count_processes(self._argv(arguments), self._environ, folder)
        lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
        calls = [line for line in lines if not line.startswith(_LOCAL)]
        return processes, {tool: sum(line.startswith(f"{tool} ") for line in calls) for tool in _TOOLS}

    def _argv(self, arguments: Sequence[str]) -> list[str]:
        program = CACHE / "venv" / "bin" / "xpk"
        place = () if "--help" in arguments else _PLACE
        return [str(program), *arguments, *place]
