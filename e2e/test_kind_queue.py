"""Several users on one kind cluster: priorities, preemption, quotas of their own, and their messages."""

from __future__ import annotations

import functools
import json
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.kind_cluster import Place
from tests import waiting

# The speed of a loaded machine is unknown: hosts continue until a file next to their output folder lets them
# end. Until then each writes a number per step, and resumes from existing ones.
UNTIL = '"${XPK_OUTPUT_DIR%%/*}/%s-may-end"'
COUNT = (
    'trap "exit 143" TERM; mkdir -p "$XPK_OUTPUT_DIR"; file="$XPK_OUTPUT_DIR/s$MEGASCALE_SLICE_ID-h$TPU_WORKER_ID"; '
    f'touch "$file"; until [ -e {UNTIL % "small"} ] && [ -s "$file" ]; do '
    'echo $(($(wc -l < "$file") + 1)) >> "$file"; sleep 0.5 & wait; done'
)
WHOLE = f'trap "exit 143" TERM; until [ -e {UNTIL % "full"} ]; do sleep 0.5 & wait; done'
until = functools.partial(waiting.until, seconds=180, every=1.0)
FOREVER = 'trap "exit 143" TERM; sleep 1000 & wait'


class User:
    """A user of the cluster with an account of their own."""

    def __init__(self, place: Place, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self._place, self._monkeypatch, self.name = place, monkeypatch, name

    def __call__(self, verb: str, *arguments: str, code: int = 0) -> Any:
        """Run `xpk workload VERB` and return its outcome."""
        self._monkeypatch.setenv("LOGNAME", self.name)
        return self._place.xpk("workload", verb, *arguments, "--cluster", self._place.cluster, code=code)

    def sees(self, workload: str, *where: str) -> dict[str, Any]:
        """Return a workload's status."""
        status: dict[str, Any] = json.loads(self("status", workload, *where, "-o", "json").stdout)
        return status


@pytest.fixture
def user(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], User]]:
    """Return a user by name; nothing of theirs remains for the next test."""
    yield lambda name: User(place, monkeypatch, name)
    place.kubectl("delete", "jobsets", "--all", "--all-namespaces", "--wait")
    until(lambda: not place.kubectl("get", "pods", "-A", "-l", "xpk.google.com/workload", "-o", "name"))


def progress(place: Place, workload: str) -> list[int]:
    """Return the number of steps of each host of a workload."""
    files: list[Path] = sorted((place.state / "output" / workload).glob("s*-h*"))
    made = [file.read_text().split() for file in files]
    assert made == [[str(step + 1) for step in range(len(steps))] for steps in made], "no step is repeated"
    return [len(steps) for steps in made]


@pytest.fixture
def let_end(place: Place) -> Iterator[Callable[[str], None]]:
    """Let hosts end, which is not allowed at first."""
    gates = {which: place.state / "output" / f"{which}-may-end" for which in ("small", "full")}
    for gate in gates.values():
        gate.unlink(missing_ok=True)
    yield lambda which: gates[which].touch()
    for gate in gates.values():
        gate.unlink(missing_ok=True)


def test_small_workloads_are_preempted_by_a_full_scale_one_and_resume(
    place: Place, user: Callable[[str], User], let_end: Callable[[str], None]
) -> None:
    ada, bob, eve, carol = map(user, ("ada", "bob", "eve", "carol"))
    small = {"first": ada, "second": bob, "third": eve}
    for name, priority in (("first", "low"), ("second", "low"), ("third", "very-low")):
        small[name]("create", name, "--fresh", "--priority", priority, "--command", COUNT)
        time.sleep(1)  # creation times have whole seconds, and equal ones are ordered randomly
    until(lambda: all(len(made := progress(place, name)) == 2 and min(made) > 2 for name in ("first", "second")))
    waiting = until(lambda: (status := eve.sees("third"))["position"] and status)
    assert (waiting["phase"], waiting["position"], waiting["ahead"]) == ("Queued", 1, [])

    carol("create", "full", "--fresh", "--num-slices", "2", "--priority", "high", "--command", WHOLE)
    until(lambda: carol.sees("full")["phase"] == "Running")
    queued = [who.sees(name) for name, who in small.items()]
    assert [(item["phase"], item["position"]) for item in queued] == [("Queued", 1), ("Queued", 2), ("Queued", 3)]
    assert queued[2]["ahead"] == ["first", "second"]
    assert all("reempted" in item["reason"] for item in queued[:2])
    text = eve("status", "third").stdout
    assert "3 in queue multislice-queue" in text and "first, second" in text
    stopped = {name: progress(place, name) for name in ("first", "second")}
    let_end("full")
    carol("wait", "full", "--timeout", "3m")

    until(lambda: all(min(progress(place, name)) > max(made) for name, made in stopped.items()))
    assert eve.sees("third")["position"] == 1
    let_end("small")
    for name, who in small.items():
        who("wait", name, "--timeout", "4m")
        assert min(progress(place, name)) > 0
        assert who.sees(name)["restarts_counted"] == 0
    listed = {item["name"]: item["user"] for item in json.loads(ada("list", "-o", "json").stdout)}
    assert listed.items() >= {"first": "ada", "second": "bob", "third": "eve", "full": "carol"}.items()


