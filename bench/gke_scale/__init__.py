"""Measurement of `xpk cluster create --provider gke` by number of slices: `python -m bench.gke_scale`."""
