"""Copies of workloads that may run on several clusters: held, released, held again."""

from __future__ import annotations

from tests.conformance.case_environment import FOREVER, Ground, case
from xpk.jobs.placement import copies
from xpk.jobs.placement.copies import Copy
from xpk.jobs.placement.decision import CopyState
from xpk.model import names
from xpk.model.specs import CopySpec
from xpk.model.status import Phase, exit_words
from xpk_shared.supervisor.names import MOVED


@case()
def a_copy_runs_only_while_it_is_released(ground: Ground) -> None:
    clusters = {"clusters": ("here", "there"), "move_after_seconds": 30.0}
    ground.submit("copy", FOREVER, copy=CopySpec(run="r", cluster="here", queue=names.QUEUE, **clusters))  # type: ignore[arg-type]
    first = until(ground, CopyState.HELD)
    ground.a_second()
    status = ground.status("copy")
    assert (status.phase, status.hosts, status.clusters) == (Phase.SUSPENDED, (), ("here", "there"))

    assert copies.release(ground.api, until(ground, CopyState.HELD), 1)
    ground.running("copy")
    assert until(ground, CopyState.RUNNING).view.epoch == 1
    assert not copies.release(ground.api, first, 2), "it was modified since it was read"

    ground.hold(lambda: is_held_after_a_step(ground))
    assert not [host for host in ground.status("copy").hosts if host.phase == "Running"]
    assert not copies.release(ground.api, look(ground), 2), "it obeys epoch 3"
    ground.a_second()
    assert look(ground).view.state is CopyState.HELD

    assert copies.release(ground.api, look(ground), 4)
    if look(ground).view.state is CopyState.RELEASING:  # it was evicted, so Kueue does not move its Workload
        assert copies.release(ground.api, look(ground), 4)
    ground.running("copy")
    assert ground.status("copy").restarts_counted == 0


@case()
def a_copy_whose_run_continues_elsewhere_restarts_uncounted(ground: Ground) -> None:
    """Not at all once it is held; here its second attempt finds the run back."""
    copy = CopySpec(run="r", cluster="here", clusters=("here", "there"), queue=names.QUEUE, move_after_seconds=30.0)
    once = f'[ "$XPK_RESTART_ATTEMPT$TPU_WORKER_ID" != 00 ] || exit {MOVED}; {FOREVER}'
    ground.submit("copy", once, copy=copy, max_restarts=0)
    ground.hold(lambda: copies.release(ground.api, look(ground), 1))
    status = ground.until("copy", lambda status: status.phase is Phase.RUNNING and status.restarts == 1)
    assert status.restarts_counted == 0
    (restart,) = status.restart_history
    assert restart.cause == f"host s0/h0 ended with {exit_words(MOVED)}"


def look(ground: Ground) -> Copy:
    """Read the copy."""
    return copies.look(ground.api, "copy", ground.namespace, "r")


def is_held_after_a_step(ground: Ground) -> bool:
    """Do the next step to hold the copy in epoch 3; return whether it is held."""
    copies.hold(ground.api, look(ground), 3)
    view = look(ground).view
    return (view.state, view.epoch) == (CopyState.HELD, 3)


def until(ground: Ground, state: CopyState) -> Copy:
    """Wait until the copy has a state, and return it."""
    ground.hold(lambda: look(ground).view.state is state)
    return look(ground)
