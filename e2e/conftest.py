"""Shared fixtures of the end-to-end tests: one kind cluster a session, and artifacts of failed tests."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.drill import SECONDS, STEPS, start
from e2e.harness import Workload
from e2e.kind_cluster import Place, open_place, why_not
from tests.offline.guard import nothing_leaves as nothing_leaves
from tests.prompt import pytest_configure as pytest_configure

ARTIFACTS = Path(os.environ.get("XPK_E2E_ARTIFACTS") or "e2e-artifacts").absolute()
SHARED = pytest.StashKey[Place]()  # the cluster, once it is there


@pytest.fixture(scope="session")
def empty_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A place with or without a cluster; none is there afterwards, and nothing else of it, whatever fails."""
    if why := why_not():
        pytest.skip(f'{why}: `eval "$(e2e/environment/up)"` first')
    if kept := os.environ.get("XPK_E2E_KEEP"):
        folder = Path(kept).absolute()
        yield open_place(folder, folder.name)
        return
    place = open_place(tmp_path_factory.mktemp("kind"), f"e2e-{os.getpid()}")  # several runs do not meet
    yield place
    place.remove()


@pytest.fixture(scope="session")
def place(empty_place: Place, request: pytest.FixtureRequest) -> Place:
    """The cluster: two slices with two hosts each, and a spare slice."""
    try:
        empty_place.xpk(*empty_place.create)
    except AssertionError:
        empty_place.lab.collect(ARTIFACTS / "create")
        raise
    request.session.stash[SHARED] = empty_place
    return empty_place


@pytest.fixture(scope="module", autouse=True)
def clean_afterwards(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave nothing of a file's workloads to the next one: a test that fails must not make others fail."""
    yield
    if _on_kind(request.node.nodeid) and SHARED in request.session.stash:
        request.session.stash[SHARED].clear()


@pytest.fixture(scope="session")
def calm(place: Place) -> Workload:
    """The undisturbed run that every disturbed one must agree with."""
    run = Workload(place.lab, "calm")
    if not place.kubectl("get", "jobset", run.name, "--ignore-not-found"):  # a place that was kept has it
        start(place, run.name, max_restarts=0)
    run.wait(SECONDS)
    assert sorted(run.losses) == list(range(1, STEPS + 1)) and run.lost_steps == 0
    return run


def _on_kind(nodeid: str) -> bool:
    return nodeid.startswith("e2e/test_kind")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Keep what tells why a test failed, and say where."""
    report = yield
    labs = [getattr(value, "lab", value) for value in getattr(item, "funcargs", {}).values()]
    labs = [lab for lab in labs if callable(getattr(lab, "collect", None))]
    if report.failed and labs:
        folder = _new_folder(f"{item.nodeid.rpartition('/')[2]}-{report.when}")
        (folder / "failure.txt").write_text(report.longreprtext, encoding="utf-8")
        for lab in {id(lab): lab for lab in labs}.values():
            try:
                lab.collect(folder)
            except OSError as error:  # files come and go while they are copied; the test has failed for another reason
                (folder / "not-collected.txt").write_text(f"{error}\n", encoding="utf-8")
        report.sections.append(("artifacts", str(folder)))
    return report


def _new_folder(what: str) -> Path:
    """Make a folder of its own for what failed, also for what fails again."""
    name = re.sub(r"[^\w.-]+", "_", what)
    for number in itertools.count(1):
        folder = ARTIFACTS / (name if number == 1 else f"{name}-{number}")
        if not folder.exists():
            break
    folder.mkdir(parents=True)
    return folder
