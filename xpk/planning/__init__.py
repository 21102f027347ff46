"""The Python API of planning: goodput of a run, and slices for a number of tokens. `xpk` exports it."""
