"""The program `xpk`: what is interrupted while it still imports its modules ends as later on."""

from __future__ import annotations

import sys
from typing import NoReturn


def run() -> NoReturn:
    """Be the program `xpk`."""
    try:
        from xpk.cli.main import run as program

        program()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    run()
