"""Mutation testing of the modules that make decisions; docs/correctness.md describes it."""
