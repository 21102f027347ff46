"""Checks of the hosts that a command begins with, `python3 -P -m trainer preflight -- PROGRAM`.

They are repeated in each attempt until they have passed. Then the program runs without them, because a restart in place
is on the same machines. The first host decides this for all, because all hosts run the checks together.
"""

from __future__ import annotations

import os

from xpk_shared.supervisor.names import PASSED, PREFLIGHT


class Preflight:
    """The checks and the program of one host's command."""

    def __init__(self, argv: list[str]) -> None:
        self._argv, self.program = argv, without_preflight(argv)
        # In memory: its path is open to this host's processes only.
        self._file = os.memfd_create("preflight") if self.program != argv else -1

    @property
    def environment(self) -> dict[str, str]:
        """The variable with the file in which the checks note that all hosts have passed; none without checks."""
        return {PASSED: f"/proc/{os.getpid()}/fd/{self._file}"} if self._file >= 0 else {}

    @property
    def has_passed(self) -> bool:
        """True once all hosts have passed."""
        return self._file >= 0 and os.fstat(self._file).st_size > 0

    def argv(self, *, is_passed: bool) -> list[str]:
        """Return the command of an attempt. If it begins with the checks, they have not passed."""
        if self._file >= 0 and not is_passed:
            os.ftruncate(self._file, 0)
        return self.program if is_passed else self._argv


def without_preflight(argv: list[str]) -> list[str]:
    """Return a command without the checks of the hosts that it begins with."""
    if tuple(argv[: len(PREFLIGHT)]) != PREFLIGHT or "--" not in argv:
        return argv
    return argv[argv.index("--") + 1 :]
