"""`xpk workload`."""
