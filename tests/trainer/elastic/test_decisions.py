"""The record of the active slices."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from trainer.elastic.decisions import FILE, Decisions
from trainer.hosts.bootstrap import Host
from trainer.hosts.membership import TRAIN, Commit, Membership, Seq
from trainer.hosts.peers import Peers
from trainer.storage import open_place
from xpk_shared.slices.roster import ACTIVE, READY, Entry, View

FIXED: Any = SimpleNamespace(decide=lambda at: None)  # intervals of checkpoints


def recorded(tmp_path: Path, *sets: list[tuple[int, str]]) -> list[list[int]]:
    """Return the sets of slices in the file, after steps with decisions on these active slices."""
    events = SimpleNamespace(write=lambda *words, **named: None)
    host = Host(num_slices=3, min_slices=1)
    job: Any = SimpleNamespace(host=host, events=events, leads=True, out=open_place(tmp_path))
    membership: Any = None
    decisions = Decisions(job, membership, FIXED)
    for step, active in enumerate(sets):
        decisions.record(step, {"active": active, "stop": []})
    return [json.loads(line)["slices"] for line in (tmp_path / FILE).read_text().splitlines()]


def test_each_change_is_recorded_once(tmp_path: Path) -> None:
    a, b, c = (0, "a"), (1, "b"), (2, "c")
    assert recorded(tmp_path, [a], [a, b], [a, b], [b], [b, c]) == [[0], [0, 1], [1], [1, 2]]


def test_a_slice_that_is_lost_and_joins_within_a_step_is_recorded_as_lost(tmp_path: Path) -> None:
    a, b = (0, "a"), (1, "b")
    assert recorded(tmp_path, [a, b], [a, (1, "new")]) == [[0, 1], [0], [0, 1]]


def test_slices_that_end_on_request_are_not_recorded_as_lost(tmp_path: Path) -> None:
    events = SimpleNamespace(write=lambda *words, **named: None)
    job: Any = SimpleNamespace(host=Host(num_slices=2), events=events, leads=True, out=open_place(tmp_path))
    membership: Any = None
    Decisions(job, membership, FIXED).record(1, {"active": [(0, "a")], "stop": "all"})
    assert not (tmp_path / FILE).exists()


def test_a_decision_has_the_slices_that_are_active_after_it() -> None:
    entries = {number: Entry(name, phase, ()) for number, name, phase in ((0, "a", ACTIVE), (2, "c", READY))}
    host = Host(num_slices=3, min_slices=1)
    peers: Any = Peers(0, 1, on_lost=lambda peer: None, on_message=lambda what, by: None)
    membership = Membership(host, peers, on_dropped=lambda reason: None)
    membership.own = (0, "a")
    membership.adopt([(0, "a"), (1, "b")], Commit(Seq(1, TRAIN), {}))
    known = {"disk_low": False, "saved": False}

    def decided(**stops: bool) -> Any:
        facts = {number: known | {"stop": stops.get(f"slice_{number}", False)} for number in (0, 1)}
        job: Any = SimpleNamespace(host=host)
        return Decisions(job, membership, FIXED).decide(facts, at=1)["active"]

    peers.announce("slices", View(2, entries | {1: Entry("b", ACTIVE, ())}).as_json())
    assert decided() == [[0, "a"], [1, "b"], [2, "c"]]
    assert decided(slice_1=True) == [[0, "a"], [2, "c"]]
    peers.announce("slices", View(3, entries).as_json())
    assert decided() == [[0, "a"], [2, "c"]]


def test_a_slice_that_is_asked_to_stop_leaves_alone_if_lost_ones_may_start_again() -> None:
    """Of four slices, of which three are needed, number 2 is lost."""
    entries = {number: Entry(name, ACTIVE, ()) for number, name in ((0, "a"), (1, "b"), (3, "d"))}
    host = Host(num_slices=4, min_slices=3)
    job: Any = SimpleNamespace(host=host)

    def decided(*stopping: int, returned: bool = False, **flags: Any) -> tuple[Any, bool]:
        peers: Any = Peers(0, 1, on_lost=lambda peer: None, on_message=lambda what, by: None)
        membership = Membership(host, peers, on_dropped=lambda reason: None)
        membership.own = (0, "a")
        present = entries | ({1: Entry("new", READY, ())} if returned else {})
        membership.adopt([(0, "a"), (1, "b"), (3, "d")], Commit(Seq(1, TRAIN), flags))
        peers.announce("slices", View(2, present).as_json())
        facts = {n: {"stop": n in stopping, "disk_low": False, "saved": False} for n, _ in membership.active}
        made = Decisions(job, membership, FIXED).decide(facts, at=1)
        return made["stop"], made["hold"]

    assert decided(1) == ([1], True), "the other two keep the state"
    assert decided(1, 3) == ("all", False)
    assert decided(3, departed=[[1, "b"]]) == ("all", False)
    assert decided(3, departed=[[1, "b"]], returned=True) == ([3], True)
    assert decided(1, hold=True) == ("all", False), "nobody has started again meanwhile"
    assert decided(0, 1, 3) == ("all", False)


def test_a_step_has_the_term_of_the_view_in_which_it_was_made() -> None:
    """A slice that only waits for others under a new registry has made no step there."""
    peers: Any = Peers(0, 1, on_lost=lambda peer: None, on_message=lambda what, by: None)
    membership = Membership(Host(num_slices=2), peers, on_dropped=lambda reason: None)
    membership.own = (0, "a")
    membership.adopt([(0, "a")], Commit(Seq(1, TRAIN), {"term": 7}))
    peers.announce("slices", View(1, {0: Entry("a", ACTIVE, ())}, term=8).as_json())
    decisions = Decisions(SimpleNamespace(host=Host(num_slices=2)), membership, FIXED)  # type: ignore[arg-type]
    facts = {0: {"stop": False, "disk_low": False, "saved": False}}
    assert [decisions.decide(facts, at=at)["term"] for at in (1, 2)] == [7, 8]


def test_lost_slices_are_recorded_while_too_few_are_left_for_a_step(tmp_path: Path) -> None:
    a, b, host = (0, "a"), (1, "b"), Host(num_slices=2, slice_id=1, min_slices=2)
    peers: Any = Peers(0, 1, on_lost=lambda peer: None, on_message=lambda what, by: None)
    membership = Membership(host, peers, on_dropped=lambda reason: None)
    membership.adopt([a, b], Commit(Seq(5, TRAIN), {}))
    events = SimpleNamespace(write=lambda *words, **named: None)
    job: Any = SimpleNamespace(host=host, events=events, is_first=True, leads=False, out=open_place(tmp_path))
    decisions = Decisions(job, membership, FIXED)
    membership.own = b
    decisions.record(5, {"active": [a, b], "stop": []})
    membership.view = View(2, {1: Entry("b", ACTIVE, ())})
    for _ in range(2):
        decisions.record_view(membership.view)
    decisions.record_view(View(3, {}, is_done=True))
    job.leads = True
    decisions.record(6, {"active": [b, (0, "new")], "stop": []})
    lines = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    assert [(line["step"], line["slices"]) for line in lines] == [(5, [1]), (6, [0, 1])]


def test_a_reduction_between_two_steps_repeats_the_newest_decisions() -> None:
    """Slices that stop or are granted in it would do so twice, or not at all."""
    peers: Any = Peers(0, 1, on_lost=lambda peer: None, on_message=lambda what, by: None)
    host = Host(num_slices=3, min_slices=2)
    membership = Membership(host, peers, on_dropped=lambda reason: None)
    membership.own = (0, "a")
    flags = {"stop": [], "hold": False, "grant": [[2, "c"]], "leader": [0, "a"], "term": 3}
    membership.adopt([(0, "a"), (1, "b"), (2, "c")], Commit(Seq(4, TRAIN), flags))
    entries = {number: Entry(name, ACTIVE, ()) for number, name in enumerate("abc")}
    peers.announce("slices", View(2, entries).as_json())
    job: Any = SimpleNamespace(host=host)
    decisions = Decisions(job, membership, FIXED)
    same, other = {"sums": [7, 8]}, {"sums": [7, 9]}
    assert decisions.repeat({0: same, 1: same, 2: same}) == flags | {"grant": [], "differ": []}
    assert decisions.repeat({0: {}, 1: {}, 2: {}})["differ"] == []
    assert decisions.repeat({0: other, 1: same, 2: same})["leader"] == [1, "b"], "the other slices save this step"
