"""An emulator that is killed and restarted continues."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from google.cloud.container_v1 import Cluster, ClusterManagerClient, NodePool, Operation
from google.cloud.container_v1.services.cluster_manager.transports import ClusterManagerGrpcTransport

from tests.gke_emulator.cloud import PARENT, PROJECT, ZONE, Cloud, slice_pool
from tests.waiting import until
from tools.gke_emulator import GkeEmulator, PoolFault

ROOT = Path(__file__).resolve().parents[2]
RED = f"{PARENT}/clusters/red"


def test_state_is_kept_in_a_folder(tmp_path: Path) -> None:
    with GkeEmulator(speed=2000.0, state=tmp_path, faults=(PoolFault("stockout", name="red-np-1"),)) as gke:
        cloud = Cloud(gke)
        gke.add_reservation("held", project=PROJECT, zone=ZONE, machine_type="ct5lp-hightpu-4t", count=6)
        cloud.running_cluster()
        ended = [cloud.done(cloud.create_slice(number)) for number in (0, 1)]
        before = cloud.client.get_cluster(name=RED)
        cloud.close()
    with GkeEmulator(speed=2000.0, state=tmp_path) as gke:
        cloud = Cloud(gke)
        assert cloud.client.get_cluster(name=RED) == before
        assert [cloud.operation(item) for item in ended] == ended
        assert cloud.rest("GET", f"zones/{ZONE}/reservations/held")[0] == 200
        again = cloud.done(cloud.client.delete_node_pool(name=f"{RED}/nodePools/red-np-1"))
        assert again.start_time > ended[1].end_time  # emulated time does not go back
        cloud.close()


def test_an_operation_continues_after_a_restart(tmp_path: Path) -> None:
    with GkeEmulator(speed=1.0, state=tmp_path, seconds={"CREATE_CLUSTER": 0.0, "CREATE_NODE_POOL": 200.0}) as gke:
        cloud = Cloud(gke)
        cloud.running_cluster()
        begun = cloud.create_slice()
        cloud.close()
    with GkeEmulator(speed=1.0, state=tmp_path) as gke:
        cloud = Cloud(gke)
        assert cloud.operation(begun).status != Operation.Status.DONE
        cloud.close()
    with GkeEmulator(speed=2000.0, state=tmp_path) as gke:
        cloud = Cloud(gke)
        assert not cloud.done(begun).error.code
        assert cloud.pool("red-np-0").status == NodePool.Status.RUNNING
        assert cloud.client.get_cluster(name=RED).current_node_count == 1 + 4
        cloud.close()


@contextmanager
def program(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `python -m tools.gke_emulator` and yield it with its gRPC address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tools.gke_emulator", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        output = process.stdout.readline()
        result = re.search(r"XPK_GKE_ENDPOINT=(\S+)", output)
        assert result, output
        yield process, result[1]
    finally:
        process.kill()
        process.communicate()


def ended(client: ClusterManagerClient) -> bool:
    """Return whether no operation is running and none has failed."""
    operations = client.list_operations(parent=PARENT).operations
    assert not any(item.error.code for item in operations)
    return all(item.status == Operation.Status.DONE for item in operations)


def until_ended(client: ClusterManagerClient) -> None:
    """Wait for all operations."""
    until(lambda: ended(client), seconds=60)


@pytest.mark.slow
def test_the_program_survives_a_kill_during_an_operation(tmp_path: Path) -> None:
    def life(speed: int, do: Callable[[ClusterManagerClient], None]) -> None:
        with program(f"--state={tmp_path / 'state'}", f"--speed={speed}") as (process, target):
            with grpc.insecure_channel(target) as channel:
                do(ClusterManagerClient(transport=ClusterManagerGrpcTransport(channel=channel)))
            process.send_signal(signal.SIGKILL)

    def begin_cluster(client: ClusterManagerClient) -> None:
        expected = Cluster(name="red", locations=[ZONE], node_pools=[slice_pool("red-np-0")])
        client.create_cluster(parent=PARENT, cluster=expected)
        assert not ended(client)

    def begin_slices(client: ClusterManagerClient) -> None:
        until_ended(client)
        for number in range(1, 6):
            client.create_node_pool(parent=RED, node_pool=slice_pool(f"red-np-{number}"))

    def begin_to_delete_one(client: ClusterManagerClient) -> None:
        until_ended(client)
        cluster = client.get_cluster(name=RED)
        assert cluster.status == Cluster.Status.RUNNING and cluster.current_node_count == 6 * 4
        assert {pool.status for pool in cluster.node_pools} == {NodePool.Status.RUNNING}
        client.delete_node_pool(name=f"{RED}/nodePools/red-np-3")

    def look(client: ClusterManagerClient) -> None:
        until_ended(client)
        cluster = client.get_cluster(name=RED)
        assert [pool.name for pool in cluster.node_pools] == [f"red-np-{number}" for number in (0, 1, 2, 4, 5)]
        assert cluster.current_node_count == 5 * 4

    life(1, begin_cluster)
    life(3000, begin_slices)
    life(100, lambda client: time.sleep(1.8))  # about when the slices are created
    life(3000, begin_to_delete_one)
    life(3000, look)


def test_the_program_exits_on_sigterm() -> None:
    with program() as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


def test_bad_arguments_are_rejected_in_one_line() -> None:
    for arguments in (["--fault", '{"kind": "flood"}'], ["--fault", "red"], ["--quota", "CPUS=many"]):
        done = subprocess.run(
            [sys.executable, "-m", "tools.gke_emulator", *arguments], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 2 and "Traceback" not in done.stderr
        assert "error: " in done.stderr.splitlines()[-1]
