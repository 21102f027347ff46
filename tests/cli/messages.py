"""Messages of failed commands."""

from __future__ import annotations


def one_line(err: str) -> str:
    """Check that the output is one error and one hint."""
    assert "Traceback" not in err and "internal error" not in err
    error, following = err.strip().splitlines()
    assert error.startswith("error: ") and following.startswith("  hint: "), err
    return error
