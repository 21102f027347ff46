"""Confirmation by XLA's TPU compiler that a step fits, where libtpu is installed. It needs no TPU."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from xpk.jobs.create.trainer_preflight import ask_trainer, check_trainer_installed
from xpk.jobs.search.choices import Choice
from xpk.model.errors import MissingToolError, XpkError
from xpk.proc import Runner


def check_compiler_installed() -> None:
    """Raise MissingToolError unless this machine has the trainer's packages and libtpu."""
    check_trainer_installed()
    if find_spec("libtpu") is None:
        raise MissingToolError(
            "--verify requires libtpu, which contains XLA's TPU compiler",
            hint="pip install 'xpk-multislice[tpu]', or omit --verify",
        )


def verified(runner: Runner, choice: Choice, trainer_args: Sequence[str]) -> Choice:
    """Return the choice with the compiler's answer, which takes minutes. Raises XpkError if the compiler fails."""
    arguments = ["--tpu-type", choice.tpu_type, "--num-slices", str(choice.num_slices), "-o", "json"]
    changes = [word for setting in choice.settings for word in ("--set", setting)]
    result = ask_trainer(runner, "compile", [*arguments, *trainer_args, *changes])
    if result.exit_code:
        raise XpkError(
            f"cannot verify {choice.num_slices} x {choice.tpu_type}: {result.last_line.removeprefix('error: ')}",
            hint="omit --verify",
        )
    report: dict[str, Any] = json.loads(result.stdout)
    return dataclasses.replace(choice, fits_verified=report["fits"], verified_peak_gib=report["peak_gib"])
