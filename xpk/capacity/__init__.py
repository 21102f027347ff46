"""Clusters and their slices, planned as steps and then changed. Capacity never runs code."""
