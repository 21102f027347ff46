"""User preferences in a file of `~/.config/xpk`: default values of flags.

Precedence: flag, environment variable, file, built-in default. The file's name differs from `config.yaml`, which
Google's xpk keeps in the same folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xpk.model import names
from xpk.model.closest import with_closest
from xpk.model.errors import UsageError, XpkError
from xpk.storage.text import read_text

FILE = "preferences.toml"
_OTHER_NAMES = {"project-id": "project", "cluster-name": "cluster"}  # those of Google's xpk
_FOREIGN = {
    "client-id": "xpk has no telemetry",
    "send-telemetry": "xpk has no telemetry",
    "cluster-state-gcs-bucket": "the cluster itself is the state",
    "custom-binaries-path": "programs are found on PATH",
}
_LOCK_SECONDS = 10.0
_NEXT = "`xpk config list` shows all settings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting: its meaning, and the flag and variables that override it. `default` is a description.

    `check` returns the problems of a value, one line each.
    """

    name: str
    meaning: str
    default: str
    flag: str
    variables: tuple[str, ...]
    check: Callable[[str], list[str]]
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """The effective value without a flag (None for the default), and its source."""

    value: str | None
    source: str


def _provider(value: str) -> list[str]:
    from xpk.capacity.provider import maker_names  # includes those of other packages

    makers = maker_names()
    return [] if value in makers else [f"unknown provider '{value}': choose from {', '.join(makers)}"]


def _project(value: str) -> list[str]:
    id_ = value.rpartition(":")[2]  # optionally prefixed by a domain
    good = id_[:1].islower() and id_.isascii() and id_.replace("-", "").isalnum() and id_ == id_.lower()
    return [] if good and id_[-1] != "-" else [f"invalid project '{value}': expected an ID such as my-project-1"]


def _zone(value: str) -> list[str]:
    return [] if names.ZONE.fullmatch(value) else [f"invalid zone '{value}': expected a zone such as us-central1-a"]


def _image(value: str) -> list[str]:
    return [f"invalid image '{value}': expected a name without spaces"] if " " in value else []


def _folder(value: str) -> list[str]:
    return [] if value.strip() else ["the name of the folder is empty"]


def _output_root(value: str) -> list[str]:
    good = value.startswith(("gs://", "/"))
    return [] if good else [f"invalid output root '{value}': expected gs://BUCKET/PREFIX or an absolute path"]


def _table(value: str) -> list[str]:
    return (
        []
        if value == "list" or value.startswith("/")
        else [f"invalid price table '{value}': expected an absolute path, or 'list'"]
    )


def _priority(value: str) -> list[str]:
    priorities = ", ".join(names.PRIORITIES)
    return [] if value in names.PRIORITIES else [f"unknown priority '{value}': choose from {priorities}"]


def _count(value: str) -> list[str]:
    good = value.isascii() and value.isdecimal()
    return [] if good else [f"invalid number '{value}': expected an integer of at least 0"]


def _setting(name: str, *, flag: str = "", variables: tuple[str, ...] = (), **more: Any) -> Setting:
    """Return a setting; by default the flag and the variable have its name."""
    variables = variables or (f"XPK_{name.upper().replace('-', '_')}",)
    return Setting(name=name, flag=flag or f"--{name}", variables=variables, **more)


