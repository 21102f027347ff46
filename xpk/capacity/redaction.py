"""Secrets taken out of text that is sent to other people. Pure."""

from __future__ import annotations

import re
from typing import Any

GONE = "[redacted]"
_SECRET_NAME = re.compile(r"(?i)(token|secret|passw|credential|api_?key|access_?key|private_?key|auth)")
_DROPPED = ("managedFields",)
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_SECRETS = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),  # JSON web tokens
    re.compile(r"\b(?:ya29\.|AIza|ghp_|gho_|github_pat_|hf_|sk-|xox[abp]-|AKIA)[\w-]{10,}"),
)
_PAIR = re.compile(
    r"(?i)\b([\w.-]*(?:token|secret|password|passwd|credential|api[_-]?key|access[_-]?key)[\w.-]*[\"']?\s*[=:]\s*)"
    r"(\"[^\"]*\"|'[^']*'|[^\s,;&\"'}]+)"
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}")
_USER = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s/:@]+:[^\s/@]+@")


def redact(text: str) -> str:
    """Return a text without what looks like a secret."""
    for pattern in _SECRETS:
        text = pattern.sub(GONE, text)
    text = _BEARER.sub(rf"\1 {GONE}", text)
    text = _USER.sub(rf"\1{GONE}@", text)
    return _PAIR.sub(rf"\1{GONE}", text)


def redacted(value: Any) -> Any:
    """Return an object of Kubernetes without the values of variables and annotations that are named like secrets."""
    if isinstance(value, list):
        return [redacted(each) for each in value]
    if isinstance(value, str):
        return redact(value)
    if not isinstance(value, dict):
        return value
    if set(value) == {"name", "value"} and _SECRET_NAME.search(str(value["name"])):
        return {"name": value["name"], "value": GONE}
    return {
        key: GONE if isinstance(each, str) and _is_secret(str(key)) else redacted(each)
        for key, each in value.items()
        if key not in _DROPPED
    }


def _is_secret(key: str) -> bool:
    return key == _LAST_APPLIED or (_SECRET_NAME.search(key) is not None and not key.endswith(("Name", "Account")))
