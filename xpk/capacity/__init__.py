"""Clusters and their slices: planned as steps, then carried out. Capacity never runs code."""
