"""Data sets: preparation, reading by a subset of hosts, sampling, and batches."""
