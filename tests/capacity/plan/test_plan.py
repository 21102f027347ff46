"""Plans: the order of their steps, parallel steps, failures, and what is reverted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest

from tests.waiting import until
from xpk.capacity.plan.executor import Activity, PlanExecutor
from xpk.capacity.plan.plan import Plan, Progress, Step
from xpk.model.errors import CapacityError, ConflictError, UsageError, XpkError


def failing(error: BaseException) -> Callable[[], None]:
    """Return an action that raises an error."""

    def act() -> None:
        raise error

    return act


class Site:
    """Steps that record what they do."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.said: list[str] = []
        self.activity = Activity()

    def step(self, key: str, *after: str, error: BaseException | None = None, last: bool = False) -> Step:
        """Return a step that can be reverted."""
        act = failing(error) if error else lambda: self.done.append(key)
        undo = lambda: self.done.append(f"-{key}")  # noqa: E731
        return Step(f"create {key}", act, key, after, undo=undo, undo_last=last)

    def run(self, *steps: Step, at_once: int = 2, roll_back: bool = False) -> XpkError | None:
        """Run steps in parallel."""
        executor = PlanExecutor(steps, at_once, self.activity, self.said.append, lambda states: None)
        return executor.run(roll_back=roll_back)


def test_steps_of_a_plan_run_in_order_and_each_is_reported_when_it_is_done() -> None:
    site = Site()
    Plan("s", [site.step("b"), site.step("a", "c"), site.step("c")]).carry_out(lambda text: site.done.append(text))
    assert site.done == ["b", "create b", "a", "create a", "c", "create c"]


def test_a_failed_step_ends_a_plan() -> None:
    site = Site()
    with pytest.raises(CapacityError, match=r"^full$"):
        Plan("s", [site.step("a"), site.step("b", error=CapacityError("full")), site.step("c")]).carry_out(print)
    assert site.done == ["a"]


def test_the_progress_of_steps_is_shown_while_they_run() -> None:
    plan, shown = Plan("s"), list[dict[str, str]]()

    def act() -> None:
        plan.activity.update("pool", "PROVISIONING")
        plan.activity.update("disk", "READY")
        plan.activity.clear("pool")
        plan.activity.clear("unknown")
        plan.activity.update("disk", "DONE")

    plan.steps.append(Step("create a pool", act))
    plan.carry_out(lambda text: None, lambda states: shown.append(dict(states)))
    both = {"pool": "PROVISIONING", "disk": "READY"}
    assert shown == [{"pool": "PROVISIONING"}, both, {"disk": "DONE"}]


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_plan_with_missing_options_or_a_refusal_changes_nothing(at_once: int) -> None:
    site = Site()
    lacking = Plan("s", [site.step("a")], lacking=("--zone is required", "--project is required"), at_once=at_once)
    with pytest.raises(UsageError, match="--zone is required") as raised:
        lacking.carry_out(print)
    assert raised.value.problems == ("--zone is required", "--project is required")
    assert raised.value.hint == "--dry-run shows the plan"
    with pytest.raises(ConflictError, match="in use"):
        Plan("s", [site.step("a")], refusal=ConflictError("in use"), at_once=at_once).carry_out(print)
    assert site.done == []


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_plan_holds_its_lock_while_its_steps_run(at_once: int) -> None:
    site, warnings = Site(), list[str]()

    @contextmanager
    def alone(warn: Progress) -> Iterator[None]:
        warn("waiting")
        site.done.append("locked")
        yield
        site.done.append("unlocked")

    plan = Plan("s", [site.step("a")], alone, at_once=at_once)
    plan.carry_out(site.said.append, warn=warnings.append)
    assert (site.done, site.said, warnings) == (["locked", "a", "unlocked"], ["create a"], ["waiting"])


def test_the_progress_of_parallel_steps_is_shown_at_intervals_while_one_takes_long() -> None:
    shown = threading.Event()
    looks: list[int] = []

    def live(states: Mapping[str, str]) -> None:
        looks.append(len(states))
        shown.set()

    def act() -> None:
        assert shown.wait(30), "nothing is shown while a step runs"
        plan.activity.pause(0.2)

    plan = Plan("s", [Step("create a pool", act, "pool")], at_once=2)
    plan.carry_out(lambda text: None, live)
    assert len(looks) < 20, "it looks again and again without a pause"


def test_steps_of_one_stage_run_in_parallel_and_need_only_earlier_ones() -> None:
    site = Site()
    steps = [site.step("a"), site.step("b", "a"), site.step("c", "elsewhere"), site.step("d", "b", "c")]
    assert Plan("s", steps, at_once=2).stages() == [1, 2, 1, 3]
    assert Plan("s", steps).stages() == [1, 2, 3, 4]


