"""Provenance of a release: an in-toto statement with SLSA's predicate, unsigned, the same from each build."""

from __future__ import annotations

import hashlib
import json
import platform
import zlib
from collections.abc import Mapping
from importlib.metadata import version

from tools.release.source import Source

BUILD_TYPE = "urn:x-xpk-multislice:make-release:1"
_BUILDER = "urn:x-xpk-multislice:unsigned"  # nobody vouches for it before it is signed
_LOCK = "requirements/release.txt"


def provenance(source: Source, files: Mapping[str, bytes]) -> str:
    """Return the statement about a release's files; it has no times, so that another build gives the same one."""
    lock = (source.repository / _LOCK).read_bytes()
    built_with = {
        "python": platform.python_version(),
        "zlib": zlib.ZLIB_RUNTIME_VERSION,
        "hatchling": version("hatchling"),
    }
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": _sha256(files[name])}} for name in sorted(files)],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"command": "make release", "version": source.version},
                "resolvedDependencies": [
                    {"name": "source", "digest": {"gitCommit": source.commit}},
                    {"name": _LOCK, "digest": {"sha256": _sha256(lock)}},
                ],
            },
            "runDetails": {"builder": {"id": _BUILDER, "version": built_with}},
        },
    }
    return json.dumps(statement, indent=2) + "\n"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
