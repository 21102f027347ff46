"""Capacity in Docker: kind clusters."""
