"""Comparison of the simulated queue with Kueue itself."""
