"""Admission: the pure decision by properties, the rest with real hosts."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from tests.local.cases import ended, jobset, node, pid, running, set_up, status, until
from xpk.api.base import Obj
from xpk.local.admission import Claim, decide
from xpk.local.api import LocalApi

FOREVER = "trap 'exit 143' TERM; while :; do sleep 0.02; done"
CLAIMS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 6), st.integers(0, 3), st.sampled_from(["held", "leaving", "waiting"])),
    max_size=10,
)


@given(st.integers(0, 12), st.integers(0, 6), CLAIMS)
def test_decisions(quota: int, pools: int, drawn: list[tuple[int, int, int, str]]) -> None:
    amounts = {"tpu": quota, "pools": pools}
    claims: dict[str, list[Claim]] = {"held": [], "leaving": [], "waiting": []}
    for number, (priority, tpus, slices, state) in enumerate(drawn):
        claim = Claim(f"{number:02}", priority, {"tpu": tpus, "pools": slices})
        holding = [*claims["held"], *claims["leaving"], claim]
        if state == "waiting" or all(sum(c.needs[k] for c in holding) <= amounts[k] for k in amounts):
            claims[state].append(claim)
    held, leaving, waiting = claims["held"], claims["leaving"], claims["waiting"]
    decision = decide(amounts, held, leaving, waiting)
    by_uid = {claim.uid: claim for group in claims.values() for claim in group}
    admitted = [by_uid[uid] for uid in decision.admit]
    staying = [claim for claim in held if claim.uid not in decision.preempt]

    for name, most in amounts.items():  # never over quota
        assert sum(c.needs[name] for c in [*held, *leaving, *admitted]) <= most
    for victim, winner in decision.preempt.items():  # never an equal or a higher one
        assert by_uid[victim].priority < by_uid[winner].priority
    assert set(decision.preempt.values()).isdisjoint(decision.admit)
    assert set(decision.admit) | set(decision.lacking) == {claim.uid for claim in waiting}
    for claim in waiting:  # no lower one is kept or admitted while a higher one that would fit waits for nothing
        if claim.uid in decision.admit:
            continue
        higher_waiting = [c for c in waiting if (-c.priority, c.uid) < (-claim.priority, claim.uid)]
        first = [c for c in higher_waiting if c.uid in decision.admit or c.uid in decision.preempt.values()]
        stronger = [c for c in staying if c.priority >= claim.priority]
        fits = all(sum(c.needs[k] for c in [*stronger, *first, claim]) <= amounts[k] for k in amounts)
        lower = [c for c in [*staying, *admitted] if c.priority < claim.priority]
        freed = claim.uid in decision.preempt.values() or leaving or set(decision.preempt)
        assert freed or not (fits and lower)


@given(st.integers(1, 12), CLAIMS)
def test_no_victim_is_needless(quota: int, drawn: list[tuple[int, int, int, str]]) -> None:
    held: list[Claim] = []
    for number, (priority, tpus, _, _) in enumerate(drawn):
        if sum(c.needs["tpu"] for c in held) + tpus <= quota:
            held.append(Claim(f"{number:02}", priority, {"tpu": tpus}))
    winner = Claim("99", 2, {"tpu": quota})
    victims = [c for c in held if c.uid in decide({"tpu": quota}, held, [], [winner]).preempt]
    free = quota - sum(c.needs["tpu"] for c in held)
    for spared in victims:
        assert free + sum(v.needs["tpu"] for v in victims if v is not spared) < quota


def test_two_workloads_share_one_quota_one_after_the_other(api: LocalApi) -> None:
    api.create(jobset("a", "sleep 0.3"))
    api.create(jobset("b", "true"))
    waiting = until(
        lambda: [c for w in api.list("Workload") for c in w["status"].get("conditions", ()) if c["reason"] == "Pending"]
    )
    assert waiting[0]["message"] == (
        "couldn't assign flavors to pod set slice-job: insufficient unused quota for google.com/tpu in flavor flavor, "
        "16 more needed"
    )
    assert api.get("JobSet", "b")["spec"]["suspend"] is True
    assert api.get("ClusterQueue", "cluster-queue")["status"]["pendingWorkloads"] == 1
    assert ended(api, "b") == "Completed"
    a, b = (condition(api.get("JobSet", n), "Completed")["lastTransitionTime"] for n in "ab")
    assert a <= b


def condition(obj: Obj, kind: str) -> Obj:
    found: Obj = next((c for c in obj["status"].get("conditions", ()) if c["type"] == kind), {})
    return found


def workload(api: LocalApi, name: str) -> Obj:
    return until(lambda: api.list("Workload", selector={"jobset.sigs.k8s.io/jobset-name": name}))[0]


def test_higher_priority_preempts_and_the_victim_resumes(api: LocalApi) -> None:
    api.create(jobset("victim", FOREVER, priority="low", max_restarts=0))
    first = {pid(pod) for pod in running(api, "victim")}
    api.create(jobset("winner", "sleep 0.3", priority="high"))
    assert ended(api, "winner") == "Completed"
    ours = workload(api, "victim")
    until(lambda: condition(workload(api, "victim"), "Evicted")["status"] == "False")
    assert condition(workload(api, "victim"), "Requeued")["reason"] == "Preempted"
    again = running(api, "victim")
    assert first.isdisjoint(pid(pod) for pod in again)
    assert (status(api, "victim")["restarts"], ours["metadata"]["uid"]) == (
        0,
        workload(api, "victim")["metadata"]["uid"],
    )
    reasons = [e["reason"] for e in api.list("Event")]
    assert "Preempted" in reasons and "ResumeJobs" in reasons


def test_equal_priority_waits(api: LocalApi) -> None:
    api.create(jobset("a", FOREVER))
    running(api, "a")
    api.create(jobset("b", "true"))
    until(lambda: condition(workload(api, "b"), "QuotaReserved"))
    assert condition(workload(api, "a"), "Evicted") == {}


def test_suspend_and_resume(api: LocalApi) -> None:
    api.create(jobset("a", FOREVER))
    running(api, "a")
    name = workload(api, "a")["metadata"]["name"]
    api.patch("Workload", name, {"spec": {"active": False}})
    until(lambda: not api.list("Pod"))
    until(lambda: condition(workload(api, "a"), "QuotaReserved")["status"] == "False")
    assert api.get("JobSet", "a")["spec"]["suspend"] is True
    assert condition(api.get("JobSet", "a"), "Suspended")["status"] == "True"
    assert condition(workload(api, "a"), "Evicted")["reason"] == "Deactivated"
    api.patch("Workload", name, {"spec": {"active": True}})
    running(api, "a")
    assert status(api, "a")["restarts"] == 0
    assert condition(api.get("JobSet", "a"), "Suspended")["status"] == "False"


def test_what_never_fits_says_so(api: LocalApi) -> None:
    api.create(jobset("a", "true", slices=3))
    assert (
        "insufficient quota for google.com/tpu"
        in until(lambda: condition(workload(api, "a"), "QuotaReserved"))["message"]
    )
    api.delete("Node", "c-np-1-0")
    api.delete("Node", "c-np-1-1")
    api.create(jobset("b", "true", slices=2))
    until(lambda: "node pools" in condition(workload(api, "b"), "QuotaReserved").get("message", ""))
    set_up(api)
    assert ended(api, "b") == "Completed"


def test_what_no_longer_fits_gives_its_quota_back(api: LocalApi) -> None:
    api.create(jobset("a", FOREVER))
    pods = running(api, "a")
    set_up(api, slices=1)  # a smaller quota alone stops nothing that runs
    until(lambda: condition(api.get("ClusterQueue", "cluster-queue"), "Active"))
    assert {pid(pod) for pod in running(api, "a")} == {pid(pod) for pod in pods}
    for host in range(2):
        api.delete("Node", f"c-np-1-{host}")
    until(lambda: condition(workload(api, "a"), "QuotaReserved")["status"] == "False")
    reserved, evicted = (condition(workload(api, "a"), kind) for kind in ("QuotaReserved", "Evicted"))
    assert "request 16 > maximum capacity (8)" in reserved["message"]
    assert (evicted["reason"], evicted["message"]) == ("QuotaExceeded", reserved["message"])
    api.create(jobset("b", "true", slices=1))
    assert ended(api, "b") == "Completed"
    set_up(api)
    running(api, "a")


def test_lost_nodes_are_waited_for_and_then_given_up(api: LocalApi) -> None:
    api.create(jobset("a", FOREVER))
    running(api, "a")
    api.delete("Node", "c-np-1-1")
    time.sleep(1)
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


def test_missing_queue_says_so(api: LocalApi) -> None:
    api.delete("LocalQueue", "multislice-queue")
    api.create(jobset("a", "true"))
    reserved = until(lambda: condition(workload(api, "a"), "QuotaReserved"))
    assert (reserved["reason"], reserved["message"]) == ("Inadmissible", "LocalQueue multislice-queue doesn't exist")


def test_without_a_queue_it_starts_at_once(api: LocalApi) -> None:
    api.create(jobset("a", "true", queued=False))
    assert ended(api, "a") == "Completed"
    assert api.list("Workload") == []


def test_pools_taken_by_unqueued_hosts_are_not_given_away(api: LocalApi) -> None:
    api.create(jobset("a", FOREVER, slices=1, queued=False))
    running(api, "a", 2)
    api.create(jobset("b", "true"))
    until(lambda: "node pools" in condition(workload(api, "b"), "QuotaReserved").get("message", ""))
    api.delete("JobSet", "a", grace_seconds=0)
    before = time.monotonic()
    assert ended(api, "b") == "Completed"
    assert time.monotonic() - before < 5
