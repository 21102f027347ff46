"""A command that is killed after any step or change and repeated ends in the same state and creates nothing twice."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.capacity.gke.killing import TASKS, Life
from tests.capacity.gke.site import QUOTAS, Site
from tests.waiting import until
from tools.gke_emulator.emulator import GkeEmulator

Begin = Callable[[str], Life]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Return a factory of projects in which a task can start."""
    with ExitStack() as stack:

        def make(task: str) -> Life:
            folder = tmp_path / f"life-{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            life = Life(folder, stack.enter_context(GkeEmulator(speed=20_000, quotas=QUOTAS)))
            stack.callback(life.close)
            prepare(life.site, task)
            return life

        yield make


def prepare(site: Site, task: str) -> None:
    """Create the initial state of a task: two slices to grow, or three with workloads to shrink or delete."""
    if task == "create":
        return
    pools = [f"c-np-{number}" for number in range(2 if task == "grow" else 3)]
    site.create(len(pools))
    if task != "grow":
        site.run_workload("train", "c-np-2")
        if task != "shrink-free":
            site.run_workload("other", "c-np-1")


def end_state(site: Site) -> object:
    """Return the resources, without times and identifiers, and the number of successful calls."""
    until(lambda: "STOPPING" not in pools(site).values(), every=0.01)  # operations in progress end by themselves
    objects = {key: obj for key, obj in site.api.objects.items() if key[0] != "Node"}
    closed = [item["metadata"]["name"] for item in site.api.list("Node") if item["spec"].get("unschedulable")]
    assert not closed, f"{closed} take no pods"
    return pools(site), site.provider().names(), {key: bare(obj) for key, obj in objects.items()}, asked(site)


def pools(site: Site) -> dict[str, str]:
    """Return the status of the node pools; empty for a deleted cluster."""
    return site.pools() if site.gke.plane.store.clusters else {}


def bare(obj: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in obj.items() if key not in ("metadata", "status")}


def asked(site: Site) -> Counter[tuple[str, str]]:
    """Return the numbers of created and deleted clusters and node pools."""
    made = [call for call in site.gke.calls if call.method.startswith(("Create", "Delete")) and call.code == "OK"]
    return Counter((call.method, str(subject(call.request))) for call in made)


def subject(request: dict[str, dict[str, str]]) -> object:
    return request.get("name") or next(item["name"] for key, item in request.items() if key != "parent")


def _each_task(*, slow: Collection[str]) -> pytest.MarkDecorator:
    """Return the parameter of a test of every task; those of `slow` are slow tests."""
    tasks = [pytest.param(task, marks=pytest.mark.slow) if task in slow else task for task in TASKS]
    return pytest.mark.parametrize("task", tasks)


@_each_task(slow=("create", "shrink"))
def test_create_completes_after_a_kill_at_any_step(begin: Begin, task: str) -> None:
    undisturbed = begin(task)
    assert not undisturbed.run(task)
    expected = end_state(undisturbed.site)
    for step in itertools.count(1):
        life = begin(task)
        if not life.run(task, kill=step):
            assert step > 1
            break
        if task != "delete" or life.site.provider().names():
            assert not life.run(task)
        assert end_state(life.site) == expected, f"killed after step {step}"


@_each_task(slow=("shrink", "shrink-free"))
def test_create_completes_after_a_kill_at_any_change(begin: Begin, task: str) -> None:
    undisturbed, life = begin(task), begin(task)
    assert not undisturbed.run(task)
    lives = 1
    while life.run(task, kill="change"):
        lives += 1
        assert lives < 100
    assert lives > 1
    assert end_state(life.site) == end_state(undisturbed.site)
    if task != "delete":
        assert TASKS[task](life.site).steps == []
    print(f"{task}: {lives} lives")
