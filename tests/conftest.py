"""Settings for all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.offline.guard import nothing_leaves as nothing_leaves

# The machines that run this are shared and slow by turns: a deadline would test them, not us.
settings.register_profile("ours", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ours")
