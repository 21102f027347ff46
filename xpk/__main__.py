"""The program `xpk`. An interrupt during its imports ends it like a later one."""

from __future__ import annotations

import sys  # and nothing else: an interrupt before `run` is a traceback

_COLLECT_EVERY = 50_000  # new objects; Python's default of 700 costs a tenth of a command's time, mostly during imports


def run() -> None:
    """Run `xpk` and exit: the console entry point."""
    try:
        import gc

        gc.set_threshold(_COLLECT_EVERY)
        from xpk.cli.main import run as program

        program()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    run()
