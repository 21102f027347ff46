"""The time limit of tests with Hypothesis, which ends the test instead of counting as a failing example.

pytest-timeout raises pytest's own failure anywhere in the test, even while Hypothesis generates data. Hypothesis keeps
that example as a failing one, repeats it, and reports that the strategies are inconsistent.
"""

from __future__ import annotations

import signal
from collections.abc import Generator
from typing import Any

import pytest


class TimeLimitExceeded(BaseException):
    """A test exceeded its time limit; not an Exception, which Hypothesis would catch."""


def pytest_timeout_set_timer(item: pytest.Function, settings: Any) -> bool | None:
    """Set the time limit of a test with Hypothesis; None leaves other tests to pytest-timeout."""
    if not getattr(item.function, "is_hypothesis_test", False):
        return None

    def end(*_: Any) -> None:
        raise TimeLimitExceeded(f"the test ran for longer than {settings.timeout:g} s")

    def cancel() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    item.cancel_timeout = cancel  # type: ignore[attr-defined]  # pytest-timeout calls it
    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Report an exceeded time limit as such, also where Hypothesis fails while it ends the interrupted example."""
    try:
        return (yield)
    except BaseException as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, TimeLimitExceeded):
            cause = cause.__context__
        if cause is None or cause is error:
            raise
        raise cause from None
