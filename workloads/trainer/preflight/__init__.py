"""Preflight checks of the hosts of a workload, before it trains."""
