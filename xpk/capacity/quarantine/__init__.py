"""Quarantine of nodes that evidence speaks against."""
