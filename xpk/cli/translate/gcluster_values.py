"""Conversions of values of gcluster's flags. Each adds flags of this xpk to a draft, or notes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from xpk.cli.translate.flags import Draft
from xpk.cli.translate.words import has_variables
from xpk.model.names import PRIORITIES, ZONE

_TIME = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_UNLIMITED = ("", "-1", "-1s")
_MODES = {"ro": True, "rw": False}
_ALWAYS_SET = "implicit-dirs"  # the mount option that every bucket gets here


def add_text(draft: Draft, flag: str, to: str, value: str) -> None:
    """Add a value as it is."""
    draft.add(to, value)


def add_priority(draft: Draft, flag: str, to: str, value: str) -> None:
    """Add a priority, in lower case: gcluster ignores its case."""
    if has_variables(value) or value.lower() in PRIORITIES:
        draft.add(to, value if has_variables(value) else value.lower())
    else:
        draft.lose(flag, f"unknown priority '{value}': choose from {', '.join(PRIORITIES)}")


def add_integer(draft: Draft, flag: str, to: str, value: str) -> None:
    """Add a number."""
    if has_variables(value) or value.isdecimal():
        draft.add(to, value)
    else:
        draft.lose(flag, f"expected a number, got '{value}'")


def add_seconds(draft: Draft, flag: str, to: str, value: str) -> None:
    """Add a duration such as `1h30m`, `90s` or `90` in whole seconds."""
    seconds = _seconds(draft, flag, value)
    if seconds is not None:
        draft.add(to, str(int(seconds)))


def add_timeout(draft: Draft, flag: str, to: str, value: str) -> None:
    """Add --wait with a time limit: gcluster waits if it has one."""
    if value in _UNLIMITED:
        return
    seconds = _seconds(draft, flag, value)
    if seconds is not None:
        draft.add("--wait")
        draft.add("--timeout", f"{seconds:g}s")


def add_zone(draft: Draft, flag: str, to: str, value: str) -> None:
    """Add a zone; a region is not needed."""
    if has_variables(value) or ZONE.fullmatch(value):
        draft.add(to, value)
    else:
        draft.omit(flag, "a cluster is found by its name, in any location of its project")


def add_secret(draft: Draft, flag: str, to: str, value: str) -> None:
    """Add the Secret to pull images with."""
    first, *others = [name.strip() for name in value.split(",")]
    draft.add("--docker-image-pull-secret", first)
    if others:
        draft.lose(flag, f"only '{first}' is used; one Secret can hold the credentials of several registries")


def add_provisioning(draft: Draft, value_of: Mapping[str, str]) -> None:
    """Add the capacity that node autoprovisioning requests."""
    model, reservation = value_of.get("--gke-nap-provisioning", "").lower(), value_of.get("--gke-nap-reservation", "")
    if model in ("on-demand", "spot") and not reservation:
        draft.add(f"--{model}")
    elif reservation and model in ("", "reservation"):
        draft.add("--reservation", reservation)
    else:
        draft.lose("--gke-nap-provisioning", "pass --on-demand, --spot or --reservation NAME")


def add_mount(draft: Draft, flag: str, to: str, value: str) -> None:
    """Add mounts: `SOURCE;TARGET[;ro|rw][;options=OPTIONS]`, or in earlier releases `SOURCE:TARGET[:ro|rw],...`."""
    if ";" in value:
        _add_mount(draft, flag, value, [part.strip() for part in value.split(";")])
        return
    for text in value.split(","):
        scheme, separator, rest = text.rpartition("://")
        source, *others = rest.split(":")
        _add_mount(draft, flag, text, [f"{scheme}{separator}{source}", *others])


def _add_mount(draft: Draft, flag: str, text: str, parts: list[str]) -> None:
    source, target, *settings = [*parts, ""] if len(parts) < 2 else parts
    options = ""
    read_only = True
    for setting in settings:
        name, equals, rest = setting.partition("=")
        if setting in _MODES:
            read_only = _MODES[setting]
        elif equals and name == "options":
            options = rest
        else:
            draft.lose(flag, f"'{text}' is not SOURCE;TARGET[;ro|rw][;options=OPTIONS]")
            return
    source = source.removeprefix("pvc://")
    is_path = target.startswith("/") or has_variables(target)
    if not source or not is_path or "," in source + target:
        draft.lose(flag, f"'{text}' is not SOURCE;TARGET[;ro|rw][;options=OPTIONS]")
    elif source.startswith("filestore://"):
        attach = "`xpk storage attach NAME --type gcpfilestore --manifest FILE`"
        draft.lose(flag, f"{attach} names the instance; pass --storage NAME instead of --mount")
    elif source.startswith("/"):
        _add_node_folder(draft, flag, source, target, read_only)
    else:
        draft.add("--mount", f"source={source},target={target}{',readonly' if read_only else ''}")
        if others := ",".join(option for option in options.split(",") if option not in ("", _ALWAYS_SET)):
            bucket = f"--bucket {source.removeprefix('gs://')} --mount-point {target} --mount-options {others}"
            attach = f"`xpk storage attach NAME --type gcsfuse {bucket}`"
            draft.lose(
                flag, f"mount options '{others}': {attach} names the bucket; pass --storage NAME instead of --mount"
            )


def _add_node_folder(draft: Draft, flag: str, source: str, target: str, read_only: bool) -> None:
    """Add a folder of the nodes, which is mounted at its own path."""
    draft.add("--node-folder", source)
    if target != source:
        draft.lose(flag, f"the nodes' folder {source} is mounted at {source}, not at {target}; change the command")
    elif read_only:
        draft.omit(flag, f"hosts can also write to {source}")


def _seconds(draft: Draft, flag: str, value: str) -> float | None:
    """Return the seconds of a duration of Go, or of a number; None, with a note, for anything else."""
    if value.isdecimal():
        return float(value)
    if value and not has_variables(value) and not _TIME.sub("", value):
        return sum(float(number) * _SECONDS[unit] for number, unit in _TIME.findall(value))
    hint = "seconds" if has_variables(value) else f"a time such as 90s, 5m or 2h, got '{value}'"
    draft.lose(
        flag, f"expected {hint}" + ("; the value of a variable is not converted" if has_variables(value) else "")
    )
    return None
