"""Every case of behavior: tests/local runs them with processes, e2e with pods."""

from __future__ import annotations

from tests.conformance import elastic, failure, life, queue
from tests.conformance.case_environment import CASES

__all__ = ["CASES", "elastic", "failure", "life", "queue"]
