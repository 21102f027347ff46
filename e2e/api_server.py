"""A bare Kubernetes API server on this machine: etcd, kube-apiserver and the CRDs, no node and no controller."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.ports import free_ports

BINARIES = Path(os.environ.get("XPK_E2E_CACHE", Path.home() / ".cache" / "xpk-e2e")) / "bin"
_TOKEN = "e2e"  # of a server that only this machine can reach, for the length of a test
_SECONDS = 240.0
NO_FLAGS: Mapping[str, Sequence[str]] = {}


def missing(*programs: str) -> str:
    """Return why nothing can be run here, or nothing."""
    lacking = [name for name in programs if not (BINARIES / name).exists()]
    return f"no {', '.join(lacking)}: run e2e/environment/up first" if lacking else ""


@contextmanager
def api_server(
    folder: Path,
    binaries: Path,
    users: Sequence[str] = (),
    *,
    etcd_port: int | None = None,
    flags: Mapping[str, Sequence[str]] = NO_FLAGS,
    started: list[int] | None = None,
) -> Iterator[Path]:
    """Run a server that keeps its state in `folder`; give the kubeconfig that reaches it.

    It has a context for each of `users` too, who may do nothing until they are given a role.
    `flags`: further ones by program; `started` receives the IDs of the processes.
    """
    etcd, peer, api = free_ports(3)
    etcd = etcd_port or etcd
    tokens = [f"{_TOKEN},admin,admin,system:masters", *(f"{_TOKEN}-{user},{user},{user}" for user in users)]
    (folder / "tokens.csv").write_text("\n".join(tokens) + "\n")
    _make_key(folder / "service-accounts.key")
    programs = [
        [
            str(binaries / "etcd"), f"--data-dir={folder / 'etcd'}", "--unsafe-no-fsync",
            f"--listen-client-urls=http://127.0.0.1:{etcd}", f"--advertise-client-urls=http://127.0.0.1:{etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}", *flags.get("etcd", ()),
        ],
        [
            str(binaries / "kube-apiserver"), f"--etcd-servers=http://127.0.0.1:{etcd}",
            "--bind-address=127.0.0.1", f"--secure-port={api}", f"--cert-dir={folder / 'certificates'}",
            f"--token-auth-file={folder / 'tokens.csv'}", "--authorization-mode=RBAC",
            "--service-account-issuer=https://e2e", f"--service-account-key-file={folder / 'service-accounts.key'}",
            f"--service-account-signing-key-file={folder / 'service-accounts.key'}",
            "--disable-admission-plugins=ServiceAccount", "--service-cluster-ip-range=10.0.0.0/24",
            *flags.get("kube-apiserver", ()),
        ],
    ]  # fmt: skip
    running: list[subprocess.Popen[bytes]] = []
    try:
        for argv in programs:
            with (folder / f"{Path(argv[0]).name}.log").open("wb") as log:
                running.append(subprocess.Popen(argv, stdout=log, stderr=log))
        if started is not None:
            started.extend(process.pid for process in running)
        _await_ready(folder, api)
        yield _kubeconfig(folder, api, users)
    finally:
        for process in reversed(running):  # etcd last: kube-apiserver does not end without it
            end(process)


def await_kinds(kubeconfig: Path) -> None:
    """Wait until all CRDs of a server are served."""
    deadline = time.monotonic() + _SECONDS
    wait = ("wait", "--for=condition=Established", "crd", "--all", f"--timeout={_SECONDS:.0f}s")
    while True:
        argv = [str(BINARIES / "kubectl"), f"--kubeconfig={kubeconfig}", *wait]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        # A CRD that nobody has looked at yet has no conditions, which kubectl takes for an error.
        assert time.monotonic() < deadline, done.stderr
        time.sleep(0.3)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a program, by force if it takes long."""
    process.terminate()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _make_key(file: Path) -> None:
    subprocess.run(["openssl", "genrsa", "-out", str(file), "2048"], check=True, capture_output=True)


def _await_ready(folder: Path, port: int) -> None:
    import ssl

    deadline = time.monotonic() + _SECONDS
    certificate = folder / "certificates" / "apiserver.crt"
    # A server says that it is ready before it has made the namespaces that everyone counts on.
    for path in ("readyz", "api/v1/namespaces/kube-system", "api/v1/namespaces/default"):
        request = urllib.request.Request(
            f"https://127.0.0.1:{port}/{path}", headers={"Authorization": f"Bearer {_TOKEN}"}
        )
        while True:
            try:
                context = ssl.create_default_context(cafile=str(certificate))
                with urllib.request.urlopen(request, context=context, timeout=5):
                    break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.3)


def _kubeconfig(folder: Path, port: int, users: Sequence[str]) -> Path:
    file = folder / "kubeconfig"
    tokens = {"admin": _TOKEN, **{user: f"{_TOKEN}-{user}" for user in users}}
    cluster = {
        "server": f"https://127.0.0.1:{port}",
        "certificate-authority": str(folder / "certificates" / "apiserver.crt"),
    }
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "e2e", "cluster": cluster}],
        "users": [{"name": user, "user": {"token": token}} for user, token in tokens.items()],
        "contexts": [{"name": user, "context": {"cluster": "e2e", "user": user}} for user in tokens],
        "current-context": "admin",
    }
    file.write_text(json.dumps(config))  # JSON is YAML
    return file
