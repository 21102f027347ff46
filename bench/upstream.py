"""The manifest that Google's xpk makes for a workload: rendered by its own code, from PyPI, each time anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

VERSION = "1.16.0"
_ASKED = ("--cluster", "c", "--project", "p", "--zone", "us-central1-a")
# A peer that crashes may be restarted too; by default it would fail the whole workload.
_OPTIONS = ("--skip-validation", "--restart-on-exit-codes", "1-126", "--dry-run")
# On GKE a webhook sets these for TPU pods; kind has none.
_WEBHOOK = {
    "MEGASCALE_SLICE_ID": "metadata.labels['jobset.sigs.k8s.io/job-index']",
    "TPU_WORKER_ID": "metadata.annotations['batch.kubernetes.io/job-completion-index']",
}


class Upstream:
    """Google's xpk in a virtual environment of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def install(self) -> None:
        """Install the pinned version, unless it is there. Raises CalledProcessError."""
        stamp = self._folder / f"installed-{VERSION}"
        if stamp.exists():
            return
        subprocess.run([sys.executable, "-m", "venv", str(self._folder / "venv")], check=True)
        pip = (str(self._folder / "venv" / "bin" / "python"), "-m", "pip", "install", "--quiet", f"xpk=={VERSION}")
        subprocess.run([*pip, "--disable-pip-version-check"], check=True, env=self._environ())
        stamp.touch()

    def render(
        self,
        name: str,
        *,
        command: str,
        image: str,
        num_slices: int,
        max_restarts: int,
        tpu_type: str = "v5litepod-8",
        webhook: bool = True,
    ) -> dict[str, Any]:
        """Return the JobSet of a workload. `webhook`: with what GKE's webhook would add to its pods."""
        file = self._folder / f"{name}.yaml"
        size = ("--tpu-type", tpu_type, "--num-slices", str(num_slices), "--max-restarts", str(max_restarts))
        what = ("--workload", name, "--docker-image", image, "--command", command, "--output-manifest-file", str(file))
        argv = [str(self._folder / "venv" / "bin" / "xpk"), "workload", "create", *_ASKED, *size, *what, *_OPTIONS]
        subprocess.run(argv, check=True, env=self._environ(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        jobset: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
        file.unlink()
        if not webhook:
            return jobset
        (container,) = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"]
        container["env"] = [
            *(container.get("env") or []),
            *({"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in _WEBHOOK.items()),
            {"name": "MEGASCALE_COORDINATOR_ADDRESS", "value": f"{name}-slice-job-0-0.{name}:8080"},
        ]
        return jobset

    def _environ(self) -> dict[str, str]:
        """Nobody's settings, no cluster; not even our own `xpk` package."""
        kept = {key: os.environ[key] for key in ("PATH", "LANG", "PIP_INDEX_URL", "SSL_CERT_FILE") if key in os.environ}
        proxies = {key: value for key, value in os.environ.items() if key.lower().endswith("_proxy")}
        pip = {key: value for key, value in os.environ.items() if key.startswith(("PIP_", "REQUESTS_"))}
        return kept | proxies | pip | {"HOME": str(self._folder), "KUBECONFIG": os.devnull}