SETTINGS = {
    setting.name: setting
    for setting in (
        _setting(
            "provider",
            meaning="Provider of `xpk cluster create` and `xpk doctor`.",
            default="local; gke if a Google Cloud flag is given",
            check=_provider,
        ),
        _setting(
            "cluster",
            meaning="Cluster of `xpk workload` and `xpk queue`.",
            default="the only existing cluster",
            check=names.cluster_name_problems,
        ),
        _setting(
            "project",
            meaning="gke: project of the clusters.",
            default="the project of gcloud's configuration",
            variables=("XPK_GKE_PROJECT", "GOOGLE_CLOUD_PROJECT"),
            check=_project,
        ),
        _setting(
            "zone",
            meaning="gke: zone of the clusters' nodes.",
            default="the zone of gcloud's configuration",
            variables=("XPK_GKE_ZONE", "CLOUDSDK_COMPUTE_ZONE"),
            check=_zone,
        ),
        _setting(
            "namespace",
            meaning="Namespace of workloads.",
            default="default",
            check=names.namespace_problems,
        ),
        _setting(
            "queue",
            meaning="LocalQueue of `xpk workload create`.",
            default=f"{names.QUEUE}, or the only one of the namespace",
            variables=("XPK_WORKLOAD_CREATE_QUEUE",),
            check=names.queue_name_problems,
        ),
        _setting(
            "image",
            meaning="Image of the hosts of `xpk workload create`.",
            default="the bundled trainer's",
            flag="--docker-image",
            variables=("XPK_WORKLOAD_CREATE_IMAGE",),
            check=_image,
        ),
        _setting(
            "script-dir",
            meaning="Code folder that `xpk workload create` uploads; `.` is the current one, as in Google's xpk.",
            default="no code is uploaded",
            variables=("XPK_WORKLOAD_CREATE_SCRIPT_DIR",),
            check=_folder,
        ),
        _setting(
            "output-root",
            meaning="Parent folder of output: workloads write to OUTPUT_ROOT/NAME.",
            default="the cluster's output root",
            check=_output_root,
        ),
        _setting(
            "priority",
            meaning="Priority of `xpk workload create`.",
            default="medium",
            variables=("XPK_WORKLOAD_CREATE_PRIORITY",),
            check=_priority,
            choices=tuple(names.PRIORITIES),
        ),
        _setting(
            "max-restarts",
            meaning="Maximum number of restarts after failures, for `xpk workload create`.",
            default="0",
            variables=("XPK_WORKLOAD_CREATE_MAX_RESTARTS",),
            check=_count,
        ),
        _setting(
            "prices",
            meaning="Price table of `xpk usage`, or `list` for list prices.",
            default="list prices if the cluster has a region",
            variables=("XPK_USAGE_PRICES",),
            check=_table,
        ),
    )
}


def setting(name: str) -> Setting:
    """Return a setting by its name, or by its name in Google's xpk. Raises UsageError that names the closest one."""
    if problem := _why(name):
        raise UsageError(problem, hint=_NEXT)
    return SETTINGS[own_name(name)]


def foreign_reason(name: str) -> str:
    """Return why a setting of Google's xpk has no effect here, "" for any other."""
    return _FOREIGN.get(name, "")


def own_name(name: str) -> str:
    """Return the name of a setting: some have another name in Google's xpk."""
    return _OTHER_NAMES.get(name, name)


def path(environ: Mapping[str, str] = os.environ, home: Path | None = None) -> Path:
    """Return the file's path; XPK_CONFIG_DIR overrides its folder."""
    if folder := environ.get("XPK_CONFIG_DIR"):
        return Path(folder).expanduser().absolute() / FILE
    base = environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else (home or Path.home()) / ".config") / "xpk" / FILE


def load(environ: Mapping[str, str] = os.environ, home: Path | None = None) -> dict[str, str]:
    """Return the values in the file. Raises UsageError with all problems of the file."""
    file = path(environ, home)
    values = _parse(file)
    # The provider's existence is checked on use, since other packages may supply it.
    problems = [problem for key, value in values.items() for problem in _problems(key, value, skip="provider")]
    if problems:
        raise UsageError(
            problems[0],
            problems=[f"{file}: {problem}" for problem in problems],
            hint="`xpk config unset KEY`, or edit the file",
        )
    return {own_name(key): str(value) for key, value in values.items()}


def is_known(name: str) -> bool:
    """Return whether a setting of this name exists."""
    return own_name(name) in SETTINGS


