"""MLPerf's log lines of a run, and what MLPerf's own checker says about them."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from mlperf_logging.compliance_checker import mlp_compliance


def defects(folder: Path, caplog: pytest.LogCaptureFixture, ruleset: str = "4.0.0") -> str:
    """Return what the checker of MLPerf Training says about the lines, also its warnings."""
    caplog.clear()
    checker = mlp_compliance.make_checker("training", ruleset, False, True)
    with caplog.at_level(logging.WARNING):
        is_valid = checker.check_file(str(folder / "mllog.txt"), f"training_{ruleset}/common.yaml")
    assert is_valid == (not caplog.text)
    return caplog.text


def lines(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "mllog.txt").read_text().splitlines()
    assert all(line.startswith(":::MLLOG ") for line in text)
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in text]
