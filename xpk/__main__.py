"""The program `xpk`: what is interrupted while it still imports its modules ends as later on."""

from __future__ import annotations

import sys  # and nothing else: an interrupt before `run` is a traceback


def run() -> None:
    """Be the program `xpk`."""
    try:
        from xpk.cli.main import run as program

        program()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    run()
