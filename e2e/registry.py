"""A registry of container images for a test, with only the pulling part of the protocol.

The protocol is described in https://github.com/opencontainers/distribution-spec.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from tests.http_server import http_server

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@dataclass(slots=True)
class Registry:
    """Images by name; `seconds`: minimum duration of each layer, also of running pulls."""

    port: int
    seconds: float = 0.0
    contents: dict[str, tuple[str, bytes]] = field(default_factory=dict)  # by path: media type, content

    def add(self, name: str, size: int) -> None:
        """Add an image, tagged 1, of one file with `size` random bytes and without a program."""
        packed, raw = io.BytesIO(), random.randbytes(size)
        with tarfile.open(fileobj=packed, mode="w") as tar:
            entry = tarfile.TarInfo("data")
            entry.size = size
            tar.addfile(entry, io.BytesIO(raw))
        layer = gzip.compress(packed.getvalue(), mtime=0)
        rootfs = {"type": "layers", "diff_ids": [_digest(packed.getvalue())]}
        config = json.dumps({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs}).encode()
        parts = [("application/vnd.oci.image.config.v1+json", config),
                 ("application/vnd.oci.image.layer.v1.tar+gzip", layer)]  # fmt: skip
        descriptors = [{"mediaType": kind, "digest": _digest(part), "size": len(part)} for kind, part in parts]
        manifest = json.dumps(
            {"schemaVersion": 2, "mediaType": _MANIFEST, "config": descriptors[0], "layers": descriptors[1:]}
        ).encode()
        self.contents |= {f"/v2/{name}/blobs/{_digest(part)}": (kind, part) for kind, part in parts}
        for reference in ("1", _digest(manifest)):
            self.contents[f"/v2/{name}/manifests/{reference}"] = (_MANIFEST, manifest)


@contextmanager
def registry(address: str) -> Iterator[Registry]:
    """Run an empty registry on a free port of an address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # a body after its headers would wait 40 ms for an acknowledgment

        def answer(self) -> None:
            path = self.path.partition("?")[0]
            kind, content = made.contents.get(path, ("application/json", b"{}"))
            begun = time.monotonic()
            while "tar" in kind and time.monotonic() < begun + made.seconds:
                time.sleep(0.05)
            self.send_response(200 if path == "/v2/" or path in made.contents else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Docker-Content-Digest", _digest(content))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_GET = do_HEAD = answer

        def log_message(self, format: str, *args: object) -> None:
            """Keep quiet."""

    with http_server(Handler, address) as server:
        made = Registry(server.server_port)
        yield made


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
