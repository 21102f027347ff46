"""Process of bench.reform: joins a group of JAX processes, computes, and leaves the group if told to.

    python reform_member.py FD PROGRAM

Orders come from stdin, answers go to a pipe. The compiled step is kept in PROGRAM.
"""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import contextlib
import gc
import json
import os
import pickle
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.extend.backend
import numpy as np
from jax._src import distributed
from jax.experimental.serialize_executable import deserialize_and_load, serialize
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxlib import _jax

_SIZE = 256


def main() -> None:
    """Obey the orders of stdin."""
    answers, program = int(sys.argv[1]), Path(sys.argv[2])
    for name, value in {
        "jax_cpu_collectives_implementation": "gloo",
        "jax_enable_recoverability": True,
        "jax_enable_preemption_service": False,
        "jax_enable_compilation_cache": False,
    }.items():
        jax.config.update(name, value)
    answer(answers, "ready")
    thread, address = threading.Thread(), ""
    for line in sys.stdin:
        order, *words = line.split()
        if order == "join":
            address = words[0]
            arguments = (answers, program, address, int(words[1]), int(words[2]))
            thread = threading.Thread(target=compute, args=arguments, daemon=True)
            thread.start()
        else:
            leave(thread, int(address.rpartition(":")[2]))
            answer(answers, "left")


def answer(pipe: int, what: str) -> None:
    """Report a mark, with the resources of this process."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    usage = {
        "resident_kib": int(status["VmRSS"].split()[0]),
        "threads": int(status["Threads"]),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }
    os.write(pipe, json.dumps({"what": what, "time": time.time(), "usage": usage}).encode() + b"\n")


def compute(answers: int, program: Path, address: str, processes: int, number: int) -> None:
    """Join a group and compute step after step, until another process has died."""
    join(address, processes, number)
    jax.devices()
    answer(answers, "initialized")
    mesh = Mesh(np.array(jax.devices()).reshape(2, -1), ("y", "x"))
    placed, rows = NamedSharding(mesh, P(None, "x")), NamedSharding(mesh, P(("y", "x")))
    weights, data = array((_SIZE, _SIZE), placed), array((_SIZE, _SIZE), rows)
    step = load(program, number, mesh, placed, rows, weights, data)
    answer(answers, "loaded")
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        weights, loss = step(weights, data)
        jax.block_until_ready(loss)
        answer(answers, "step")
        while True:
            weights, loss = step(weights, data)
            jax.block_until_ready(loss)


def join(address: str, processes: int, number: int) -> None:
    """Connect to the coordination service, which `jax.distributed.initialize` would start in process 0."""
    state = distributed.global_state
    state.client = _jax.get_distributed_runtime_client(
        address, number, init_timeout=60, use_compression=True, heartbeat_timeout=60, shutdown_on_destruction=False
    )
    state.client.connect()
    state.coordinator_address, state.process_id, state.num_processes = address, number, processes


def array(shape: tuple[int, int], placed: NamedSharding) -> jax.Array:
    """Return a small array on all chips."""
    return jax.make_array_from_callback(shape, placed, lambda part: np.full(shape, 1e-3, np.float32)[part])


def load(program: Path, number: int, mesh: Mesh, placed: Any, rows: Any, *arguments: jax.Array) -> Any:
    """Return the compiled step: the kept one, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        return deserialize_and_load(*pickle.loads(program.read_bytes()))

    def step(weights: jax.Array, data: jax.Array) -> tuple[jax.Array, jax.Array]:
        def layer(weights: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            out = jax.numpy.tanh(data @ weights)
            return weights + 1e-3 * out.mean() * weights, out.sum()

        weights, sums = jax.lax.scan(layer, weights, None, length=4)
        return weights, sums.sum()

    out = (placed, NamedSharding(mesh, P()))
    compiled = jax.jit(step, out_shardings=out, donate_argnums=0).lower(*arguments).compile()
    if number == 0:
        saving = program.with_suffix(".saving")
        saving.write_bytes(pickle.dumps(serialize(compiled)))
        saving.rename(program)
    return compiled


def leave(thread: threading.Thread, port: int) -> None:
    """Leave the group: end the step, and destroy the client of the backend."""
    while thread.is_alive() or any(True for _ in connections(port)):
        for connection in connections(port):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        thread.join(0.01)
    state = distributed.global_state
    state.client = None
    jax.clear_caches()
    jax.extend.backend.clear_backends()
    gc.collect()


def connections(port: int) -> Iterator[socket.socket]:
    """Yield the connections of this process but that to the coordination service at `port`."""
    for fd in os.listdir("/proc/self/fd"):
        target = ""
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{fd}")
        if not target.startswith("socket:"):
            continue
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(fd))) as connection:
            is_inet = connection.family in (socket.AF_INET, socket.AF_INET6)
            if not is_inet or connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                continue
            peer = 0
            with contextlib.suppress(OSError):
                peer = connection.getpeername()[1]
            if peer != port:
                yield connection


if __name__ == "__main__":
    main()
