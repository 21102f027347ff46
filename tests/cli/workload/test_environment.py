"""The environment of programs on GPU and CPU types, and workloads with long names."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Xpk

LONG = "llama-70b-pretraining-ablation-rope-0007"  # the maximum of Google's xpk
ASKED = ("NNODES", "NODE_RANK", "GPUS_PER_NODE", "MASTER_ADDR", "MASTER_PORT", "JAX_COORDINATOR_ADDRESS")
MORE = ("JAX_COORDINATOR_PORT", "JAX_PROCESS_COUNT", "JAX_PROCESS_ID", "PROCESSES_IN_JOB", "JOB_INDEX")


def environments(xpk: Xpk, *flags: str) -> list[list[str]]:
    """Return the environment of each host of a workload with a long name, by rank."""
    values = " ".join(f"${{{name}-none}}" for name in (*ASKED, *MORE))
    assert xpk("cluster", "create", "c", *flags).code == 0
    done = xpk("workload", "create", LONG, flags[-2], flags[-1], "--command", f"echo {values}", "--wait")
    assert done.code == 0, done.err
    lines = xpk("workload", "logs", LONG).out.splitlines()
    return sorted((line.split("│", 1)[1].split() for line in lines if "│" in line), key=lambda words: words[1])


@pytest.mark.parametrize(
    ("flags", "gpus", "in_job", "jobs"),
    [
        (("--tpu-type", "h100-80gb-8", "--num-slices", "2"), "8", "1", ["0", "1"]),
        (("--device-type", "n2-standard-4-2", "--num-slices", "1"), "none", "2", ["0", "0"]),
    ],
)
def test_hosts_have_the_environment_of_googles_xpk(
    xpk: Xpk, flags: tuple[str, ...], gpus: str, in_job: str, jobs: list[str]
) -> None:
    result = environments(xpk, *flags)
    for rank, words in enumerate(result):
        address, port = words[3:5]
        assert address.startswith("127.")  # of the first host, like a name on Kubernetes
        assert 24_000 <= int(port) < 32_000, "one of the workload's own, not 6002 as on Kubernetes"
        first = [str(len(result)), str(rank), gpus, address, port, address]
        assert words == [*first, port, str(len(result)), str(rank), in_job, jobs[rank]]
    assert len(result) == 2
