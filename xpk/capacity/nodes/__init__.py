"""Nodes of slices: inventory, health, cordons, and emulation on nodes without accelerators."""
