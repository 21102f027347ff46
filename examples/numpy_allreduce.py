"""Train a linear model over the hosts of a CPU slice with NumPy and sockets alone: no framework is needed.

xpk workload create plain --script-dir examples --command 'python numpy_allreduce.py'
"""

from __future__ import annotations

import os
import socket
import time

import numpy as np

STEPS, ROWS, FEATURES, PATIENCE_SECONDS = 50, 32, 8, 60
RANK, HOSTS = int(os.environ["NODE_RANK"]), int(os.environ["NNODES"])
ADDRESS = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))


def connect() -> list[socket.socket]:
    """Return the connections of this host: host 0 has one to each other host, all others one to host 0."""
    if RANK == 0:
        with socket.create_server(ADDRESS, backlog=HOSTS) as server:
            return [server.accept()[0] for _ in range(HOSTS - 1)]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            connection = socket.create_connection(ADDRESS, timeout=PATIENCE_SECONDS)
            connection.settimeout(None)  # MSG_WAITALL waits for all bytes of blocking sockets only
            return [connection]
        except OSError:  # host 0 does not listen yet, or its name does not resolve yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def receive(connection: socket.socket, like: np.ndarray) -> np.ndarray:
    """Return an array of the shape and type of another one."""
    content = connection.recv(like.nbytes, socket.MSG_WAITALL)
    if len(content) < like.nbytes:
        raise ConnectionError("a host is gone")
    return np.frombuffer(content, like.dtype).reshape(like.shape)


def all_reduce(array: np.ndarray, connections: list[socket.socket]) -> np.ndarray:
    """Return the sum of the arrays of all hosts."""
    if RANK == 0:
        total = sum((receive(connection, array) for connection in connections), start=array)
        for connection in connections:
            connection.sendall(total.tobytes())
        return total
    connections[0].sendall(array.tobytes())
    return receive(connections[0], array)


def main() -> None:
    """Fit weights by gradient descent; every host computes the gradient of its own rows."""
    connections = connect()
    weights, truth = np.zeros(FEATURES), np.arange(FEATURES, dtype=float)
    for step in range(1, STEPS + 1):
        x = np.random.default_rng((step, RANK)).normal(size=(ROWS, FEATURES))
        gradient = 2 * x.T @ (x @ (weights - truth)) / ROWS
        weights = weights - 0.1 * all_reduce(gradient, connections) / HOSTS
    print(f"host {RANK} of {HOSTS}: error {np.abs(weights - truth).max():.3f}", flush=True)


if __name__ == "__main__":
    main()
