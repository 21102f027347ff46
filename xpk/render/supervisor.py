"""The supervisor of a host's command: the file of its program, and the command that starts it."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from xpk.model import names
from xpk.model.specs import WorkloadSpec
from xpk_shared.supervisor.names import FATAL, GRACE, IMPORTS, LIMIT, MOVED, UNFIT

FILE = names.SUPERVISOR_FILE
_ALONE = 'exec "$0" "$@"'
# The arguments are the user's command. An image without Python runs it alone. -I: no module of the user's is imported.
START = ("bash", "-c", f'command -v python3 > /dev/null && exec python3 -I {FILE} "$0" "$@"; {_ALONE}')
_PACKAGES = ("links", "supervisor")  # of xpk_shared
_REPLACEMENT, _REGISTRY = "replacement_", "registry"  # prefixes of modules
_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest that the format has: equal programs are equal files


def is_supervised(spec: WorkloadSpec) -> bool:
    """Return whether the supervisor runs the command. A local cluster's control plane watches the hosts by itself.

    That of slice 0 host 0 also keeps the registry of elastic slices.
    """
    return spec.restart_in_place or bool(spec.min_slices) or (spec.peer_watch and not spec.target.on_this_machine)


def command_of(container: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the command of a host's container without the supervisor, which earlier versions started otherwise."""
    command, args = container.get("command") or [], container.get("args") or []
    supervised = args and len(command) == len(START) and command[-1].endswith(_ALONE)
    return tuple(args if supervised else (*command, *args))


def restart_values(spec: WorkloadSpec) -> dict[str, str]:
    """Return the variables by which the supervisor restarts the command in place; none if it must not."""
    if not spec.restart_in_place:
        return {}
    # A host that has failed a check would fail again in the same pod. Its JobSet may find another machine.
    unfit, moved = [UNFIT] if spec.preflight else [], [MOVED] if spec.copy else []
    fatal = " ".join(map(str, sorted({*spec.fatal_exit_codes, *unfit, *moved})))
    values = {LIMIT: str(spec.max_restarts), FATAL: fatal}
    if spec.replaces_slices:
        values[GRACE] = str(spec.termination_grace_seconds)
    if spec.standby_imports:
        values[IMPORTS] = "" if spec.standby_imports == "none" else spec.standby_imports
    return values


@cache
def supervisor_archive(*, elastic: bool = False, replaces_slices: bool = False) -> bytes:
    """Return the supervisor as a file that any Python 3.8 or later runs: an uncompressed zip archive.

    It has only the modules that the workload needs: of elastic slices, or of slices that are replaced one by one.
    """
    root = files("xpk_shared")
    needed = {_REGISTRY: elastic, _REPLACEMENT: replaces_slices}
    left_out = tuple(prefix for prefix, is_needed in needed.items() if not is_needed)
    sources = {
        f"xpk_shared/{package}/{file.name}": file.read_bytes()
        for package in (*_PACKAGES, *(["slices"] if elastic else []))
        for file in (root / package).iterdir()
        if file.name.endswith(".py") and not file.name.startswith(left_out)
    }
    sources["xpk_shared/__init__.py"] = (root / "__init__.py").read_bytes()
    sources["__main__.py"] = sources["xpk_shared/supervisor/__main__.py"]
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:  # uncompressed: an image's Python may lack zlib
        for name in sorted(sources):
            entry = zipfile.ZipInfo(name, _TIME)
            entry.create_system = 3  # Unix, on every machine
            archive.writestr(entry, sources[name])
    return content.getvalue()