@pytest.fixture
def teams(place: Place, user: Callable[[str], User]) -> Iterator[tuple[str, str, str]]:
    """Yield three teams' namespaces: red and blue have half of the cluster each, and pink shares red's half.

    Red may also use the cluster's own queue, which has no quota left but borrows idle quota.
    """
    number = uuid.uuid4().hex[:4]
    red, blue, pink = (f"{name}-{number}" for name in ("red", "blue", "pink"))

    def queue(verb: str, name: str, *arguments: str) -> str:
        return str(place.xpk("queue", verb, name, "--cluster", place.cluster, *arguments).stderr)

    own = ("--create-namespace", "--quota", "50%", "--borrowing-limit", "0")
    assert f"create a LocalQueue in namespace '{pink}'" in queue("create", red, "-n", red, "-n", pink, *own)
    queue("create", blue, "-n", blue, *own)
    queue("create", "multislice-queue", "-n", red)
    yield red, blue, pink
    place.kubectl("delete", "jobsets", "--all", "--all-namespaces", "--wait")
    until(lambda: not place.kubectl("get", "workloads", "-A", "-o", "name"))
    for name in (red, blue):
        queue("delete", name, "--yes")
    path = "jsonpath={.spec.resourceGroups[0].flavors[0].resources[0].nominalQuota}/{.spec.cohortName}"
    assert place.kubectl("get", "clusterqueue", "cluster-queue", "-o", path) == "16/"
    place.kubectl("delete", "namespace", red, blue, pink, "--wait=false")


def test_teams_have_quotas_of_the_cluster(user: Callable[[str], User], teams: tuple[str, str, str]) -> None:
    ada, bob, eve = map(user, ("ada", "bob", "eve"))
    red, blue, pink = teams
    ada("create", "one", "-n", red, "--queue", red, "--command", FOREVER)
    until(lambda: ada.sees("one", "-n", red)["phase"] == "Running")
    ada("create", "two", "-n", red, "--queue", red, "--command", "true")
    until(lambda: ada.sees("two", "-n", red)["position"] == 1)
    eve("create", "two", "-n", pink, "--priority", "low", "--command", "true")  # its only queue
    behind = until(lambda: (status := eve.sees("two", "-n", pink))["position"] == 2 and status)
    assert behind["ahead"] == [f"{red}/two"], "the quota and the queue are shared"
    assert f"behind {red}/two" in eve("status", "two", "-n", pink).stdout

    bob("create", "one", "-n", blue, "--command", "true")
    bob("wait", "one", "-n", blue, "--timeout", "3m")
    assert ada.sees("two", "-n", red)["phase"] == "Queued", "the other half is not theirs"
    listed = {(item["namespace"], item["name"]) for item in json.loads(eve("list", "-A", "-o", "json").stdout)}
    assert listed == {(red, "one"), (red, "two"), (pink, "two"), (blue, "one")}
    assert json.loads(eve("list", "-o", "json").stdout) == []
    ada("delete", "one", "-n", red, "--yes")
    eve("wait", "two", "-n", pink, "--timeout", "3m")
    assert ada.sees("two", "-n", red)["phase"] == "Succeeded"


@pytest.mark.extended
def test_a_workload_that_can_never_fit_gets_an_alternative(
    user: Callable[[str], User], teams: tuple[str, str, str]
) -> None:
    ada, (red, _, _) = user("ada"), teams
    whole = ("create", "big", "--command", "true", "--num-slices")
    error = ada(*whole, "3", code=5).stderr
    assert "queue 'multislice-queue'" in error and "use --num-slices 2" in error
    error = ada(*whole, "2", "-n", red, "--queue", red, code=5).stderr
    assert f"queue '{red}'" in error and "has 8 in all" in error
    assert "use --num-slices 1 or --queue multislice-queue" in error
    assert f"choose from multislice-queue, {red}" in ada(*whole, "1", "-n", red, "--queue", "none", code=3).stderr
    assert json.loads(ada("list", "-A", "-o", "json").stdout) == []
    ada(*whole, "2", "-n", red)
    ada("wait", "big", "-n", red, "--timeout", "3m")


@pytest.mark.extended
def test_quota_lent_to_a_full_scale_workload_is_returned(
    user: Callable[[str], User], teams: tuple[str, str, str], place: Place
) -> None:
    ada, bob = user("ada"), user("bob")
    _, blue, _ = teams
    ada("create", "full", "--fresh", "--num-slices", "2", "--priority", "high", "--command", FOREVER)
    until(lambda: ada.sees("full")["phase"] == "Running")
    refused = place.xpk("queue", "create", blue, "--cluster", place.cluster, "--quota", "100%", code=5)
    assert "1 left" in refused.stderr
    bob("create", "one", "-n", blue, "--priority", "very-low", "--command", FOREVER)
    until(lambda: bob.sees("one", "-n", blue)["phase"] == "Running")
    full = ada.sees("full")
    assert full["phase"] == "Queued" and f"preempted by {blue}/one" in full["reason"]
    refused = place.xpk("queue", "delete", blue, "--cluster", place.cluster, "--yes", code=4)
    assert f"workloads are in queue '{blue}': {blue}/one" in refused.stderr
    bob("delete", "one", "-n", blue, "--yes")
    until(lambda: ada.sees("full")["phase"] == "Running")
