"""Redaction of secrets in text and objects that other people see. Pure."""

from __future__ import annotations

import re
from typing import Any

GONE = "[redacted]"
# Names of environment variables and flags that hold secrets. Too wide for the fields of Kubernetes' objects.
SECRET_NAME = re.compile(
    r"(?i)token(?!iz)|secret|pass|pwd|credential|key|auth(?!or(?!iz))|webhook|dsn|cookie|connection"
)
_NAME = SECRET_NAME.pattern.removeprefix("(?i)")
# Variables that xpk, JAX and their libraries set: their values say how a workload runs.
_OURS = re.compile(r"(XPK|TPU|MEGASCALE|JAX|XLA|NCCL|TF|LIBTPU|PYTHON[A-Z]*|MASTER)_|(PYTHON[A-Z]+|NNODES|NODE_RANK)$")
_FIELD = re.compile(
    r"(?i)(token|secret|passw|pwd|credential|(api|access|private|encryption|signing)_?key|auth|webhook|dsn|cookie)"
)
_DROPPED = ("managedFields",)
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_SECRETS = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),  # JSON web tokens
    re.compile(r"\b(?:ya29\.|AIza|ghp_|gho_|github_pat_|hf_|sk-|xox[abp]-|AKIA)[\w-]{10,}"),
    re.compile(r"(?<=\bhooks\.slack\.com/)[\w/-]+"),
)
_QUOTED = r"\"[^\"]*\"|'[^']*'"
_PAIR = re.compile(
    r"(?i)\b([\w.-]*(?:token(?!iz)|secret|password|passwd|pwd|credential|api[_-]?key|access[_-]?key|webhook|dsn|cookie)"
    rf"[\w.-]*[\"']?\s*[=:]\s*)({_QUOTED}|[^\s,;&\"'}}]+)"
)
_ASSIGNED = re.compile(rf"(?i)(?<![\w.-])([\w.-]*(?:{_NAME})[\w.-]*=)({_QUOTED}|[^\s,;&\"'}}]+)")
_FLAG = re.compile(rf"(?i)(?<![\w-])(--?[\w.-]*(?:{_NAME})[\w.-]*\s+)({_QUOTED}|[^\s;|&\"'-][^\s;|&\"']*)")
_LONE_FLAG = re.compile(rf"(?i)--?[\w.-]*(?:{_NAME})[\w.-]*")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}")
_USER = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s/:@]*:[^\s/@]+@")


def redact(text: str) -> str:
    """Return a text with everything that looks like a secret redacted."""
    for pattern in _SECRETS:
        text = pattern.sub(GONE, text)
    text = _BEARER.sub(rf"\1 {GONE}", text)
    text = _USER.sub(rf"\1{GONE}@", text)
    for pattern in (_PAIR, _ASSIGNED, _FLAG):
        text = pattern.sub(rf"\1{GONE}", text)
    return text


def redact_words(words: list[Any]) -> list[Any]:
    """Return a list of words with the values of secret-like flags redacted where they are words of their own."""
    before = ["", *words]
    return [
        GONE if _is_flag(flag) and isinstance(word, str) and not word.startswith("-") else word
        for flag, word in zip(before, words, strict=False)
    ]


def redacted(value: Any) -> Any:
    """Return a Kubernetes object with values of user variables and of secret-like fields redacted."""
    if isinstance(value, list):
        return [redacted(word) for word in redact_words(value)]
    if isinstance(value, str):
        return redact(value)
    if not isinstance(value, dict):
        return value
    if set(value) == {"name", "value"} and not _is_shown(str(value["name"])):
        return {"name": value["name"], "value": GONE}
    return {
        key: GONE if isinstance(field, str) and _is_secret(str(key)) else redacted(field)
        for key, field in value.items()
        if key not in _DROPPED
    }


def _is_shown(variable: str) -> bool:
    return _OURS.match(variable) is not None and SECRET_NAME.search(variable) is None


def _is_flag(word: Any) -> bool:
    return isinstance(word, str) and _LONE_FLAG.fullmatch(word) is not None


def _is_secret(key: str) -> bool:
    return key == _LAST_APPLIED or (_FIELD.search(key) is not None and not key.endswith(("Name", "Account")))
