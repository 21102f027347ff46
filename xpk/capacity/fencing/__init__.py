"""Fencing of nodes whose machines are gone, so that their workloads restart elsewhere without waiting."""
