"""Mutual TLS of the coordinator: only hosts of the same attempt of the same job, with its secret, can connect."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

from tests.ports import free_port
from tests.trainer.small import WORKLOADS
from trainer.hosts.bootstrap import Host
from trainer.hosts.coordinator_tls import credentials, pem_files

SECRET, OTHER = b"s" * 64, b"o" * 64
URI = "spiffe://xpk/job/0/"
SUPPORTED = "mtls_cert_file" in inspect.signature(jax.distributed.initialize).parameters

# A process of a job of two.
JOINS = """
import json, sys
import jax
from trainer.hosts.bootstrap import Host
from trainer.hosts.coordinator_tls import credentials

number, port, attempt, secret = json.loads(sys.argv[1])
arguments = credentials(Host(job_id="job", attempt=attempt, secret=secret.encode()), jax.distributed.initialize)
address = f"127.0.0.1:{port}"
jax.distributed.initialize(address, 2, number, initialization_timeout=60, coordinator_bind_address=address, **arguments)
print("joined", jax.process_count(), flush=True)
"""


def context(folder: Path, secret: bytes, uri: str, side: int) -> ssl.SSLContext:
    """Return one side of a connection as gRPC makes it: both prove a certificate of the same authority."""
    made = ssl.SSLContext(side)
    made.check_hostname = False
    folder.mkdir()
    files = [folder / name for name in ("authority", "certificate", "key")]
    for file, content in zip(files, pem_files(secret, uri), strict=True):
        file.write_bytes(content)
    made.load_verify_locations(files[0])
    made.load_cert_chain(files[1], files[2])
    made.verify_mode = ssl.CERT_REQUIRED
    return made


def peer_names(folder: Path, *secrets: bytes, uris: tuple[str, str] = (URI, URI)) -> list[Any]:
    """Connect a server and a client; return the names that each sees in the other's certificate. Raises SSLError."""
    one, other = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        context(folder / "server", secrets[0], uris[0], ssl.PROTOCOL_TLS_SERVER).wrap_bio(one, other, server_side=True),
        context(folder / "client", secrets[-1], uris[1], ssl.PROTOCOL_TLS_CLIENT).wrap_bio(other, one),
    ]
    waiting = list(sides)
    while waiting:
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass
    return [side.getpeercert()["subjectAltName"] for side in sides]  # type: ignore[index]


def test_hosts_with_the_same_secret_accept_each_other(tmp_path: Path) -> None:
    assert peer_names(tmp_path, SECRET) == [(("URI", URI),), (("URI", URI),)]


@pytest.mark.parametrize(
    ("secrets", "uris"),
    [((SECRET, OTHER), (URI, URI)), ((SECRET, SECRET), (URI, "spiffe://xpk/job/1/"))],
    ids=["another secret", "another attempt"],
)
def test_others_are_refused(secrets: tuple[bytes, bytes], uris: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        peer_names(tmp_path, *secrets, uris=uris)


def test_the_private_key_is_in_no_file_that_outlives_the_process() -> None:
    def initialize(mtls_cert_file: str = "") -> None:
        """Take certificates, as JAX does from 0.12 on."""

    arguments = credentials(Host(job_id="job", secret=SECRET), initialize)
    assert Path(arguments["mtls_key_file"]).read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----")
    assert os.readlink(arguments["mtls_key_file"]) == "/memfd:key (deleted)"
    assert arguments["mtls_peer_uri_prefix"] == URI
    assert credentials(Host(job_id="job"), initialize) == {}, "a job without a secret"


@pytest.mark.parametrize(
    ("second", "connects"),
    [((0, SECRET), True), ((0, OTHER), False), ((0, b""), False)],
    ids=["same secret", "another secret", "no secret"],
)
def test_jax_joins_only_processes_with_the_secret(second: tuple[int, bytes], connects: bool) -> None:
    if not SUPPORTED:
        assert credentials(Host(job_id="job", secret=SECRET), jax.distributed.initialize) == {}
        return
    port, environ = free_port(), os.environ | {"PYTHONPATH": str(WORKLOADS), "JAX_PLATFORMS": "cpu"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", JOINS, json.dumps([number, port, attempt, secret.decode()])],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for number, (attempt, secret) in enumerate([(0, SECRET), second])
    ]
    with contextlib.suppress(subprocess.TimeoutExpired):  # JAX may wait much longer than it was told to
        processes[1].wait(60 if connects else 8)
    if not connects:
        processes[0].kill()
    processes[1].kill()
    printed = [process.communicate(timeout=60)[0] for process in processes]
    assert printed == (["joined 2\n"] * 2 if connects else ["", ""])
