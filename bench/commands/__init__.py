"""Measurement of commands, next to Google's xpk: `python -m bench.commands`."""
