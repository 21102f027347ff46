"""JobSet and Kueue as programs on this machine, for an API server without nodes to run them.

Objects that `xpk cluster create` applies are handled as by a kubelet: a Deployment's configuration and certificate are
written to the paths of its program, the program runs, and the Deployment becomes available once the program is ready.
The manifests differ from the releases' only in the addresses of the programs, which are on this machine.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from e2e.api_server import BINARIES, end
from tests.ports import free_ports
from xpk.api.base import Obj, ObjectApi
from xpk.api.kubernetes import KubernetesApi
from xpk.capacity.controllers.install import CONTROLLERS, Controller
from xpk.model.errors import XpkError

_CONFIG = "controller_manager_config.yaml"
_SECONDS = 0.2
_PARSER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Program:
    """One controller, and its files in a folder."""

    def __init__(self, controller: Controller, folder: Path, api: ObjectApi, kubeconfig: Path) -> None:
        self._controller, self._folder, self._api = controller, folder, api
        self._short = controller.name.lower()
        self._argv = [str(BINARIES / self._short), f"--config={folder / _CONFIG}"]
        self._environ = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        self._webhooks, self._health = free_ports(2)
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "certificates").mkdir(parents=True)

    def write_manifest(self, release: Path) -> Path:
        """Write the release's manifest for this machine."""
        objects = [obj for obj in yaml.load_all(release.read_text(encoding="utf-8"), Loader=_PARSER) if obj]
        authority = self._own_certificate() if self._short == "jobset" else None
        contents = [self._placed(obj, authority) for obj in objects if obj["kind"] != "APIService"]
        file = self._folder / "manifest.yaml"
        file.write_text("\n---\n".join(json.dumps(obj) for obj in contents), encoding="utf-8")  # JSON is valid YAML
        return file

    def look(self) -> None:
        """Take the next step: start the program, or report that it is ready. Raises XpkError, OSError."""
        namespace = self._controller.namespace
        deployment = self._api.get("Deployment", self._controller.deployment, namespace)
        if self._process is None or self._process.poll() is not None:
            config = self._api.get("ConfigMap", f"{self._short}-manager-config", namespace)
            (self._folder / _CONFIG).write_text(config["data"][_CONFIG], encoding="utf-8")
            with (self._folder / "log").open("ab") as log:
                self._process = subprocess.Popen(self._argv, env=self._environ, stdout=log, stderr=log)
        if self._short == "kueue":
            self._lay_certificate(self._api.get("Secret", "kueue-webhook-server-cert", namespace))
        with urllib.request.urlopen(f"http://127.0.0.1:{self._health}/readyz", timeout=5):
            pass
        generation = deployment["metadata"]["generation"]
        if deployment.get("status", {}).get("observedGeneration") != generation:
            counts = {"replicas": 1, "readyReplicas": 1, "updatedReplicas": 1, "availableReplicas": 1}
            status = {"observedGeneration": generation, **counts}
            self._api.patch("Deployment", f"{self._controller.deployment}/status", {"status": status}, namespace)

    def end(self) -> None:
        """End the program."""
        if self._process:
            end(self._process)

    def _placed(self, obj: Obj, authority: str | None) -> Obj:
        """Return an object of the release for a program on this machine."""
        if obj["kind"] == "Service" and obj["metadata"]["name"].endswith("-webhook-service"):
            # The API server calls webhooks at their Service's address; here it is this machine's.
            obj["spec"] = {"type": "ExternalName", "externalName": "localhost"}
        elif obj["kind"] == "ConfigMap" and _CONFIG in obj.get("data", {}):
            obj["data"] = {_CONFIG: yaml.safe_dump(self._configured(yaml.safe_load(obj["data"][_CONFIG])))}
        for client in _clients(obj):
            client["service"]["port"] = self._webhooks
            if authority:
                client["caBundle"] = authority
        return obj

    def _configured(self, config: dict[str, Any]) -> dict[str, Any]:
        folder = str(self._folder / "certificates")
        config["webhook"] = {"host": "127.0.0.1", "port": self._webhooks, "certDir": folder}
        config["metrics"] = {"bindAddress": "0"}
        config["health"] = {"healthProbeBindAddress": f"127.0.0.1:{self._health}"}
        config["leaderElection"] = {"leaderElect": False}
        if self._short == "jobset":  # its own certificate management uses one folder for all users of a machine
            config["internalCertManagement"] = {"enable": False}
        else:
            config["featureGates"] = {"VisibilityOnDemand": False}  # an API server of its own
        return config

    def _own_certificate(self) -> str:
        """Create the certificate of its webhooks, which is its own authority; return it in the webhooks' format."""
        folder = self._folder / "certificates"
        name = f"{self._short}-webhook-service.{self._controller.namespace}.svc"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
             "-addext", f"subjectAltName=DNS:{name}", "-keyout", str(folder / "tls.key"),
             "-out", str(folder / "tls.crt")], check=True, capture_output=True,
        )  # fmt: skip
        return base64.b64encode((folder / "tls.crt").read_bytes()).decode()

    def _lay_certificate(self, secret: Obj) -> None:
        for name in sorted(secret.get("data") or {}):  # the certificate last, because the program waits for it
            file = self._folder / "certificates" / name
            if not file.exists():
                file.write_bytes(base64.b64decode(secret["data"][name]))


@contextmanager
def controllers(folder: Path, kubeconfig: Path) -> Iterator[dict[str, str]]:
    """Run both as soon as they are installed; yield the variables with which `xpk` finds their manifests."""
    api, environ, programs = KubernetesApi(kubeconfig=kubeconfig), {}, []
    for controller in CONTROLLERS:
        short = controller.name.lower()
        programs.append(Program(controller, folder / short, api, kubeconfig))
        environ[f"XPK_{controller.name.upper()}_MANIFEST"] = str(
            programs[-1].write_manifest(BINARIES.parent / f"{short}.yaml")
        )
    stopped = threading.Event()
    threads = [threading.Thread(target=_care, args=(item, stopped), daemon=True) for item in programs]
    for thread in threads:
        thread.start()
    try:
        yield environ
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
        for item in programs:
            item.end()


def _care(program: Program, stopped: threading.Event) -> None:
    while not stopped.wait(_SECONDS):
        try:
            program.look()
        except (XpkError, OSError):  # not installed yet, or not ready yet
            continue


def _clients(obj: Obj) -> list[dict[str, Any]]:
    """Return the client configurations of an object's webhooks."""
    if obj["kind"].endswith("WebhookConfiguration"):
        return [hook["clientConfig"] for hook in obj["webhooks"]]
    webhook = obj.get("spec", {}).get("conversion", {}).get("webhook") if "CustomResource" in obj["kind"] else None
    return [webhook["clientConfig"]] if webhook else []
