"""A test with Hypothesis that exceeds its time limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SLOW = """
import time
from hypothesis import HealthCheck, given, settings, strategies as st

@given(st.lists(st.integers().map(lambda number: time.sleep(0.01) or number), min_size=20))
@settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
def test_slow(numbers): pass
"""


FAILS_WHILE_IT_ENDS = """
from tests.time_limit import TimeLimitExceeded

def test_slow():
    try:
        raise TimeLimitExceeded("the test ran for longer than 1 s")
    finally:
        raise ValueError("Flaky")
"""


@pytest.mark.parametrize("program", [SLOW, FAILS_WHILE_IT_ENDS], ids=["slow", "fails-while-it-ends"])
def test_a_time_limit_is_not_a_failing_example(tmp_path: Path, program: str) -> None:
    file = tmp_path / "test_slow.py"
    file.write_text(program)
    limit = ("-p", "tests.time_limit", "--timeout", "1")
    argv = [sys.executable, "-m", "pytest", "-q", "--tb=line", *limit, "--rootdir", str(tmp_path)]
    done = subprocess.run([*argv, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "TimeLimitExceeded: the test ran for longer than 1 s" in done.stdout, done.stdout
    assert "Flaky" not in done.stdout and "Falsifying example" not in done.stdout
