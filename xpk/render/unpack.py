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
import posixpath
import sys
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request

_TIMEOUT, _PATIENCE, _PAUSE = 10.0, 60.0, 1.0  # seconds
_MAX_BYTES = 1 << 28  # of the tar; xpk packs 64 MiB and 20,000 files at most


def main(source: str, name: str, folder: str) -> None:
    """Unpack the archive at a path or a gs:// URL; end with one line on stderr if that fails."""
    try:
        if source.startswith("gs://"):
            content = fetch(source)
        else:
            with open(source, "rb") as file:
                content = file.read()
        unpack(content, name, folder)
    except Exception as error:  # one line is all that anybody sees of this container; names in it may be anything
        text = str(error).encode("unicode_escape").decode()
        raise SystemExit(f"the code at {source} cannot be unpacked: {text}") from None


def unpack(content: bytes, name: str, folder: str) -> None:
    """Unpack a .tar.gz whose name ends in a digest of the tar in it.

    Raises ValueError for another content, and for one that xpk does not pack; then nothing is unpacked.
    """
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        tar = file.read(_MAX_BYTES + 1)
    digest = name.rpartition("-")[2]
    if not (digest and hashlib.sha256(tar).hexdigest().startswith(digest)):
        raise ValueError("it is damaged, or another one than " + name)
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        _check(archive.getmembers())
        if hasattr(tarfile, "data_filter"):
            archive.extractall(folder, filter="data")
        else:
            archive.extractall(folder)


def _check(members: list[tarfile.TarInfo]) -> None:
    """Raise ValueError unless all members are files, folders and relative links inside one folder, each once.

    Some versions of Python extract everything, also through a link that leads out of the folder.
    """
    if sum(member.size for member in members) > _MAX_BYTES:
        raise ValueError(f"its files are larger than {_MAX_BYTES >> 20} MiB")
    leaves = {member.name for member in members if not member.isdir()}
    seen: set[str] = set()
    for member in members:
        parts = member.name.split("/")
        has_type = member.isreg() or member.isdir() or member.issym()
        is_below_leaf = any("/".join(parts[:end]) in leaves for end in range(1, len(parts)))
        if not has_type or is_below_leaf or member.name in {".", *seen} or not _is_inside(member.name):
            raise ValueError(f"it must not contain {member.name!r}")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(member.name), member.linkname))
        if member.issym() and not (member.linkname and _is_below(target)):
            raise ValueError(f"{member.name!r} is a link that leads out of it")
        seen.add(member.name)


def _is_inside(path: str) -> bool:
    """Return whether a path is relative, without `..`, and can be a path at all."""
    is_short = len(path) < 2048 and all(len(os.fsencode(part)) < 256 for part in path.split("/"))
    return is_short and "\0" not in path and _is_below(path) and path == posixpath.normpath(path)


def _is_below(path: str) -> bool:
    """Return whether a normalized path is relative and does not leave its folder; nothing may exist there."""
    return path.split("/")[0] not in ("", "..")


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
