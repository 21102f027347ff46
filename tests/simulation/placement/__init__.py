"""Simulated races between placers of a workload that may run on several clusters."""
