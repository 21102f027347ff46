"""Hosts of a preflight as processes of this machine: 2 slices of 2 hosts, each with 2 chips."""

import os
import subprocess
import sys
from pathlib import Path

from tests.ports import free_port
from tests.trainer.small import WORKLOADS

_SECONDS = 120.0


def run_hosts(
    folder: Path, *arguments: str, fault: str = "", ends_with: str = "", slices: int = 2, hosts: int = 2
) -> tuple[dict[str, int], dict[str, str]]:
    """Return the exit code and the output of each host, such as `s1/h0`.

    The output folder is `folder`. With `ends_with`, all are killed when this host has ended.
    """
    address = f"127.0.0.1:{free_port()}"
    program = ["tests.trainer.planted_preflight", fault, "preflight"] if fault else ["trainer", "preflight"]
    processes = {}
    for number in range(slices * hosts):
        slice_id, host = divmod(number, hosts)
        env = {
            "MEGASCALE_NUM_SLICES": str(slices),
            "MEGASCALE_SLICE_ID": str(slice_id),
            "TPU_WORKER_ID": str(host),
            "XPK_HOSTS_PER_SLICE": str(hosts),
            "XPK_COORDINATOR_ADDRESS": address,
            "XPK_RESTART_ATTEMPT": "0",
            "XPK_OUTPUT_DIR": str(folder),
            "XPK_TERMINATION_LOG": str(folder / f"termination-s{slice_id}-h{host}"),
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": "2",
            "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
            "PYTHONPATH": f"{WORKLOADS}:{WORKLOADS.parent}",
        }
        processes[f"s{slice_id}/h{host}"] = subprocess.Popen(
            [sys.executable, "-m", *program, *arguments],
            env=os.environ | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    outputs = {}
    try:
        for name in [ends_with] if ends_with else processes:
            outputs[name] = processes[name].communicate(timeout=_SECONDS)[0]
        return {name: processes[name].returncode for name in outputs}, outputs
    finally:
        for name in processes.keys() - outputs.keys():
            processes[name].kill()
            processes[name].communicate()
