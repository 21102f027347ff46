"""Cases of behavior that every control plane must pass, run by tests/local and by e2e."""

import pytest

pytest.register_assert_rewrite(
    *(f"tests.conformance.{name}" for name in ("ground", "elastic", "life", "failure", "queue", "replacement"))
)
