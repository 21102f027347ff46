"""Several hosts that are connected within one process."""

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

from tests.ports import free_port
from trainer.hosts.peers import Peers

SECONDS = 20.0
Heard = queue.Queue[tuple[str, int]]


def host(
    process_id: int, processes: int, heard: Heard, attempt: int = 0, job: Sequence[str] = (), **more: Any
) -> Peers:
    return Peers(
        process_id,
        processes,
        attempt,
        job,
        on_lost=lambda peer: heard.put(("lost", peer)),
        on_message=lambda what, by: heard.put((what, by)),
        **more,
    )


def together(actions: list[Callable[[], object]], seconds: float = SECONDS) -> list[object]:
    """Call all functions concurrently, like hosts would, and return the results."""
    results: list[object] = [None] * len(actions)

    def do(n: int) -> None:
        results[n] = actions[n]()

    threads = [threading.Thread(target=do, args=(n,), daemon=True) for n in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
        assert not thread.is_alive(), "still waiting"
    return results


def connected(processes: int, port: int = 0, **more: Any) -> tuple[list[Peers], list[Heard]]:
    heard: list[Heard] = [queue.Queue() for _ in range(processes)]
    hosts = [host(n, processes, heard[n], **more) for n in range(processes)]
    port = port or free_port()
    together([lambda peers=peers: peers.connect("127.0.0.1", port, SECONDS) for peers in hosts])  # type: ignore[misc]
    return hosts, heard
