"""The usage ledger of simulated clusters, which the real controllers of the local control plane write."""

from __future__ import annotations

import pytest

from tests.simulation.life import HOUR, Life
from tests.simulation.queues import CHIPS
from tests.simulation.world import EPOCH, World
from xpk.jobs.usage.ledger import assemble
from xpk.jobs.usage.sums import balance, sums
from xpk.local import clock, usage
from xpk.model.usage import MICROSECONDS, State

HOURS = 60.0


class MeasuredWorld(World):
    """A world that measures the chips of nodes, and of living hosts, in chip-seconds."""

    lived = offered = 0.0
    measured = -1.0
    _nodes = 0

    def settle(self) -> None:
        if self.measured >= 0:
            length = self.now - self.measured
            self.lived += length * CHIPS * len(self.machine.living())
            self.offered += length * CHIPS * self._nodes
        super().settle()
        self.measured = self.now
        with self.transaction() as tx:
            self._nodes = len(tx.list("Node"))


@pytest.mark.parametrize("number", [0, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 2))])
def test_the_ledger_of_a_clusters_life_closes(number: int) -> None:
    world = MeasuredWorld(f"usage/{number}", slices=3, hosts=2, queues=1 + number % 2)
    world.crash_share = 0.01
    Life(world, calm=8.0)
    world.run(HOURS * HOUR)
    with world.transaction() as tx, clock.replaced(world.clock):
        more = usage.open_records(tx)
    since, until = (round((EPOCH + time) * MICROSECONDS) for time in (0.0, world.measured))
    ledger = assemble([*world.ledger.values(), *more])
    total = balance(ledger, since, until)
    whole = sums(ledger, since, until, lambda hold, cause: ())[()]
    assert whole.held == total.held == whole.productive + whole.lost
    assert total.held + total.free == total.capacity
    # A reservation outlives its nodes by seconds, and by half an hour if slices are elastic.
    assert sum(total.of_type.values()) / MICROSECONDS == pytest.approx(world.offered, rel=0.005)
    assert total.capacity / MICROSECONDS == pytest.approx(world.offered, rel=0.02)
    # Chips are held before hosts start and after they have ended, for which the daemon may have been away.
    assert world.lived <= total.held / MICROSECONDS * 1.01
    assert {hold.state for hold in ledger.holds} >= {State.QUEUED, State.START, State.RUNNING, State.STOP}
