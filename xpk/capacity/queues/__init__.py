"""Queues with quotas of their own: what there is, what is asked for, and the plans between."""
