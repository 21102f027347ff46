"""Release manifests, read from a file or over https and verified by their SHA-256 before use.

A controller's manifest may contain anything. `SOURCE#sha256=HEX` pins its content, as in pip's URLs; without it, a
manifest from the web must match the checksum that is pinned here.
"""

from __future__ import annotations

import hashlib
import re
import urllib.request
from pathlib import Path

import yaml

from xpk.api.base import Obj
from xpk.model.errors import XpkError
from xpk.model.yaml_loader import LOADER

_DOWNLOAD_SECONDS = 60.0
_MAX_BYTES = 32 << 20  # Kueue's has 1.7 MB
_WEB = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_FRAGMENT = "#sha256="
_SHA256 = re.compile(r"[0-9a-f]{64}")


def problems_of(name: str, source: str, *, pinned: str = "") -> list[str]:
    """Return the problems of a source, one line each, without reading it. `pinned`: see `read_objects`."""
    place, sha256 = _parts(source)
    if sha256 and not _SHA256.fullmatch(sha256):
        return [f"invalid SHA-256 '{sha256}' of the manifest of {name}: expected 64 hexadecimal digits"]
    if not _WEB.match(place):
        return [] if Path(place).is_file() else [f"the source of the manifest of {name}, {place}, is not a file"]
    if not place.startswith("https://"):
        return [f"invalid source {place} of the manifest of {name}: must be a file or an https URL"]
    if not sha256 and not pinned:
        return [f"the manifest of {name} at {place} requires its SHA-256: {place}{_FRAGMENT}HEX"]
    return []


def read_objects(name: str, source: str, *, hint: str, pinned: str = "") -> list[Obj]:
    """Return the objects of a manifest. `pinned`: the SHA-256 of a source from the web that does not contain one.

    Raises XpkError if it is unavailable or does not match the checksum.
    """
    if problems := problems_of(name, source, pinned=pinned):
        raise XpkError(f"cannot read the manifest of {name}: {problems[0]}", hint=hint)
    place, sha256 = _parts(source)
    try:
        if _WEB.match(place):
            sha256 = sha256 or pinned
            with urllib.request.urlopen(place, timeout=_DOWNLOAD_SECONDS) as answer:  # noqa: S310  # https
                content = answer.read(_MAX_BYTES + 1)
        else:
            with Path(place).open("rb") as file:
                content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ValueError(f"it has more than {_MAX_BYTES >> 20} MiB")
        if sha256 and (have := hashlib.sha256(content).hexdigest()) != sha256:
            raise XpkError(
                f"the manifest of {name} from {place} is not the one that is expected: SHA-256 is {have}, "
                f"must be {sha256}",
                hint=f"compare it with the release's; if you trust another one, {hint}",
            )
        return [obj for obj in yaml.load_all(content.decode(), Loader=LOADER) if obj]
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise XpkError(
            f"cannot read the manifest of {name} from {place}: {str(error).splitlines()[0]}", hint=hint
        ) from error


def _parts(source: str) -> tuple[str, str]:
    """Return a source's location, and its SHA-256 ("" if none)."""
    place, _, sha256 = source.partition(_FRAGMENT)
    return place, sha256.lower()
