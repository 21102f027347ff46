"""Cache of compiled executables for the next attempt, which then neither traces nor lowers nor compiles.

JAX's compilation cache has the same machine code, but its key needs the lowered program, which takes seconds to make.
The key here includes everything that determines a program: settings, code, versions, flags, chips (of a CPU also its
features), and the shapes and shardings of its arguments. Unpickling can run any code, so only executables signed with
the workload's secret are read. A program that cannot be read, or loaded by this backend, is compiled.
"""

# mypy: disallow-untyped-calls=False

import hashlib
import os
import pickle
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from trainer.errors import reason
from trainer.storage.signed import SignedFiles
from trainer.telemetry.metrics import say

_CPU_FIELDS = {
    *("vendor_id", "cpu family", "model", "model name", "flags"),  # x86
    *("CPU implementer", "CPU variant", "CPU part", "Features"),  # Arm
}
_PER_HOST = "PROCESS_ID$|COORDINATOR_|LOCAL_DEVICE_IDS$|COMPILATION_CACHE_DIR$"  # identify the host, not the program


class Executables:
    """The cached programs in a folder; process 0 writes them, all hosts read them."""

    def __init__(self, files: SignedFiles, traits: Mapping[str, str]) -> None:
        chips = [(d.id, d.process_index, d.device_kind, getattr(d, "coords", None)) for d in jax.devices()]
        jax_variables = sorted(
            (name, value) for name, value in os.environ.items() if re.match(f"JAX_(?!{_PER_HOST})", name)
        )
        versions = jax.devices()[0].client.platform_version
        self._files = files
        self._key = repr((sorted(traits.items()), jax_variables, versions, chips, cpu_traits() if _is_cpu() else ""))

    def load(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Return a cached program, loaded, or None. Prints a line if a cached program cannot be loaded."""
        try:
            content = self._files.read(self._file(name, arguments))
            if content is None:
                return None
            from jax.experimental.serialize_executable import deserialize_and_load

            return deserialize_and_load(*pickle.loads(content))
        except Exception as error:  # backends raise errors of many types
            say(f"the cached program {name!r} cannot be loaded ({reason(error)[:100]}); compiling it")
            return None

    def keep(self, name: str, arguments: tuple[Any, ...], compiled: Any) -> None:
        """Write a program for the next attempt; print the reason if that fails."""
        try:
            from jax.experimental.serialize_executable import serialize

            self._files.write(self._file(name, arguments), pickle.dumps(serialize(compiled)))
        except Exception as error:
            say(f"the program {name!r} is not cached for a restart: {reason(error)[:100]}")

    def _file(self, name: str, arguments: tuple[Any, ...]) -> str:
        leaves, tree = jax.tree.flatten(arguments)
        forms = [(leaf.shape, str(leaf.dtype), str(getattr(leaf, "sharding", None))) for leaf in leaves]
        digest = hashlib.sha256(f"{self._key} {name} {tree} {forms}".encode()).hexdigest()[:32]
        return f"{name}-{digest}.bin"


def _is_cpu() -> bool:
    return bool(jax.devices()[0].platform == "cpu")


def cpu_traits(file: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Return the properties of this machine's CPU on which compiled code may depend."""
    lines = file.read_text().partition("\n\n")[0].splitlines() if file.exists() else []
    return [platform.machine(), *(line for line in lines if line.split(":")[0].strip() in _CPU_FIELDS)]
