"""Placement of workloads that may run on several clusters: held copies, of which a lease releases one (ADR 0015)."""
