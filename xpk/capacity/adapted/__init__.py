"""Clusters that xpk did not create."""
