"""Clusters that xpk did not make."""
