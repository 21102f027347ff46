"""Runs that take too long for CI, and the page of their last results."""
