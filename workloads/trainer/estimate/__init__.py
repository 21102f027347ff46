"""Estimates without hardware: memory, traffic, FLOPs and ahead-of-time compilation."""
