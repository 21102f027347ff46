"""Every case of behavior: tests/local runs them on processes, e2e on pods."""

from __future__ import annotations

from tests.conformance import failure, life, queue
from tests.conformance.case_environment import CASES

__all__ = ["CASES", "failure", "life", "queue"]
