"""Start, watch, restart and account for multislice training runs."""

__version__ = "0.1.0"
