"""The program of the init container that unpacks the user's code: `python3 -c THIS SOURCE NAME FOLDER`.

Fetches the archive from a file or a bucket, makes sure that it is the one that was meant, and unpacks it. It
runs in the user's image, so it needs the standard library of any Python from 3.8 on and nothing else.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request

_TIMEOUT, _PATIENCE, _PAUSE = 10.0, 60.0, 1.0  # seconds


def main(source: str, name: str, folder: str) -> None:
    """Unpack the archive at a path or a gs:// URL; end with one line on stderr if that fails."""
    try:
        if source.startswith("gs://"):
            content = fetch(source)
        else:
            with open(source, "rb") as file:
                content = file.read()
        unpack(content, name, folder)
    except Exception as error:  # one line is all that anybody sees of this container
        raise SystemExit(f"the code at {source} cannot be unpacked: {error}") from None


def unpack(content: bytes, name: str, folder: str) -> None:
    """Unpack a .tar.gz whose name ends in a digest of the tar in it. Raises ValueError for another content."""
    tar = gzip.decompress(content)
    if not hashlib.sha256(tar).hexdigest().startswith(name.rpartition("-")[2]):
        raise ValueError("it is damaged, or another one than " + name)
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(folder, filter="data")
        else:
            archive.extractall(folder)


def fetch(url: str) -> bytes:
    """Read an object of a bucket as the host's own service account, or from an emulator without any."""
    bucket, _, path = url[len("gs://") :].partition("/")
    server = os.environ.get("STORAGE_EMULATOR_HOST", "").rstrip("/")
    headers = {} if server else {"Authorization": "Bearer " + token()}
    place = f"/storage/v1/b/{bucket}/o/{urllib.parse.quote(path, safe='')}?alt=media"
    return _get((server or "https://storage.googleapis.com") + place, headers)


def token() -> str:
    """Return an access token of this machine's service account."""
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    url = f"http://{host}/computeMetadata/v1/instance/service-accounts/default/token"
    return str(json.loads(_get(url, {"Metadata-Flavor": "Google"}))["access_token"])


def _get(url: str, headers: dict[str, str]) -> bytes:
    """Return an answer's body; try again while nobody answers: a new pod has to wait for its network."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT) as answer:
                content: bytes = answer.read()
                return content
        except OSError as error:
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 429
            if refused or time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE)


if __name__ == "__main__":
    main(*sys.argv[1:])
