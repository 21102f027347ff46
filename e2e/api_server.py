"""A bare Kubernetes API server on this machine: etcd, kube-apiserver and the CRDs, no node and no controller."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TOKEN = "e2e"  # of a server that only this machine can reach, for the length of a test
_SECONDS = 90.0


@contextmanager
def api_server(folder: Path, binaries: Path) -> Iterator[Path]:
    """Run a server that keeps its state in `folder`; give the kubeconfig that reaches it."""
    etcd, peer, api = _free_ports(3)
    (folder / "tokens.csv").write_text(f"{_TOKEN},admin,admin,system:masters\n")
    _make_key(folder / "service-accounts.key")
    programs = [
        [
            str(binaries / "etcd"), f"--data-dir={folder / 'etcd'}", "--unsafe-no-fsync",
            f"--listen-client-urls=http://127.0.0.1:{etcd}", f"--advertise-client-urls=http://127.0.0.1:{etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
        ],
        [
            str(binaries / "kube-apiserver"), f"--etcd-servers=http://127.0.0.1:{etcd}",
            "--bind-address=127.0.0.1", f"--secure-port={api}", f"--cert-dir={folder / 'certificates'}",
            f"--token-auth-file={folder / 'tokens.csv'}", "--authorization-mode=RBAC",
            "--service-account-issuer=https://e2e", f"--service-account-key-file={folder / 'service-accounts.key'}",
            f"--service-account-signing-key-file={folder / 'service-accounts.key'}",
            "--disable-admission-plugins=ServiceAccount", "--service-cluster-ip-range=10.0.0.0/24",
        ],
    ]  # fmt: skip
    running: list[subprocess.Popen[bytes]] = []
    try:
        for argv in programs:
            with (folder / f"{Path(argv[0]).name}.log").open("wb") as log:
                running.append(subprocess.Popen(argv, stdout=log, stderr=log))
        _await_ready(folder, api)
        yield _kubeconfig(folder, api)
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            process.wait(timeout=30)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _make_key(file: Path) -> None:
    subprocess.run(["openssl", "genrsa", "-out", str(file), "2048"], check=True, capture_output=True)


def _await_ready(folder: Path, port: int) -> None:
    import ssl

    deadline = time.monotonic() + _SECONDS
    certificate = folder / "certificates" / "apiserver.crt"
    while True:
        try:
            context = ssl.create_default_context(cafile=str(certificate))
            request = urllib.request.Request(
                f"https://127.0.0.1:{port}/readyz", headers={"Authorization": f"Bearer {_TOKEN}"}
            )
            with urllib.request.urlopen(request, context=context, timeout=5):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.3)


def _kubeconfig(folder: Path, port: int) -> Path:
    file = folder / "kubeconfig"
    file.write_text(
        f"""apiVersion: v1
kind: Config
clusters:
- name: e2e
  cluster:
    server: https://127.0.0.1:{port}
    certificate-authority: {folder / "certificates" / "apiserver.crt"}
users:
- name: admin
  user: {{token: {_TOKEN}}}
contexts:
- name: e2e
  context: {{cluster: e2e, user: admin}}
current-context: e2e
"""
    )
    return file
