"""Commands of `xpk workload`."""
