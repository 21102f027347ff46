"""Every case of behavior: tests/local runs them with processes, e2e with pods."""

from __future__ import annotations

from tests.conformance import copies, elastic, failure, life, queue, replacement
from tests.conformance.case_environment import CASES

__all__ = ["CASES", "copies", "elastic", "failure", "life", "queue", "replacement"]