def change(
    changes: Mapping[str, str | None], environ: Mapping[str, str] = os.environ, *, known: Sequence[str] = ()
) -> None:
    """Set values, and unset those that are None, atomically. Raises UsageError with all problems.

    Unknown keys in the file can be unset too. `known`: problems that the caller has noticed.
    """
    problems = [*known]
    problems += [problem for key, value in changes.items() if value is not None for problem in _problems(key, value)]
    file = path(environ)
    with _locked(file.parent):
        values = _parse(file)
        problems += [why for key, value in changes.items() if value is None and key not in values if (why := _why(key))]
        if problems:
            raise UsageError(problems[0], problems=problems, hint=_NEXT)
        for key, value in changes.items():
            for name in [other for other in values if own_name(other) == own_name(key)]:
                del values[name]
            if value is not None:
                values[own_name(key)] = value
        strange = [f"{file}: {key}: {value!r} is not a string" for key, value in values.items() if not _is_text(value)]
        if strange:
            raise UsageError(strange[0], problems=strange, hint="edit the file, or `xpk config unset KEY`")
        text = "# `xpk config set` rewrites this file: comments are lost.\n"
        # A JSON string is a valid TOML string except for unprintable characters, which values cannot contain.
        text += "".join(f"{_key(key)} = {json.dumps(str(values[key]), ensure_ascii=False)}\n" for key in sorted(values))
        _write(file, text)


def effective_setting(
    name: str, saved: Mapping[str, str], environ: Mapping[str, str] = os.environ, home: Path | None = None
) -> EffectiveValue:
    """Return the effective value of a setting without its flag, and the value's source."""
    for variable in SETTINGS[name].variables:
        if value := environ.get(variable):  # an empty variable counts as unset
            return EffectiveValue(value, f"variable {variable}")
    if name in saved:
        return EffectiveValue(saved[name], str(path(environ, home)))
    return EffectiveValue(None, "default")


def _why(name: str) -> str | None:
    canonical = own_name(name)
    if canonical in SETTINGS:
        return None
    if canonical in _FOREIGN:
        return f"'{name}' is a setting of Google's xpk that has no effect here: {_FOREIGN[canonical]}"
    return with_closest(f"unknown setting '{name}'", name, [*SETTINGS, *_OTHER_NAMES], cutoff=0.5)


def _problems(key: str, value: Any, *, skip: str = "") -> list[str]:
    if problem := _why(key):
        return [problem]
    canonical = own_name(key)
    if not _is_text(value):
        return [f"{canonical}: {value!r} is not a string"]
    text = str(value)
    if not text.strip() or not text.isprintable() or text != text.strip():
        what = "is empty" if not text.strip() else "has characters that are not printable, or spaces around it"
        return [f"{canonical}: the value {what}"]
    return [] if canonical == skip else [f"{canonical}: {problem}" for problem in SETTINGS[canonical].check(text)]


def _is_text(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _parse(file: Path) -> dict[str, Any]:
    try:
        text = read_text(file, hint="repair it, or remove it")
    except FileNotFoundError:
        return {}
    import tomllib  # usually the file does not exist

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} is not TOML: {error}", hint="repair it, or remove it") from error


def _key(key: str) -> str:
    return key if key in SETTINGS else json.dumps(key, ensure_ascii=False)


def _write(file: Path, text: str) -> None:
    from xpk.capacity.kubeconfig import write_private

    try:
        write_private(file.resolve(), text)  # resolved, since it may be a link to a dotfiles folder
    except XpkError as error:
        raise XpkError(error.message, hint="set XPK_CONFIG_DIR to a writable folder") from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the file against other processes. The lock is on the folder, so no lock file stays behind."""
    from xpk.storage.private import make_missing, wait_for_lock

    try:
        make_missing(folder)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        message = f"cannot write to '{folder}': {error.strerror}"
        raise XpkError(message, hint="set XPK_CONFIG_DIR to a writable folder") from error
    try:
        hint = f"`fuser {folder}` shows its process; run this command again when it has ended"
        wait_for_lock(lock, "the preferences", seconds=_LOCK_SECONDS, tell=lambda text: None, hint=hint)
        yield
    finally:
        os.close(lock)
