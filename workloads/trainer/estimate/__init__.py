"""Estimates before a chip is bought: memory, traffic, FLOPs and ahead-of-time compilation."""
