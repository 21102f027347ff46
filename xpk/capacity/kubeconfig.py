"""One context out of the user's kubeconfig, which is read and never written; and private copies of our own."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from xpk.api.base import ObjectApi
from xpk.model.errors import MissingToolError, NotFoundError, UsageError, XpkError

_FILES = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
_SECTIONS = ("contexts", "clusters", "users")


def connect(kubeconfig: Path | None, context: str | None = None) -> ObjectApi:
    """Return the API server of a context, by default the file's current one. Raises MissingToolError."""
    try:
        from xpk.api.kubernetes import KubernetesApi  # heavy, and an extra
    except ModuleNotFoundError as error:
        raise MissingToolError(
            "the Python package `kubernetes` is not installed", hint="pip install 'xpk-multislice[kubernetes]'"
        ) from error
    return KubernetesApi(kubeconfig=kubeconfig, context=context)


def only_context(context: str | None, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return a kubeconfig of one context, the current one by default, that works from any folder.

    Raises NotFoundError, naming those there are, if it is not there.
    """
    found: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
    current = ""
    for file in _files(environ):
        content = _read(file)
        current = current or str(content.get("current-context") or "")
        for section in _SECTIONS:
            for entry in content.get(section) or []:
                found[section].setdefault(entry["name"], _absolute(entry, file.parent))
    wanted = context or current
    if not wanted:
        raise UsageError(
            "which context? the kubeconfig has no current one", hint=f"--context NAME: {_names(found['contexts'])}"
        )
    if wanted not in found["contexts"]:
        raise NotFoundError(f"there is no context '{wanted}' in your kubeconfig", hint=_names(found["contexts"]))
    chosen = found["contexts"][wanted]
    parts = {"clusters": chosen["context"].get("cluster"), "users": chosen["context"].get("user")}
    if not parts["users"]:  # such as that of `kubectl proxy`, which asks nobody who they are
        del parts["users"]
    missing = [f"{section[:-1]} '{name}'" for section, name in parts.items() if name not in found[section]]
    if missing:
        raise UsageError(
            f"context '{wanted}' names {' and '.join(missing)}, which your kubeconfig lacks",
            hint="`kubectl config view` shows it",
        )
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": wanted,
        "contexts": [chosen],
        **{section: [found[section][name]] for section, name in parts.items()},
    }


def write_private(file: Path, text: str) -> None:
    """Write a file that only its owner may read: whole, or not at all. Raises XpkError if that fails."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_name(f"{file.name}.{os.getpid()}.{threading.get_ident()}")
        fresh.touch(mode=0o600)
        fresh.write_text(text, encoding="utf-8")
        fresh.rename(file)
    except OSError as error:
        message = f"cannot write to '{file.parent}': {error.strerror}"
        raise XpkError(message, hint="set XPK_STATE_DIR to a folder that you can write to") from error


def _files(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the files that kubectl would read; the first that says something counts."""
    given = [Path(part).expanduser() for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    files = given or [Path.home() / ".kube" / "config"]
    there = [file for file in files if file.exists()]
    if not there:
        raise NotFoundError(
            f"there is no kubeconfig: {', '.join(map(str, files))}", hint="set KUBECONFIG to the file that you use"
        )
    yield from there


def _read(file: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        why = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise UsageError(
            f"cannot read kubeconfig {file}: {why}", hint="`kubectl config view` must be able to read it"
        ) from error
    if not isinstance(content, dict):
        raise UsageError(f"{file} is not a kubeconfig", hint="set KUBECONFIG to one")
    return content


def _absolute(entry: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return an entry whose files are named from the root: kubectl takes them relative to the kubeconfig."""
    body = next((value for key, value in entry.items() if key != "name"), None)
    for key in _FILES:
        if isinstance(body, dict) and body.get(key):
            body[key] = str((folder / body[key]).resolve())
    return entry


def _names(contexts: Mapping[str, Any]) -> str:
    return f"there are: {', '.join(sorted(contexts))}" if contexts else "it has none"
