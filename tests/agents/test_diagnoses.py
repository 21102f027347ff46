"""Diagnoses by tools alone: for each fault, the answers of at most 3 calls have what an agent must know."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from e2e.matrix.catalog import FAULTS as MATRIX
from tests.agents.conftest import CLUSTER, Agent
from tests.agents.diagnoses import COMMANDS, FAULTS, LONG, diagnose, servers
from tests.cli.conftest import state as state
from xpk import create_cluster
from xpk_shared.storage import client


def test_twenty_faults_of_the_chaos_matrix_are_diagnosed() -> None:
    assert len(FAULTS) >= 20 and FAULTS.keys() <= MATRIX.keys()


def test_the_cause_of_faults_is_in_the_answers_of_three_calls(state: Path) -> None:
    create_cluster(CLUSTER, "v5litepod-1", num_slices=16)
    assert diagnose(Agent("apply"), COMMANDS) == {}


@pytest.mark.slow
@pytest.mark.extended  # the test above has the other faults, by the same tools
@pytest.mark.timeout(600)
def test_the_cause_of_faults_of_trainers_and_servers_is_in_the_answers_of_three_calls(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with servers(state.parent) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        create_cluster(CLUSTER, "v5litepod-1", num_slices=16)
        with closing(client.connect()):  # a request to a bucket that does not answer is abandoned after some seconds
            assert diagnose(Agent("apply"), LONG) == {}
