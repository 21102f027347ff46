"""Nodes of slices: inventory, health, cordons, and nodes without accelerators that stand in for slices."""
