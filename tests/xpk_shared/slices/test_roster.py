"""The roster of elastic slices: who is present, who begins the run, and who has to start again."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from xpk_shared.slices.roster import ACTIVE, READY, WAITING, Entry, Progress, Roster, RosterLimits, View, read_view

LIMITS = RosterLimits(form_seconds=60.0, settle_seconds=2.0)


def roster(min_slices: int = 2, num_slices: int = 3) -> Roster:
    """Return an empty roster."""
    return Roster(num_slices, min_slices, LIMITS)


def entry(incarnation: str, phase: str = WAITING) -> Entry:
    """Return a slice of one host."""
    return Entry(incarnation, phase, (("10.0.0.1", 8000),))


def view_of(slices: Roster, now: float) -> View:
    """Return the new view, which there must be."""
    view = slices.view(now)
    assert view is not None
    return view


def test_a_run_begins_when_all_slices_are_present() -> None:
    slices = roster()
    for number in (2, 0):
        assert slices.take(number, entry(f"a{number}"), 0.0)
        assert slices.view(1.0) is None and slices.is_forming
    slices.take(1, entry("a1"), 2.0)
    view = view_of(slices, 2.0)
    assert {*view.slices} == {0, 1, 2} and view.founder == "a0" and not slices.is_forming
    assert read_view(view.as_json()) == view


def test_a_run_begins_late_with_enough_slices() -> None:
    slices = roster(min_slices=2)
    slices.take(2, entry("a2"), 0.0)
    assert slices.view(61.0) is None
    slices.take(1, entry("a1"), 70.0)
    assert view_of(slices, 70.0).founder == "a1"


def test_another_slice_begins_the_run_if_the_first_one_is_lost() -> None:
    slices = roster()
    for number in range(3):
        slices.take(number, entry(f"a{number}"), 0.0)
    assert view_of(slices, 0.0).founder == "a0"
    slices.drop(0)
    assert view_of(slices, 1.0).founder == "a1"
    slices.take(0, entry("b0"), 2.0)
    assert view_of(slices, 2.0).founder == "a1", "the role does not change without need"
    slices.take(1, entry("a1", ACTIVE), 3.0)
    assert view_of(slices, 3.0).founder == ""


def test_a_slice_that_was_lost_or_replaced_does_not_return() -> None:
    slices = roster()
    for number in range(3):
        slices.take(number, entry(f"a{number}"), 0.0)
    view_of(slices, 0.0)
    slices.drop(0)
    slices.take(1, entry("b1"), 1.0)
    assert not slices.take(0, entry("a0"), 2.0) and not slices.take(1, entry("a1", READY), 2.0)
    assert view_of(slices, 2.0).slices == {1: entry("b1"), 2: entry("a2")}


def test_the_slices_begin_again_after_all_were_lost() -> None:
    slices = roster(num_slices=2)
    for number in range(2):
        slices.take(number, entry(f"a{number}", ACTIVE), 0.0)
    view_of(slices, 0.0)
    for number in range(2):
        slices.drop(number)
    slices.take(0, entry("b0"), 5.0)
    assert slices.view(8.0) is None, "the others may still connect"
    slices.take(1, entry("b1"), 9.0)
    assert view_of(slices, 9.0).founder == "b0"


def test_active_slices_stay_if_they_connect_to_a_new_registry_in_time() -> None:
    slices = roster(num_slices=4)
    slices.take(3, entry("a3"), 0.0)
    assert slices.view(30.0) is None, "active slices may be waiting for the name of the new registry"
    for number, now in ((0, 40.0), (1, 41.9)):
        slices.take(number, entry(f"a{number}", ACTIVE), now)
        assert slices.view(now) is None
    view = view_of(slices, 42.0)
    assert {*view.slices} == {0, 1, 3} and view.founder == ""
    assert not slices.take(2, entry("a2", ACTIVE), 42.1), "the others have continued without it"
    assert slices.take(2, entry("b2"), 50.0)
    assert {*view_of(slices, 50.0).slices} == {0, 1, 2, 3}


def test_a_new_registry_does_not_wait_for_the_slice_that_was_lost_with_it() -> None:
    slices = roster()
    slices.take(2, entry("a2", ACTIVE), 0.0)
    assert slices.view(0.1) is None
    slices.take(1, entry("a1", ACTIVE), 0.2)
    assert {*view_of(slices, 0.2).slices} == {1, 2}
    slices.take(0, entry("b0"), 5.0)
    assert {*view_of(slices, 5.0).slices} == {0, 1, 2}


def all_active(slices: Roster, *numbers: int) -> None:
    """Let these slices connect, all of them active."""
    for number in numbers:
        assert slices.take(number, entry(f"a{number}", ACTIVE), 0.0)


def test_slices_return_to_a_registry_that_begins_again() -> None:
    slices = roster(num_slices=4)
    all_active(slices, 0, 1, 2, 3)
    before = view_of(slices, 0.0)
    slices.begin_again()
    all_active(slices, 1, 2, 3)
    assert slices.view(1.0) is None, "slice 0 was there, too"
    all_active(slices, 0)
    after = view_of(slices, 1.0)
    assert after.slices == before.slices and after.number > before.number


def test_a_slice_that_is_lost_before_the_list_is_formed_may_connect_again() -> None:
    """A registry that begins again ends connections, also those over which slices have just registered."""
    slices = roster(num_slices=2)
    all_active(slices, 0, 1)
    view_of(slices, 0.0)
    slices.begin_again()
    all_active(slices, 0)
    slices.drop(0)
    all_active(slices, 0, 1)
    assert {*view_of(slices, 1.0).slices} == {0, 1}


def test_a_new_registry_refuses_slices_that_the_former_one_has_dropped() -> None:
    """The others have trained without it; together they would wait for each other forever."""
    for order in ((1, 2, 3), (2, 1, 3), (3, 2, 1)):
        slices, refused = roster(num_slices=4), list[tuple[int, str]]()
        for number in order:
            dropped = ["a1", "b1"] if number == 3 else []
            if not slices.take(number, entry(f"a{number}", ACTIVE), 0.0, dropped=dropped):
                refused.append((number, f"a{number}"))
        assert refused + slices.pop_evicted() == [(1, "a1")]
        assert slices.take(1, entry("c1"), 1.0)
        assert {*view_of(slices, 1.0).slices} == {1, 2, 3}


def test_a_slice_that_the_others_have_left_out_is_refused_whichever_connects_first() -> None:
    for order in ((0, 1, 2, 3), (1, 0, 2, 3), (3, 2, 1, 0)):
        slices, refused = roster(num_slices=4, min_slices=3), list[tuple[int, str]]()
        all_active(slices, 0, 1, 2, 3)
        view_of(slices, 0.0)
        slices.begin_again()
        for number in order:
            continued = ["a1", "a2", "a3"] if number else []
            if not slices.take(number, entry(f"a{number}", ACTIVE), 1.0, continued):
                refused.append((number, f"a{number}"))
        assert refused + slices.pop_evicted() == [(0, "a0")]
        assert {*view_of(slices, 1.0).slices} == {1, 2, 3}


def test_a_slice_that_was_dropped_before_does_not_say_which_ones_have_continued() -> None:
    """It was frozen while the registry was not, so it does not know which slices there are."""
    slices = roster(num_slices=4)
    all_active(slices, 0, 1, 2, 3)
    slices.view(0.0)
    slices.drop(3)
    slices.view(1.0)
    slices.begin_again()
    all_active(slices, 1)
    assert not slices.take(3, entry("a3", ACTIVE), 2.0, ["a0", "a2", "a3"])
    all_active(slices, 0, 2)
    assert {*view_of(slices, 2.0).slices} == {0, 1, 2} and slices.pop_evicted() == []


def test_a_new_registry_does_not_believe_a_slice_that_the_former_one_has_dropped() -> None:
    for order in ((1, 2, 3), (2, 1, 3), (3, 2, 1)):
        slices, refused = roster(num_slices=4), list[tuple[int, str]]()
        for number in order:
            continued, dropped = (["a1", "a2", "a3"], []) if number == 1 else ([], ["a1"])
            if not slices.take(number, entry(f"a{number}", ACTIVE), 0.0, continued, dropped):
                refused.append((number, f"a{number}"))
        assert refused + slices.pop_evicted() == [(1, "a1")]


def test_a_new_registry_refuses_active_slices_that_those_with_newer_steps_have_left_out() -> None:
    """The ones that knew that slice 1 was dropped have started again since."""
    left = {1: Progress((5, 0, 0), frozenset({"a1", "a2", "a3"}))}
    for order in ((1, 2, 3), (2, 1, 3), (3, 2, 1)):
        slices, refused = roster(num_slices=4), list[tuple[int, str]]()
        for number in order:
            progress = left.get(number, Progress((9, 0, 0), frozenset({"a2", "a3"})))
            if not slices.take(number, entry(f"a{number}", ACTIVE), 0.0, progress=progress):
                refused.append((number, f"a{number}"))
        assert refused + slices.pop_evicted() == [(1, "a1")]


def test_too_few_slices_do_not_form_the_list_alone() -> None:
    """The others may have continued, and are the only ones that have the newest steps."""
    slices = roster(num_slices=4, min_slices=2)
    slices.take(0, entry("a0", ACTIVE), 0.0)
    assert slices.view(60.0) is None
    slices.take(2, entry("a2", ACTIVE), 61.0)
    assert {*view_of(slices, 61.0).slices} == {0, 2}


def test_a_registry_with_too_few_slices_gives_way_to_those_that_have_continued() -> None:
    slices = roster(num_slices=4, min_slices=3)
    all_active(slices, 0, 1, 2, 3)
    view_of(slices, 0.0)
    returns = 1, entry("a1", ACTIVE), ["a1", "a2", "a3"], Progress()
    slices.drop(1)
    assert not slices.is_superseded(*returns), "three are left, which may train"
    for number in (2, 3):
        slices.drop(number)
    view_of(slices, 1.0)
    assert slices.is_superseded(*returns)
    slices.supersede()
    for number in (1, 2, 3):
        assert slices.take(number, entry(f"a{number}", ACTIVE), 2.0, returns[2])
    assert not slices.take(0, entry("a0", ACTIVE), 2.0)
    assert {*view_of(slices, 2.0).slices} == {1, 2, 3}


def test_a_registry_does_not_give_way_to_a_slice_that_was_frozen() -> None:
    slices = roster(num_slices=4, min_slices=3)
    active = frozenset({"a1", "a2"})
    for number in (1, 2):
        slices.take(number, entry(f"a{number}", ACTIVE), 0.0, progress=Progress((8, 0, 0), active))
    slices.take(0, entry("a0"), 0.0)
    view_of(slices, 60.0)
    slices.drop(2)
    frozen = 3, entry("a3", ACTIVE)
    assert not slices.is_superseded(*frozen, ["a1", "a3"], Progress((9, 0, 0), active)), "it is waited for here"
    assert not slices.is_superseded(*frozen, ["a2", "a3"], Progress((7, 0, 0), active)), "its steps are older"
    assert slices.is_superseded(*frozen, ["a2", "a3"], Progress((9, 0, 0), active))
    slices.report(1, Progress((20, 0, 0), frozenset({"a1"})))
    assert not slices.is_superseded(*frozen, ["a2", "a3"], Progress((9, 0, 0), active))


def with_one_active() -> Roster:
    """Return a roster whose slice 0 is the only active one."""
    slices = roster()
    for number in range(3):
        slices.take(number, entry(f"a{number}"), 0.0)
    view_of(slices, 0.0)
    slices.take(0, entry("a0", ACTIVE), 1.0)
    view_of(slices, 1.0)
    return slices


def test_the_only_active_slice_returns_after_its_connection_was_lost() -> None:
    """It has the state, and did not notice that the registry has lost it."""
    slices, start = with_one_active(), Progress((-1, 0, 0))
    slices.lose(0, 1.5)
    assert view_of(slices, 2.0).founder == "" and not slices.needs_founder(3.4)
    assert slices.needs_founder(3.5) and view_of(slices, 3.5).founder == "a1" and not slices.needs_founder(3.6)
    assert slices.take(0, entry("a0", ACTIVE), 4.0, progress=Progress((9, 0, 0), frozenset({"a0"})))
    assert not slices.take(1, entry("a1", ACTIVE), 4.0, progress=start), "it would undo the steps"


def test_the_only_active_slice_is_not_awaited_once_it_has_started_again() -> None:
    slices = with_one_active()
    slices.lose(0, 1.5)
    slices.take(0, entry("b0"), 2.0)
    assert view_of(slices, 2.0).founder == "b0"


def test_the_only_active_slice_does_not_return_once_another_has_begun_the_run_or_if_it_has_left() -> None:
    slices = with_one_active()
    slices.lose(0, 1.5)
    view_of(slices, 3.5)
    assert slices.take(1, entry("a1", ACTIVE), 4.0, progress=Progress((-1, 0, 0)))
    assert not slices.take(0, entry("a0", ACTIVE), 4.0)
    slices = with_one_active()
    slices.drop(0)
    assert not slices.take(0, entry("a0", ACTIVE), 2.0)


def test_a_slice_that_is_ahead_does_not_undo_what_others_say_that_it_trains_with() -> None:
    """It was frozen with the sum of a step that the others have not received; they make the step without it."""
    ahead = 3, entry("a3", ACTIVE), 0.0, (), (), Progress((10, 0, 0), frozenset({"a1", "a2", "a3"}))
    for first in (True, False):
        slices = roster(num_slices=4)
        assert not first or slices.take(*ahead)
        for number in (1, 2):
            progress = Progress((9, 0, 0), frozenset({"a1", "a2"}))
            assert slices.take(number, entry(f"a{number}", ACTIVE), 0.0, ["a1", "a2"], progress=progress)
        assert slices.pop_evicted() == [(3, "a3")] if first else not slices.take(*ahead)
        assert {*view_of(slices, 60.0).slices} == {1, 2}


def test_slices_that_continued_in_a_split_network_are_believed_by_a_registry_that_was_frozen_since() -> None:
    """It dropped them, and the slice beside it says so when all connect again; but it is the one that was left out."""
    slices = roster(min_slices=3, num_slices=4)
    for number in range(4):
        slices.take(number, entry(f"a{number}", ACTIVE), 0.0)
    view_of(slices, 0.0)
    for number in (1, 2, 3):
        slices.lose(number, 1.0)
    slices.begin_again()
    rest = ["a1", "a2", "a3"]
    assert slices.take(0, entry("a0", ACTIVE), 2.0, dropped=rest, progress=Progress((10, 0, 0), frozenset({"a0"})))
    for number in (1, 2):
        ahead = Progress((15, 0, 0), frozenset(rest))
        assert slices.take(number, entry(f"a{number}", ACTIVE), 3.0, rest, ["a0"], ahead)
    assert slices.pop_evicted() == [(0, "a0")]
    assert slices.view(3.0) is None, "a3 may return"
    assert slices.take(3, entry("a3", ACTIVE), 4.0, rest, ["a0"], Progress((15, 0, 0), frozenset(rest)))
    assert {*view_of(slices, 4.0).slices} == {1, 2, 3}


def test_the_progress_of_a_slice_that_was_dropped_does_not_count() -> None:
    slices = roster(num_slices=4)
    slices.take(3, entry("a3", ACTIVE), 0.0, progress=Progress((10, 0, 0), frozenset({"a3"})))
    progress = Progress((7, 0, 0), frozenset({"b1"}))
    assert slices.take(1, entry("b1", ACTIVE), 0.0, dropped=["a3"], progress=progress)


def test_a_slice_that_was_ready_before_the_list_was_formed_without_it_starts_again() -> None:
    """The others may have granted it, and then have trained without it."""
    slices = roster()
    for number in (1, 2):
        slices.take(number, entry(f"a{number}", ACTIVE), 0.0)
    view_of(slices, 2.0)
    assert not slices.take(0, entry("a0", READY), 3.0)
    assert slices.take(0, entry("b0"), 4.0) and slices.take(0, entry("b0", READY), 5.0)


def test_slices_have_their_time_to_connect_although_the_registry_was_frozen() -> None:
    slices = roster()
    slices.take(1, entry("a1", ACTIVE), 0.0)
    slices.take(0, entry("a0"), 0.0)
    slices.postpone(13.0)
    assert slices.view(13.0 + 1.9) is None
    slices.take(2, entry("a2", ACTIVE), 13.0 + 1.9)
    assert {*view_of(slices, 13.0 + 1.9).slices} == {0, 1, 2}


def test_a_slice_that_was_the_founder_in_an_earlier_view_does_not_begin_the_run() -> None:
    slices, start = roster(), Progress((-1, 0, 0))
    for number in range(3):
        slices.take(number, entry(f"a{number}"), 0.0)
    view_of(slices, 0.0)
    assert not slices.take(1, entry("a1", ACTIVE), 1.0, progress=start)
    assert slices.take(0, entry("a0", ACTIVE), 1.0, progress=start)
    assert not roster().take(0, entry("b0", ACTIVE), 1.0, progress=start), "a new registry has named none"


def test_what_a_slice_says_is_forgotten_when_those_it_leaves_out_are_ahead() -> None:
    frozen = 3, entry("a3", ACTIVE), 0.0, ["a2", "a3"]
    behind, ahead = Progress((4, 0, 0), frozenset({"a2", "a3"})), Progress((9, 0, 0), frozenset({"b0", "b1"}))
    for first in (True, False):
        slices = roster(num_slices=4)
        if first:
            assert slices.take(*frozen, progress=behind)
        for number in (0, 1):
            assert slices.take(number, entry(f"b{number}", ACTIVE), 0.0, progress=ahead)
        assert first or not slices.take(*frozen, progress=behind)
        assert {*view_of(slices, 60.0).slices} == {0, 1}


def test_steps_since_a_later_list_are_the_newer_ones() -> None:
    """The slice with more steps was frozen when a registry was lost; then the others trained from an older step."""
    ahead = 3, entry("a3", ACTIVE), 0.0, (), ["a1"], Progress((12, 0, 0), frozenset({"a3"}), term=7)
    trains = Progress((11, 0, 0), frozenset({"a1", "b2"}), term=8)
    for first in (True, False):
        slices = roster(num_slices=4)
        if first:
            assert slices.take(*ahead)
        for number, name in ((2, "b2"), (1, "a1")):
            assert slices.take(number, entry(name, ACTIVE), 0.0, progress=trains)
        assert slices.pop_evicted() == [(3, "a3")] if first else not slices.take(*ahead)
        assert {*view_of(slices, 60.0).slices} == {1, 2}


def test_each_list_that_is_formed_has_a_later_term() -> None:
    slices = roster()
    slices.take(1, entry("a1", ACTIVE), 0.0, progress=Progress((1, 0, 0), frozenset({"a1", "a2"}), term=900))
    slices.take(2, entry("a2", ACTIVE), 0.0)
    formed = slices.view(2.0, 500)
    assert formed and formed.term == 901 and read_view(formed.as_json()) == formed
    slices.take(0, entry("a0"), 3.0)
    assert view_of(slices, 3.0).term == 901, "one list has one term"
    slices.take(1, entry("b1", ACTIVE), 4.0, progress=Progress((1, 0, 0), term=950))
    assert view_of(slices, 4.0).term == 951, "a slice knows of a later list, by a clock that is ahead"
    slices.begin_again()
    slices.take(0, entry("a0"), 5.0)
    slices.take(2, entry("a2", ACTIVE), 5.0)
    formed = slices.view(9.0, 5000)
    assert formed and formed.term == 5000


def test_an_active_slice_that_is_lost_again_does_not_begin_a_run() -> None:
    slices = roster(min_slices=2)
    slices.take(0, entry("a0"), 0.0)
    slices.take(1, entry("a1", ACTIVE), 0.0)
    slices.drop(1)
    assert slices.view(10.0) is None
    slices.take(2, entry("a2"), 60.0)
    assert view_of(slices, 60.0).founder == "a0"


def test_a_late_slice_learns_that_the_run_has_finished() -> None:
    slices = roster(num_slices=2)
    for number in range(2):
        slices.take(number, entry(f"a{number}"), 0.0)
    slices.finish()
    for number in range(2):
        slices.drop(number)
    slices.take(1, entry("b1"), 5.0)
    assert view_of(slices, 5.0).is_done


SLICES = st.integers(0, 3)
CHANGES = st.one_of(
    st.tuples(st.just("start"), SLICES),
    st.tuples(st.just("advance"), SLICES),
    st.tuples(st.just("drop"), SLICES),
    st.tuples(st.just("reconnect"), SLICES),  # with its former incarnation, however far it was
    st.tuples(st.just("finish"), SLICES),
    st.tuples(st.just("suspend"), SLICES),
)


@given(st.lists(st.tuples(CHANGES, st.floats(0, 40)), max_size=80), st.integers(1, 4))
def test_views_satisfy_their_invariants_for_any_changes(
    changes: list[tuple[tuple[str, int], float]], min_slices: int
) -> None:
    slices, now, newest, starts = Roster(4, min_slices, LIMITS), 0.0, View(), 0
    entries: dict[int, Entry] = {}  # what each slice last said of itself
    present, dropped = dict[int, str](), set[str]()
    for (what, number), seconds in changes:
        now += seconds
        said = entries.get(number)
        if what == "start":
            starts += 1
            said = entry(f"start {starts}")
        elif what == "advance" and said:
            said = replace(said, phase={WAITING: READY, READY: ACTIVE, ACTIVE: ACTIVE}[said.phase])
        if what in ("start", "advance", "reconnect") and said:
            entries[number] = said
            before = present.get(number)
            if slices.take(number, said, now):
                assert said.incarnation not in dropped, "a slice that was dropped does not return"
                dropped |= {before} - {said.incarnation} if before else set()
                present[number] = said.incarnation
            else:
                assert said.incarnation in dropped or said.phase != WAITING
                dropped.add(said.incarnation)
        elif what == "drop":
            lost = {present.pop(number)} if number in present else set()
            dropped |= set() if slices.is_forming else lost
            slices.drop(number)
        elif what == "finish":
            slices.finish()
        elif what == "suspend":
            slices.begin_again()
            present.clear()
        view = slices.view(now)
        if view is None:
            assert slices.is_forming or not present
            continue
        assert view.number == newest.number + 1
        assert {slice_id: each.incarnation for slice_id, each in view.slices.items()} == present
        founders = [each for each in view.slices.values() if each.incarnation == view.founder]
        assert len(founders) == (1 if view.slices and not view.has_active else 0)
        assert view.is_done >= newest.is_done
        if founders and newest.founder in present.values():
            assert view.founder == newest.founder, "the role does not change without need"
        newest = view
