"""Simulation of a cluster's queues: estimated starts, what-if changes, and replayed traces."""
