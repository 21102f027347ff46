"""A local cluster for programs that use the Python API."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import state as state
from xpk import Cluster
from xpk.cli.main import main


@pytest.fixture
def cluster(state: Path, capfd: pytest.CaptureFixture[str]) -> Cluster:
    """Return a cluster of two slices with two hosts each."""
    assert main(["cluster", "create", "dev", "--tpu-type", "v5litepod-8", "--num-slices", "2"]) == 0
    capfd.readouterr()
    return Cluster("dev")