def test_a_parallel_plan_warns_of_steps_that_may_fail_and_continues() -> None:
    site, warnings = Site(), list[str]()
    optional = Step("warm the cache", failing(XpkError("no answer")), "cache", may_fail=True)
    plan = Plan("s", [optional, site.step("a", "cache")], at_once=2)
    plan.carry_out(site.said.append, warn=warnings.append)
    assert (site.done, site.said) == (["a"], ["create a"])
    assert warnings == ["could not warm the cache: no answer"]


@pytest.mark.parametrize("roll_back", [False, True])
def test_a_failed_plan_is_reverted_only_if_asked(roll_back: bool) -> None:
    site = Site()
    steps = [site.step("a"), site.step("b", "a", error=XpkError("full"))]
    plan = Plan("s", steps, at_once=2, roll_back=True) if roll_back else Plan("s", steps, at_once=2)
    with pytest.raises(XpkError, match="could not create b: full"):
        plan.carry_out(print)
    assert site.done == (["a", "-b", "-a"] if roll_back else ["a"])


def test_a_step_starts_only_after_those_that_it_needs() -> None:
    site = Site()
    assert site.run(site.step("c", "b"), site.step("b", "a"), site.step("a"), at_once=3) is None
    assert site.done == ["a", "b", "c"]
    assert site.said == ["create a", "create b", "create c"]


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_as_many_steps_run_at_the_same_time_as_allowed_and_no_more(at_once: int) -> None:
    site, lock, all_in = Site(), threading.Lock(), threading.Event()
    inside, most = 0, 0

    def act() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        if inside == at_once:
            all_in.set()
        assert all_in.wait(10)
        with lock:
            inside -= 1

    site.run(*(Step(f"step {number}", act, str(number)) for number in range(6)), at_once=at_once)
    assert most == at_once and len(site.said) == 6


def test_independent_steps_continue_after_a_failure_and_dependent_ones_are_skipped() -> None:
    site = Site()
    broken = CapacityError("no capacity", hint="try another zone")
    with pytest.raises(CapacityError) as raised:
        site.run(site.step("a", error=broken), site.step("b", "a"), site.step("c", "b"), site.step("d"))
    assert site.done == ["d"]
    assert raised.value.message == "could not create a: no capacity; 2 later steps were skipped"
    assert raised.value.hint == "try another zone"
    assert raised.value.__cause__ is broken


def test_equal_failures_are_counted_in_one_message() -> None:
    site = Site()
    errors = ("no capacity", "no capacity", "forbidden")
    steps = [site.step(str(number), error=XpkError(text)) for number, text in enumerate(errors)]
    with pytest.raises(XpkError) as raised:
        site.run(*steps, at_once=1)
    assert raised.value.message == "could not create 0: no capacity (3 steps failed, 2 of them with this error)"


def test_completed_and_failed_steps_are_reverted_in_reverse_order() -> None:
    site = Site()
    steps = [
        site.step("cluster", last=True), site.step("a", "cluster"), site.step("b", "a"),
        site.step("c", "b", error=XpkError("full")), site.step("d", "c"),
        Step("check", lambda: None, "check", ("b",)),
    ]  # fmt: skip
    with pytest.raises(XpkError) as raised:
        site.run(*steps, at_once=1, roll_back=True)
    assert site.done == ["cluster", "a", "b", "-c", "-b", "-a", "-cluster"]
    assert site.said[-4:] == [f"reverted: create {key}" for key in ("c", "b", "a", "cluster")]
    assert raised.value.message == "could not create c: full; 4 steps were reverted"


def test_a_step_with_nothing_to_revert_is_not_reported() -> None:
    site = Site()
    kept = Step("find a", lambda: None, "a", undo=lambda: False)
    with pytest.raises(XpkError, match=r"full; 1 steps were reverted$"):
        site.run(kept, site.step("b", "a", error=XpkError("full")), roll_back=True)
    assert [text for text in site.said if text.startswith("reverted")] == ["reverted: create b"]


def test_an_error_while_reverting_is_raised() -> None:
    site = Site()
    created = Step("create a", lambda: None, "a", undo=failing(ConflictError("busy")))
    with pytest.raises(ConflictError, match=r"^busy$"):
        site.run(created, site.step("b", "a", error=XpkError("full")), roll_back=True)


def test_a_bug_in_a_step_interrupts_the_others() -> None:
    site = Site()

    def wait() -> None:
        site.activity.pause(10)

    with pytest.raises(ZeroDivisionError):
        site.run(Step("wait", wait, "wait"), site.step("a", error=ZeroDivisionError()), site.step("b", "a"))
    until(lambda: site.activity.stop.is_set())
    assert site.done == []
    with pytest.raises(XpkError, match="interrupted") as raised:
        site.activity.pause(0)
    assert raised.value.hint == "run the same command again to continue"


def test_a_pause_lasts_if_nothing_interrupts_it() -> None:
    Activity().pause(0)
