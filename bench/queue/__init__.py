"""Measurement of the local control plane's queue next to Kueue: `python -m bench.queue`."""
