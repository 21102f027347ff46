"""Text helpers for one-line messages: counts, and other programs' output. Pure."""

from __future__ import annotations

import re
from datetime import datetime

# The kubelet's waiting reasons of a container whose image cannot be pulled.
IMAGE_TROUBLES = (
    *("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError"),
    *("RegistryUnavailable", "SignatureValidationFailed"),
)
# Permanent errors, although the kubelet retries.
_NO_SUCH_IMAGE = re.compile(
    r"not found|manifest unknown|no match for platform|invalid reference|InvalidImageName|ErrImageNeverPull",
    re.IGNORECASE,
)
# Permanent as well, unless the name server or the registry is failing itself.
_REFUSED_PULL = re.compile(
    r"denied|unauthori[sz]ed|authentication required|forbidden|no such host|SignatureValidationFailed", re.IGNORECASE
)
_IMAGE_STEPS = re.compile(r'(?:failed to (?:pull and unpack image|resolve reference|resolve image) "[^"]*": )')


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 host`, `2 hosts`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def rfc3339(time: datetime) -> str:
    """Return a time in UTC as Kubernetes writes it: to the second, with a Z."""
    return time.isoformat(timespec="seconds").replace("+00:00", "Z")


def short(text: object, max_length: int = 200) -> str:
    """Return a text as one line of at most `max_length` characters."""
    line = re.sub(r"\s+", " ", str(text or "")).strip()
    return line if len(line) <= max_length else f"{line[: max_length - 1].rstrip()}…"


def is_hopeless_pull(reason: str, message: str) -> bool:
    """Return whether an image pull failed for a reason that a retry does not fix."""
    return is_missing_image(reason, message) or bool(_REFUSED_PULL.search(f"{reason} {message}"))


def is_missing_image(reason: str, message: str) -> bool:
    """Return whether an image pull failed because the image does not exist."""
    return bool(_NO_SUCH_IMAGE.search(f"{reason} {message}"))


def image_words(message: str) -> str:
    """Return the root cause in a container runtime's message for a failed image pull."""
    last = _IMAGE_STEPS.split(short(message, 2000))[-1]
    cause = last.split(" desc = ")[-1]
    return short(re.sub(r'^Back-off pulling image "[^"]*"(: ErrImagePull)?:? ?', "", cause).strip(": "), 200)
