"""Figures of fleet operations that take minutes, from preflight to placement."""
