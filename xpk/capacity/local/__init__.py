"""Capacity on this machine."""
