"""Kubeconfig files: extraction of one context, with size limits."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from xpk.model.errors import NotFoundError, UsageError
from xpk.model.terminal import printable
from xpk.model.yaml_loader import LOADER

_MAX_BYTES = 4 << 20
_MAX_NODES, _DEEPEST = 200_000, 50  # of its YAML, with aliases written out
_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
_TEXTS = (*_PATHS, "server", "proxy-url", "tls-server-name", "token", "username", "password", "cluster", "user")
_SECTIONS = {"contexts": "context", "clusters": "cluster", "users": "user"}
_HINT = "`kubectl config view` must be able to read it"


def only_context(
    context: str | None, environ: Mapping[str, str] = os.environ, *, file: Path | None = None
) -> dict[str, Any]:
    """Return a kubeconfig with a single context, by default the current one, that works from any folder.

    It is read from `file`, or from the files that kubectl would read. Raises NotFoundError, naming the existing
    contexts, if it does not exist, and UsageError for invalid files.
    """
    entries: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
    current = ""
    files = list(_files(file, environ))
    for path in files:
        content = _read(path)
        current = current or str(content.get("current-context") or "")
        for section in _SECTIONS:
            for entry in _entries(path, content, section):
                entries[section].setdefault(entry["name"], _absolute(entry, _SECTIONS[section], path.parent))
    names = ", ".join(map(str, files))
    context_name = context or current
    if not context_name:
        raise UsageError(
            f"no context given, and kubeconfig {names} has no current one",
            hint=f"--context NAME: {_names(entries['contexts'])}",
        )
    if context_name not in entries["contexts"]:
        raise NotFoundError(
            f"context '{printable(context_name)}' not found in kubeconfig {names}", hint=_names(entries["contexts"])
        )
    chosen = entries["contexts"][context_name]
    parts = {"clusters": chosen["context"].get("cluster"), "users": chosen["context"].get("user")}
    if not parts["users"]:  # such as `kubectl proxy`, which does not authenticate
        del parts["users"]
    missing = [f"{section[:-1]} '{name}'" for section, name in parts.items() if name not in entries[section]]
    if missing:
        raise UsageError(
            f"context '{context_name}' names {' and '.join(missing)}, not found in kubeconfig {names}",
            hint="`kubectl config view` shows it",
        )
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": context_name,
        "contexts": [chosen],
        **{section: [entries[section][name]] for section, name in parts.items()},
    }


def context_names(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the contexts in the files that kubectl would read. Raises NotFoundError or UsageError."""
    return [str(entry["name"]) for file in _files(None, environ) for entry in _entries(file, _read(file), "contexts")]


def _files(file: Path | None, environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the files that kubectl would read; the first one that sets a value wins."""
    listed = (
        [file]
        if file
        else [Path(part).expanduser() for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    )
    files = listed or [Path.home() / ".kube" / "config"]
    existing = [path for path in files if path.exists()]
    if not existing:
        raise NotFoundError(
            f"no kubeconfig found: {', '.join(map(str, files))}", hint="set KUBECONFIG to your kubeconfig file"
        )
    yield from existing


def _read(file: Path) -> dict[str, Any]:
    try:
        text = _text(file)
        _check_size(text)
        content = yaml.load(text, Loader=LOADER) or {}  # noqa: S506  # a safe loader
    except (OSError, ValueError, yaml.YAMLError) as error:
        why = getattr(error, "strerror", None) or printable(str(error).splitlines()[0], limit=200)
        raise UsageError(f"cannot read kubeconfig {file}: {why}", hint=_HINT) from error
    if not isinstance(content, dict):
        raise UsageError(f"{file} is not a kubeconfig", hint="set KUBECONFIG to one")
    return content


def _text(file: Path) -> str:
    with file.open("rb") as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise ValueError("it is not a regular file")
        content = opened.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise ValueError(f"it is larger than {_MAX_BYTES >> 20} MiB")
    return content.decode("utf-8")


def _check_size(text: str) -> None:
    """Raise ValueError for YAML that is too deep, refers to itself, or expands by its aliases."""
    sizes: dict[str, int] = {}  # by anchor, with aliases written out
    start: list[tuple[str | None, int]] = []
    total = 0
    for event in yaml.parse(text, Loader=LOADER):
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in start):
                raise ValueError(f"its alias '{event.anchor}' refers to itself")
            total += sizes.get(str(event.anchor), 1)
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
            if event.anchor:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            start.append((event.anchor, total))
            total += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = start.pop()
            if anchor:
                sizes[anchor] = total - before
        if len(start) > _DEEPEST:
            raise ValueError(f"it is nested more than {_DEEPEST} levels deep")
        if total > _MAX_NODES:
            raise ValueError(f"it has more than {_MAX_NODES} values")


def _entries(file: Path, content: Mapping[str, Any], section: str) -> Iterator[dict[str, Any]]:
    """Yield the entries of a section. Raises UsageError for a malformed one."""
    entries = content.get(section) or []
    if not isinstance(entries, list):
        raise UsageError(f"cannot read kubeconfig {file}: {section} must be a list", hint=_HINT)
    for index, entry in enumerate(entries):
        position, key = f"{section}[{index}]", _SECTIONS[section]
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            wrong = f"{position}.name must be a string, got {printable(repr(name), limit=40)}"
            raise UsageError(f"cannot read kubeconfig {file}: {wrong}", hint="write it in quotes")
        body = entry.get(key)
        if body is not None and not isinstance(body, dict):
            raise UsageError(f"cannot read kubeconfig {file}: {position}.{key} must be a mapping", hint=_HINT)
        _check_texts(file, position, body or {})
        yield {**entry, key: body or {}}


def _check_texts(file: Path, position: str, body: Mapping[str, Any]) -> None:
    """Raise UsageError for a value that must be a single line of text and is not. It may be secret: it is not shown."""
    for key in _TEXTS:
        value = body.get(key, "")
        if value is not None and not isinstance(value, str):
            wrong = f"{position}: {key} must be a string, got a {type(value).__name__}"
            raise UsageError(f"cannot read kubeconfig {file}: {wrong}", hint="write it in quotes")
        if value and not value.isprintable():
            wrong = f"{position}: {key} has a line break or another control character"
            raise UsageError(f"cannot read kubeconfig {file}: {wrong}", hint="write it in one line")


def _absolute(entry: dict[str, Any], field: str, folder: Path) -> dict[str, Any]:
    """Return an entry with absolute file paths in a field: kubectl takes them relative to the kubeconfig."""
    body: dict[str, Any] = entry[field]
    for key in _PATHS:
        if body.get(key):
            body[key] = str((folder / body[key]).resolve())
    match body.get("exec"):
        case {"command": str(command)} if "/" in command:
            body["exec"]["command"] = str(folder.absolute() / command)
    return entry


def _names(contexts: Mapping[str, Any]) -> str:
    return printable(f"choose from {', '.join(sorted(contexts))}", limit=1000) if contexts else "it has none"
