"""Admission: the pure decision by properties, the rest with real hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.local.cases import KUEUE, RESOURCE, ended, jobset, node, pid, running, set_up
from tests.waiting import until
from xpk.api.base import Obj
from xpk.local import controllers
from xpk.local import objects as o
from xpk.local.admission import decide
from xpk.local.api import LocalApi
from xpk.local.ledger import Claim, Ledger, Queue
from xpk.local.process import Host
from xpk.local.store import Store
from xpk.model.quotas import Allotment

FOREVER = "trap 'exit 143' TERM; while :; do sleep 0.02; done"
CLAIMS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 6), st.integers(0, 3), st.sampled_from(["held", "leaving", "waiting"])),
    max_size=10,
)


@given(st.integers(0, 12), st.integers(0, 6), CLAIMS)
def test_decisions(quota: int, pools: int, drawn: list[tuple[int, int, int, str]]) -> None:
    amounts = {"tpu": quota, "pools": pools}
    queues = {"q": Queue(allotments={"tpu": Allotment(nominal=quota)})}
    claims: dict[str, list[Claim]] = {"held": [], "leaving": [], "waiting": []}
    for number, (priority, tpus, slices, state) in enumerate(drawn):
        claim = Claim(f"{number:02}", priority, {"tpu": tpus, "pools": slices}, "q")
        holding = [*claims["held"], *claims["leaving"], claim]
        if state == "waiting" or all(sum(c.needs[k] for c in holding) <= amounts[k] for k in amounts):
            claims[state].append(claim)
    held, leaving, waiting = claims["held"], claims["leaving"], claims["waiting"]
    decision = decide(queues, {"pools": pools}, held, leaving, waiting)
    by_uid = {claim.uid: claim for group in claims.values() for claim in group}
    admitted = [by_uid[uid] for uid in decision.admit]
    staying = [claim for claim in held if claim.uid not in decision.preempt]

    for name, most in amounts.items():  # never above quota
        assert sum(c.needs[name] for c in [*held, *leaving, *admitted]) <= most
    for victim, winner in decision.preempt.items():  # never an equal or higher one
        assert by_uid[victim].priority < by_uid[winner].priority
    assert set(decision.preempt.values()).isdisjoint(decision.admit)
    assert set(decision.admit) | set(decision.lacking) == {claim.uid for claim in waiting}
    for claim in waiting:  # no lower one is kept or admitted while a higher one that would fit is pending
        if claim.uid in decision.admit:
            continue
        higher_waiting = [c for c in waiting if (-c.priority, c.uid) < (-claim.priority, claim.uid)]
        first = [c for c in higher_waiting if c.uid in decision.admit or c.uid in decision.preempt.values()]
        stronger = [c for c in staying if c.priority >= claim.priority]
        fits = all(sum(c.needs[k] for c in [*stronger, *first, claim]) <= amounts[k] for k in amounts)
        lower = [c for c in [*staying, *admitted] if c.priority < claim.priority]
        freed = claim.uid in decision.preempt.values() or leaving or set(decision.preempt)
        assert freed or not (fits and lower)


@given(st.integers(1, 12), st.integers(1, 12), CLAIMS)
def test_preemption_evicts_no_more_workloads_than_needed(
    quota: int, asked: int, drawn: list[tuple[int, int, int, str]]
) -> None:
    held: list[Claim] = []
    for number, (priority, tpus, _, _) in enumerate(drawn):
        if sum(c.needs["tpu"] for c in held) + tpus <= quota:
            held.append(Claim(f"{number:02}", priority, {"tpu": tpus}, "q"))
    winner = Claim("99", 2, {"tpu": asked}, "q")
    queues = {"q": Queue(allotments={"tpu": Allotment(nominal=quota)})}
    victims = [c for c in held if c.uid in decide(queues, {}, held, [], [winner]).preempt]
    free = quota - sum(c.needs["tpu"] for c in held)
    for spared in victims:
        assert free + sum(v.needs["tpu"] for v in victims if v is not spared) < asked


def test_of_equal_victims_the_newest_is_preempted() -> None:
    held = [Claim("1", 0, {"tpu": 1}, "q"), Claim("2", 0, {"tpu": 1}, "q"), Claim("3", 1, {"tpu": 1}, "q")]
    queues = {"q": Queue(allotments={"tpu": Allotment(nominal=3)})}
    assert decide(queues, {}, held, [], [Claim("4", 2, {"tpu": 1}, "q")]).preempt == {"2": "4"}


def test_a_spared_workload_is_only_preempted_to_reclaim_quota() -> None:
    claims = [Claim("1", 1, {"tpu": 4}, "b"), Claim("2", 1, {"tpu": 4}, "b")]
    in_queue = Claim("3", 2, {"tpu": 4}, "b", spares=("2",))
    assert decide(lending(reclaim="Any"), {}, claims, [], [in_queue]).preempt == {"1": "3"}, "2 would be the first"
    reclaiming = Claim("3", 0, {"tpu": 4}, "a", spares=("1", "2"))
    assert decide(lending(reclaim="Any"), {}, claims, [], [reclaiming]).preempt == {"2": "3"}


def test_of_equal_victims_the_last_to_get_quota_is_preempted() -> None:
    held = [Claim("1", 0, {"tpu": 1}, "q", reserved=20.0), Claim("2", 0, {"tpu": 1}, "q", reserved=10.0)]
    queues = {"q": Queue(allotments={"tpu": Allotment(nominal=2)})}
    assert decide(queues, {}, held, [], [Claim("3", 2, {"tpu": 1}, "q")]).preempt == {"1": "3"}


def test_of_victims_that_are_not_needed_the_strongest_is_spared() -> None:
    held = [Claim("1", 0, {"tpu": 1}, "q"), Claim("2", 1, {"tpu": 1}, "q"), Claim("3", 2, {"tpu": 4}, "q")]
    queues = {"q": Queue(allotments={"tpu": Allotment(nominal=6)})}
    assert set(decide(queues, {}, held, [], [Claim("4", 3, {"tpu": 5}, "q")]).preempt) == {"1", "3"}


def test_what_waits_for_its_victims_loses_nothing_to_smaller_ones() -> None:
    # Small ones would fit now, one after another, and the large one never would.
    queues = {"q": Queue(allotments={"tpu": Allotment(nominal=3)})}
    victim, large, small = (
        Claim(*each, "q") for each in (("1", 0, {"tpu": 2}), ("2", 2, {"tpu": 3}), ("3", 1, {"tpu": 1}))
    )
    assert decide(queues, {}, [victim], [], [large, small]).admit == []
    assert decide(queues, {}, [], [victim], [large, small]).admit == []
    assert decide(queues, {}, [], [], [large, small]).admit == ["2"]


SHARES = st.builds(
    lambda nominal, borrows, lends: Allotment(
        nominal=nominal, borrowing_limit=borrows, lending_limit=None if lends is None else min(lends, nominal)
    ),
    st.integers(0, 6),
    st.none() | st.integers(0, 6),
    st.none() | st.integers(0, 6),
)
LENDING = st.builds(
    lambda share, reclaim, borrowing: Queue(
        allotments={"tpu": share},
        cohort="all",
        reclaim=reclaim,
        while_borrowing="Never" if reclaim == "Never" else borrowing,
    ),
    SHARES,
    st.sampled_from(["Any", "LowerPriority", "Never"]),
    st.sampled_from(["LowerPriority", "Never"]),
)
OF_QUEUES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(1, 8), st.booleans()), max_size=9)


@given(st.fixed_dictionaries(dict.fromkeys("abc", LENDING)), OF_QUEUES)
def test_queues_that_lend_to_each_other(queues: dict[str, Queue], drawn: list[tuple[str, int, int, bool]]) -> None:
    ledger, waiting = Ledger(queues, {}, []), []
    for number, (queue, priority, tpus, runs) in enumerate(drawn):
        claim = Claim(f"{number:02}", priority, {"tpu": tpus}, queue)
        if runs and ledger.fits(claim):
            ledger.add(claim)
        else:
            waiting.append(claim)
    held = [claim for name in queues for claim in ledger.claims_of(name)]
    decision = decide(queues, {}, held, [], waiting)
    by_uid = {claim.uid: claim for claim in [*held, *waiting]}
    shares = {name: queue.allotments["tpu"] for name, queue in queues.items()}

    def used(claims: list[Claim], *names: str) -> int:
        return sum(claim.needs["tpu"] for claim in claims if claim.queue in names)

    running = [*held, *(by_uid[uid] for uid in decision.admit)]
    for name, share in shares.items():
        others = [other for other in shares if other != name]
        theirs = sum(shares[other].nominal for other in others)
        assert used(running, name) <= share.nominal + (
            theirs if share.borrowing_limit is None else share.borrowing_limit
        )
        lends = share.nominal if share.lending_limit is None else share.lending_limit
        assert used(running, *others) <= theirs + lends
    assert used(running, *shares) <= sum(share.nominal for share in shares.values())
    assert {*decision.admit, *decision.lacking} == {claim.uid for claim in waiting}
    for victim, winner in ((by_uid[item], by_uid[other]) for item, other in decision.preempt.items()):
        assert victim in held
        policy = queues[winner.queue].reclaim if victim.queue != winner.queue else "LowerPriority"
        assert policy == "Any" or (policy == "LowerPriority" and victim.priority < winner.priority)
        if victim.queue != winner.queue and not used(waiting, victim.queue):
            assert used(held, victim.queue) > shares[victim.queue].nominal, "its own quota is not taken"
    for name, mine in queues.items():
        first = next(iter(sorted((c for c in waiting if c.queue == name), key=lambda c: (-c.priority, c.uid))), None)
        if first and mine.reclaim == "Any" and used(held, name) + first.needs["tpu"] <= shares[name].nominal:
            assert first.uid in decision.admit or decision.preempt, "its own quota is returned"


def lending(names: str = "ab", nominal: int = 4, **policies: str) -> dict[str, Queue]:
    """Return the queues of a cohort, with equal quotas and policies."""
    shares = {"tpu": Allotment(nominal=nominal)}
    return {name: Queue(allotments=shares, cohort="all", **policies) for name in names}


def test_a_loan_is_returned_by_the_newest_borrower() -> None:
    # It reclaims its own quota from any priority, also if it could have borrowed by its priority.
    held = [Claim("1", 3, {"tpu": 4}, "b"), Claim("2", 3, {"tpu": 4}, "b")]
    for priority in (0, 5):
        claim = Claim("3", priority, {"tpu": 4}, "a")
        queues = lending(reclaim="Any", while_borrowing="LowerPriority")
        decision = decide(queues, {}, held, [], [claim])
        assert (decision.preempt, decision.reasons) == ({"2": "3"}, {"2": "InCohortReclamation"})
        assert decide(lending(reclaim="Never"), {}, held, [], [claim]).preempt == {}
    weak = decide(lending(reclaim="LowerPriority"), {}, held, [], [Claim("3", 3, {"tpu": 4}, "a")])
    assert (weak.preempt, weak.lacking) == ({}, {"3": {"tpu": 4}})


def test_a_workload_that_borrows_preempts_only_weaker_borrowers_and_only_if_allowed() -> None:
    held, queues = [Claim("1", 1, {"tpu": 8}, "b")], lending(reclaim="Any", while_borrowing="LowerPriority")
    decision = decide(queues, {}, held, [], [Claim("2", 2, {"tpu": 6}, "a")])
    assert (decision.preempt, decision.reasons) == ({"1": "2"}, {"1": "InCohortReclaimWhileBorrowing"})
    assert decide(queues, {}, held, [], [Claim("2", 1, {"tpu": 6}, "a")]).preempt == {}
    assert decide(lending(reclaim="Any"), {}, held, [], [Claim("2", 2, {"tpu": 6}, "a")]).preempt == {}


def test_loans_are_reclaimed_together_with_quota_of_the_own_queue() -> None:
    # Neither suffices alone: "1" is in the own queue, and "3" is the newest that has borrowed.
    held = [Claim("1", 0, {"tpu": 2}, "a"), Claim("2", 5, {"tpu": 4}, "b"), Claim("3", 5, {"tpu": 2}, "b")]
    for policy in ("Never", "LowerPriority"):
        decision = decide(
            lending(reclaim="Any", while_borrowing=policy), {}, held, [], [Claim("4", 1, {"tpu": 4}, "a")]
        )
        assert decision.reasons == {"1": "InClusterQueue", "3": "InCohortReclamation"}


def test_a_workload_borrows_before_it_preempts_in_its_own_queue_if_allowed() -> None:
    held = [Claim("1", 0, {"tpu": 2}, "a"), Claim("2", 0, {"tpu": 3}, "b"), Claim("3", 0, {"tpu": 3}, "b")]
    claim = Claim("4", 1, {"tpu": 3}, "a")
    borrows = decide(lending(reclaim="Any", while_borrowing="LowerPriority"), {}, held, [], [claim])
    assert borrows.reasons == {"3": "InCohortReclaimWhileBorrowing"}
    assert decide(lending(reclaim="Any"), {}, held, [], [claim]).preempt == {"1": "4", "3": "4"}


def test_a_queue_that_cannot_reclaim_preempts_in_itself() -> None:
    # It stays above its own quota, so nothing is due to it; it has unused quota of the third queue.
    held = [Claim("1", 0, {"tpu": 3}, "a"), Claim("2", 0, {"tpu": 3}, "a"), Claim("3", 9, {"tpu": 6}, "b")]
    decision = decide(lending("abc", reclaim="Any"), {}, held, [], [Claim("4", 1, {"tpu": 3}, "a")])
    assert decision.preempt == {"2": "4"}
    # Below its own quota, but not with the new workload, whatever it preempts.
    held = [Claim("1", 9, {"tpu": 6}, "a"), Claim("2", 0, {"tpu": 1}, "a"), Claim("3", 9, {"tpu": 15}, "b")]
    decision = decide(lending("abc", 8, reclaim="Any"), {}, held, [], [Claim("4", 1, {"tpu": 3}, "a")])
    assert decision.preempt == {"2": "4"}


def test_quota_within_its_own_queue_is_not_reclaimed() -> None:
    held = [Claim("1", 0, {"tpu": 4}, "a"), Claim("2", 0, {"tpu": 4}, "b")]
    decision = decide(lending(reclaim="Any"), {}, held, [], [Claim("3", 5, {"tpu": 2}, "a")])
    assert (decision.preempt, decision.reasons) == ({"1": "3"}, {"1": "InClusterQueue"})


def test_the_head_that_does_not_borrow_is_first_and_then_the_strongest() -> None:
    borrower, owner = Claim("1", 9, {"tpu": 5}, "a"), Claim("2", 0, {"tpu": 4}, "b")
    decision = decide(lending(), {}, [], [], [borrower, owner])
    assert (decision.admit, decision.lacking) == (["2"], {"1": {"tpu": 1}})
    heads = [Claim("2", 1, {"tpu": 3}, "a"), Claim("1", 1, {"tpu": 3}, "b"), Claim("3", 2, {"tpu": 1}, "b")]
    assert decide(lending(), {}, [], [], heads).admit == ["3", "2", "1"]


UNEVEN = {
    name: Queue(
        allotments={"tpu": Allotment(nominal=nominal)},
        cohort="c",
        reclaim="LowerPriority",
        while_borrowing="LowerPriority",
    )
    for name, nominal in (("a", 4), ("b", 0))
}


def test_a_queue_that_cannot_reclaim_keeps_its_quota_for_its_first_workload() -> None:
    # "3" does not fit, so "4" of its queue starts instead of "1", which would borrow.
    held, waiting = [Claim("2", 3, {"tpu": 2}, "b")], [
        Claim("1", 2, {"tpu": 2}, "b"), Claim("3", 2, {"tpu": 3}, "a"), Claim("4", 1, {"tpu": 2}, "a"),
    ]  # fmt: skip
    assert decide(UNEVEN, {}, held, [], waiting).admit == ["4"]
    assert decide(UNEVEN, {}, held, [], waiting[:2]).admit == ["1"], "only for one cycle"


def test_a_head_that_needs_no_loan_after_preemption_is_before_one_that_borrows() -> None:
    held = [Claim("2", 1, {"tpu": 2}, "a")]
    waiting = [Claim("1", 2, {"tpu": 2}, "b"), Claim("3", 2, {"tpu": 3}, "a")]
    decision = decide(UNEVEN, {}, held, [], waiting)
    assert (decision.admit, decision.preempt) == ([], {"2": "3"})


def test_a_workload_waits_for_a_resource_that_its_queue_lacks() -> None:
    lacks, asks_for_none = Claim("1", 0, {"tpu": 1, "gpu": 1}, "a"), Claim("2", 0, {"tpu": 4, "gpu": 0}, "a")
    decision = decide(lending(), {}, [], [], [lacks, asks_for_none])
    assert (decision.admit, decision.lacking) == (["2"], {"1": {"tpu": -7, "gpu": 1}})


def condition(obj: Obj, kind: str) -> Obj:
    result: Obj = next((c for c in obj["status"].get("conditions", ()) if c["type"] == kind), {})
    return result


def workload(api: LocalApi, name: str) -> Obj:
    return until(lambda: api.list("Workload", selector={"jobset.sigs.k8s.io/jobset-name": name}))[0]


def test_a_queue_without_node_pools_explains_it(api: LocalApi) -> None:
    api.delete("Node", "c-np-1-0")
    api.delete("Node", "c-np-1-1")
    api.create(jobset("b", "true", slices=2))
    until(lambda: "node pools" in condition(workload(api, "b"), "QuotaReserved").get("message", ""))
    set_up(api)
    assert ended(api, "b") == "Completed"


def test_a_workload_that_no_longer_fits_releases_its_quota(api: LocalApi) -> None:
    api.create(jobset("a", FOREVER))
    pods = running(api, "a")
    set_up(api, slices=1)  # a smaller quota alone does not stop running workloads
    until(lambda: condition(api.get("ClusterQueue", "cluster-queue"), "Active"))
    assert {pid(pod) for pod in running(api, "a")} == {pid(pod) for pod in pods}
    for host in range(2):
        api.delete("Node", f"c-np-1-{host}")
    until(lambda: condition(workload(api, "a"), "QuotaReserved")["status"] == "False")
    reserved, evicted = (condition(workload(api, "a"), kind) for kind in ("QuotaReserved", "Evicted"))
    assert "(16) > maximum capacity (8)" in reserved["message"]
    assert (evicted["reason"], evicted["message"]) == ("QuotaExceeded", reserved["message"])
    api.create(jobset("b", "true", slices=1))
    assert ended(api, "b") == "Completed"
    set_up(api)
    running(api, "a")


@pytest.mark.slow
def test_lost_nodes_are_awaited_until_a_timeout(api: LocalApi) -> None:
    api.create(jobset("a", FOREVER))
    running(api, "a")
    api.delete("Node", "c-np-1-1")
    until(lambda: condition(workload(api, "a"), "PodsReady")["status"] == "False")
    assert condition(workload(api, "a"), "Evicted") == {}
    api.apply(node(1, 1))
    running(api, "a", attempt=1)
    assert condition(workload(api, "a"), "Evicted") == {}
    api.delete("Node", "c-np-1-1")
    until(lambda: condition(workload(api, "a"), "QuotaReserved")["status"] == "False")
    assert condition(workload(api, "a"), "Evicted")["reason"] == "NodeFailures"
    assert "2 of 1 usable node pools requested" in condition(workload(api, "a"), "QuotaReserved")["message"]
    api.apply(node(1, 1))
    running(api, "a")


def test_the_life_of_a_workload_is_recorded_as_kueue_does(api: LocalApi) -> None:
    api.create(jobset("a", FOREVER, slices=1))
    running(api, "a", 2)
    name = workload(api, "a")["metadata"]["name"]
    assert condition(workload(api, "a"), "Admitted")["status"] == "True"
    assert {"QuotaReserved", "Admitted"} <= {event["reason"] for event in api.list("Event")}
    queue = api.get("ClusterQueue", "cluster-queue")["status"]
    assert [queue[f"{state}Workloads"] for state in ("pending", "reserving", "admitted")] == [0, 1, 1]
    assert queue["flavorsUsage"][0]["resources"] == [{"name": RESOURCE, "total": "8", "borrowed": "0"}]

    api.patch("Workload", name, {"spec": {"active": False}})
    until(lambda: condition(workload(api, "a"), "QuotaReserved")["reason"] == "Inadmissible")
    requeued = condition(workload(api, "a"), "Requeued")
    assert (requeued["status"], requeued["reason"]) == ("False", "Deactivated")
    api.create(jobset("b", FOREVER))
    running(api, "b")
    api.patch("Workload", name, {"spec": {"active": True}})
    requeued = until(lambda: now if (now := condition(workload(api, "a"), "Requeued"))["status"] == "True" else {})
    assert requeued["reason"] == "Reactivated"
    assert condition(workload(api, "a"), "QuotaReserved")["status"] == "False", "it waits again"
    api.delete("JobSet", "b")
    running(api, "a", 2)

    for kind, script in (("good", "exit 0"), ("bad", "exit 42")):
        api.create(jobset(kind, script, slices=1, hosts=1))
        ended(api, kind)
    until(lambda: all(condition(workload(api, kind), "Finished") for kind in ("good", "bad")))
    reasons = [condition(workload(api, kind), "Finished")["reason"] for kind in ("good", "bad")]
    assert reasons == ["Succeeded", "Failed"]


def test_a_workload_without_a_queue_starts_immediately(api: LocalApi) -> None:
    api.create(jobset("a", "true", queued=False))
    assert ended(api, "a") == "Completed"
    assert api.list("Workload") == []


def test_pools_used_by_unqueued_hosts_are_not_assigned(api: LocalApi) -> None:
    deaf = "trap '' TERM; while :; do sleep 0.02; done"
    api.create(jobset("a", deaf, slices=1, queued=False, grace=3600))
    running(api, "a", 2)
    api.create(jobset("b", "true"))
    until(lambda: "node pools" in condition(workload(api, "b"), "QuotaReserved").get("message", ""))
    api.delete("JobSet", "a", grace_seconds=0)
    assert ended(api, "b") == "Completed"


def test_nobody_is_preempted_in_vain_while_unqueued_hosts_hold_a_node_pool(api: LocalApi) -> None:
    api.create(jobset("weak", FOREVER, slices=1, priority="low"))
    running(api, "weak", 2)
    api.create(jobset("z", FOREVER, slices=1, queued=False))
    running(api, "z", 2)
    api.create(jobset("strong", "true", priority="high"))
    until(lambda: condition(workload(api, "strong"), "QuotaReserved"))
    assert condition(workload(api, "weak"), "Evicted") == {}
    api.delete("JobSet", "z", grace_seconds=0)
    assert ended(api, "strong") == "Completed"


def test_an_evicted_workload_does_not_follow_its_jobset_into_another_queue(api: LocalApi) -> None:
    api.create(jobset("weak", FOREVER, priority="low"))
    running(api, "weak")
    api.create(jobset("strong", FOREVER, priority="high"))
    running(api, "strong")
    until(lambda: condition(workload(api, "weak"), "QuotaReserved")["status"] == "False")
    api.patch("JobSet", "weak", {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "other"}}})
    api.delete("JobSet", "strong")
    running(api, "weak")
    assert workload(api, "weak")["spec"]["queueName"] == "multislice-queue"


def test_leaving_a_queue_does_not_change_the_quota_of_another(api: LocalApi, tmp_path: Path) -> None:
    whole = api.get("ClusterQueue", "cluster-queue")["spec"]
    whole["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = 8
    for name in ("half", "cluster-queue"):
        api.apply({"apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": whole})
    queue: Obj = {"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": {"name": "half"}}
    api.apply(queue | {"spec": {"clusterQueue": "half"}})
    saves = f"until [ -e {tmp_path}/may-end ]; do sleep 0.02; done; exit 143"
    slow = jobset("slow", f"trap '{saves}' TERM; echo up; while :; do sleep 0.02; done", slices=1, grace=600)
    slow["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "half"
    api.create(slow)
    pods = running(api, "slow", 2)
    until(lambda: all(list(api.logs(pod)) for pod in pods))
    api.patch("Workload", workload(api, "slow")["metadata"]["name"], {"spec": {"active": False}})
    until(lambda: all("deletionTimestamp" in pod["metadata"] for pod in api.list("Pod")))
    api.create(jobset("other", FOREVER, slices=1))
    running(api, "other", 2)
    leaving = api.list("Pod", selector={"jobset.sigs.k8s.io/jobset-name": "slow"})
    assert len(leaving) == 2, "the other queue did not wait for them"
    (tmp_path / "may-end").touch()


def test_an_ending_workload_holds_its_quota_until_its_last_host_ends(api: LocalApi) -> None:
    until_told = "until [ -e end ]; do sleep 0.02; done; exit 143"
    slow = 'if [ "$MEGASCALE_SLICE_ID$TPU_WORKER_ID" = 10 ]; then ' + until_told + "; fi; exit 143"
    api.create(jobset("victim", f"trap '{slow}' TERM; echo up; while :; do sleep 0.02; done", priority="low", grace=60))
    until(lambda: all(list(api.logs(pod)) for pod in running(api, "victim")))
    api.create(jobset("winner", FOREVER, slices=1, priority="high"))
    (left,) = until(lambda: left if len(left := alive(api, "victim")) == 1 else [])

    uses = api.get("ClusterQueue", "cluster-queue")["status"]["flavorsUsage"][0]["resources"][0]
    assert uses["total"] == "16", "no more than the capacity"
    assert condition(workload(api, "winner"), "QuotaReserved")["status"] == "False"
    assert alive(api, "winner") == []
    assert condition(workload(api, "victim"), "Evicted")["reason"] == "Preempted", "not known while its hosts end"
    assert [event["count"] for event in api.list("Event", fields={"reason": "Preempted"})] == [1]

    Path(f"/proc/{pid(left)}/cwd/end").touch()
    running(api, "winner", 2)
    assert condition(workload(api, "victim"), "QuotaReserved")["status"] == "False"


def alive(api: LocalApi, name: str) -> list[Obj]:
    """Return the pods of a JobSet whose hosts have not ended."""
    pods = api.list("Pod", selector={"jobset.sigs.k8s.io/jobset-name": name})
    return [pod for pod in pods if pod["status"]["phase"] not in ("Succeeded", "Failed")]


@pytest.mark.parametrize("spec", [{"unschedulable": True}, {"taints": [{"key": "broken", "effect": "NoExecute"}]}])
def test_a_node_pool_is_not_free_while_a_host_runs_on_a_closed_node(tmp_path: Path, spec: dict[str, Any]) -> None:
    with Store(tmp_path, create=True) as store, store.transaction() as tx:
        for obj in (node(0, 0), node(0, 1), *(jobset(name, "true", slices=1, hosts=1, queued=False) for name in "ab")):
            tx.put(obj)
        controllers.reconcile(tx, {})
        first, _ = tx.list("Pod")
        hosts = {first["metadata"]["uid"]: Host("running", {"pid": 1, "startedAt": o.now()})}
        closed = tx.get("Node", "", first["spec"]["nodeName"])
        assert closed
        closed["spec"] = spec
        tx.put(closed)
        controllers.reconcile(tx, hosts)
        first, second = tx.list("Pod")
        assert first["spec"]["nodeName"] == "c-np-0-0"
        assert "nodeName" not in second["spec"]
