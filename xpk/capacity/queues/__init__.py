"""Queues with their own quotas: requests, existing state, and plans."""
