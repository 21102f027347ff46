"""Configuration from outside: gcloud's files, and the addresses of an emulator of Google Cloud."""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from xpk.model.errors import UsageError

_POLL, _LONGEST_POLL = "XPK_GKE_POLL_SECONDS", 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Addresses of an emulator, each "" for Google's own, and the pause between two polls of an operation.

    `gke`: host:port of GKE's API. `compute`: URL of Compute Engine's. `token`: of the emulator's clusters.
    """

    gke: str = ""
    compute: str = ""
    token: str = "none"  # noqa: S105  # the emulator accepts every token
    poll_seconds: float = 5.0

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Endpoints:
        """Return the endpoints of XPK_GKE_ENDPOINT and its companions (docs/gke-emulator.md). Raises UsageError."""
        return cls(
            gke=environ.get("XPK_GKE_ENDPOINT", ""),
            compute=environ.get("XPK_COMPUTE_ENDPOINT", ""),
            token=environ.get("XPK_GKE_TOKEN", "none"),
            poll_seconds=_poll_seconds(environ),
        )


def gcloud_place(environ: Mapping[str, str] = os.environ, home: Path | None = None) -> dict[str, str]:
    """Return the project and zone of gcloud's active configuration, read from its file without running gcloud.

    As in gcloud, CLOUDSDK_ACTIVE_CONFIG_NAME names the configuration, and variables take precedence over its values.
    """
    folder = Path(environ.get("CLOUDSDK_CONFIG") or (home or Path.home()) / ".config" / "gcloud")
    parser = configparser.ConfigParser(interpolation=None)
    with suppress(OSError, ValueError, configparser.Error):  # ValueError: not UTF-8
        active = environ.get("CLOUDSDK_ACTIVE_CONFIG_NAME")
        active = active or (folder / "active_config").read_text(encoding="utf-8").strip()
        parser.read(folder / "configurations" / f"config_{active}", encoding="utf-8")
    places = {"project": ("core", "project"), "zone": ("compute", "zone")}
    values = {
        key: environ.get(f"CLOUDSDK_{section}_{option}".upper()) or str(parser.get(section, option, fallback=""))
        for key, (section, option) in places.items()
    }
    return {key: value for key, value in values.items() if value}


def _poll_seconds(environ: Mapping[str, str]) -> float:
    text = environ.get(_POLL) or "5"
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST_POLL:
        raise UsageError(
            f"{_POLL} must be a number of seconds up to {_LONGEST_POLL:.0f}, got '{text}'", hint=f"unset {_POLL}"
        )
    return seconds
