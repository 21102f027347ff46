"""The programs of the matrix, and the losses of their undisturbed runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from e2e.harness import Lab
from e2e.kind_cluster import TPU_TYPE as KIND_TPU_TYPE
from e2e.matrix.fault import KIND, LOCAL, PLAIN, RAY, TRAINER
from e2e.soak.injection import DISTURBED, STEPS, TPU_TYPE, reference_losses
from e2e.soak.on_kind import SETTINGS as KIND_SETTINGS

SLICES, HOSTS_PER_SLICE = 2, 2
HOSTS = SLICES * HOSTS_PER_SLICE
TPU_TYPES = {LOCAL: TPU_TYPE, KIND: KIND_TPU_TYPE}
TITLES = {TRAINER: "bundled trainer", PLAIN: "plain command", RAY: "trainer under Ray"}
DETAILS = {
    TRAINER: "`python -m trainer`, a small decoder that saves every 5 steps",
    PLAIN: "`--command` with `examples/jax_train.py`, which saves every 5 steps and [records a SIGTERM]"
    "(environment.md#exit-codes-of-hosts)",
    RAY: "`--launcher ray`: the same training by Ray's driver and actors",
}
_FIRST_STEPS = 400  # of the first reference
_STEP_SECONDS = 3.0  # maximum mean time of a step
_HERE = Path(__file__).parent


@dataclass(slots=True)
class Programs:
    """The programs on one platform; references are run when they are needed."""

    lab: Lab
    platform: str
    _references: dict[str, dict[int, str]] = field(default_factory=dict)

    def arguments(self, program: str, *settings: str) -> list[str]:
        """Return the arguments of the trainer; [] for a command."""
        if program == PLAIN:
            return []
        words = DISTURBED if self.platform == LOCAL else [*KIND_SETTINGS, "--set", "observe.hang_seconds=10"]
        return [*words, *(word for setting in settings for word in ("--set", setting))]

    def options(self, program: str) -> list[str]:
        """Return the options of `workload create` for a program."""
        if program == RAY:
            return ["--launcher", "ray"]
        if program == PLAIN:
            return ["--script-dir", str(self._code()), "--env", f"STEPS={STEPS}", "--command", "python paced.py"]
        return []

    def losses(self, program: str, step: int) -> dict[int, str]:
        """Return the losses of an undisturbed run until a step at least, in hexadecimal."""
        key = PLAIN if program == PLAIN else TRAINER  # under Ray they are the same
        kept = self.lab.folder / f"losses-{key}.json"  # a kept cluster has those of an earlier invocation
        if key not in self._references and kept.exists():
            self._references[key] = {int(number): loss for number, loss in json.loads(kept.read_text()).items()}
        known = self._references.get(key, {})
        if max(known, default=0) < step:
            steps = max(_FIRST_STEPS, step + step // 4)
            name, seconds = f"calm-{key}-{steps}", 120 + _STEP_SECONDS * steps
            options = ["--fresh", *self.options(key)]
            self._references[key] = reference_losses(
                self.lab, name, SLICES, steps, seconds, trainer=self.arguments(key), options=options
            )
            kept.write_text(json.dumps(self._references[key]))
        return self._references[key]

    def _code(self) -> Path:
        """Return the folder that is shipped with the plain command."""
        folder = self.lab.folder / "code"
        folder.mkdir(exist_ok=True)
        for file in (_HERE / "paced.py", _HERE.parents[1] / "examples" / "jax_train.py"):
            shutil.copy(file, folder)
        return folder


def place_of(host: int) -> tuple[int, int]:
    """Return the slice of a host of the whole job, and its number there."""
    return divmod(host, HOSTS_PER_SLICE)


def names_of(hosts: Sequence[int]) -> str:
    """Return hosts in words."""
    return ", ".join("slice {} host {}".format(*place_of(host)) for host in hosts)
