"""Agreement of all hosts on the step after which they stop."""

import functools
import queue
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ports import free_port
from tests.trainer.hosts.connections import SECONDS, host, together
from trainer.hosts.stop_step import StopStep


class Hosts:
    """Connected hosts whose steps need all of them: none starts a step before all have started the last but one."""

    def __init__(self, processes: int, started: int = 0) -> None:
        self.ended: queue.Queue[int] = queue.Queue()
        self.peers = [host(n, processes, queue.Queue()) for n in range(processes)]
        self.stops = [StopStep(peers, functools.partial(self.ended.put, n)) for n, peers in enumerate(self.peers)]
        self._started, self._changed = [started] * processes, threading.Condition()
        port = free_port()
        together([functools.partial(peers.connect, "127.0.0.1", port, SECONDS) for peers in self.peers])

    def start(self, nth: int, step: int) -> bool:
        """Start a step if the host may."""
        with self._changed:
            assert self._changed.wait_for(lambda: min(self._started) >= step - 2, SECONDS), "others stopped earlier"
        if not self.stops[nth].try_start(step):
            return False
        with self._changed:
            self._started[nth] = step
            self._changed.notify_all()
        return True

    def run(self, nth: int, ask_at: int = 0, pause: float = 0.0) -> int:
        """Start steps until all hosts stop, and ask for that before step `ask_at`; return the last one."""
        while True:
            step = self._started[nth] + 1
            if step == ask_at:
                self.stops[nth].request()
            time.sleep(pause)
            if not self.start(nth, step):
                return step - 1

    def leave(self) -> None:
        together([peers.leave for peers in reversed(self.peers)])


@pytest.mark.parametrize("processes", [1, 3])
def test_all_stop_after_a_step_that_one_has_started(processes: int) -> None:
    hosts = Hosts(processes, started=39)
    assert all(hosts.start(nth, 40) for nth in range(processes))
    assert hosts.start(processes - 1, 41)
    hosts.stops[0].request()
    lasts = together([functools.partial(hosts.run, nth) for nth in range(processes)])
    assert len(set(lasts)) == 1 and 41 <= int(str(lasts[0])) <= 43
    assert hosts.ended.empty()
    hosts.leave()


@pytest.mark.parametrize("started", [0, 1])
def test_hosts_end_without_a_step_if_one_has_started_none(started: int) -> None:
    hosts = Hosts(2)
    assert all(hosts.start(1, step) for step in range(1, started + 1))
    for stop in hosts.stops:
        stop.request()
    assert sorted(hosts.ended.get(timeout=SECONDS) for _ in range(2)) == [0, 1]
    late = threading.Thread(target=hosts.stops[0].try_start, args=(1,), daemon=True)
    late.start()
    late.join(0.2)
    assert late.is_alive(), "the process ends meanwhile"
    assert hosts.ended.empty()
    hosts.leave()


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(0, 0.01), min_size=2, max_size=4), st.integers(4, 12), st.data())
def test_all_stop_after_the_same_step_whenever_they_are_asked(
    pauses: list[float], ask_at: int, data: st.DataObject
) -> None:
    count = len(pauses)
    hosts, asked = Hosts(count), data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    lasts = together(
        [functools.partial(hosts.run, n, ask_at if n in asked else 0, pause) for n, pause in enumerate(pauses)]
    )
    assert len(set(lasts)) == 1
    assert int(str(lasts[0])) >= ask_at - 2  # how much later depends on how soon the request arrives
    hosts.leave()
