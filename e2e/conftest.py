"""Shared fixtures of the end-to-end tests: one kind cluster per session, and artifacts of failed tests."""

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
SHARED = pytest.StashKey[Place]()  # the cluster, once it exists


@pytest.fixture(scope="session")
def empty_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Yield a place for a kind cluster; the cluster and its files are removed afterwards, even after a failure."""
    if why := why_not():
        pytest.skip(f'{why}: `eval "$(e2e/environment/up)"` first')
    if kept := os.environ.get("XPK_E2E_KEEP"):
        folder = Path(kept).absolute()
        yield open_place(folder, folder.name)
        return
    place = open_place(tmp_path_factory.mktemp("kind"), f"e2e-{os.getpid()}")  # concurrent runs do not conflict
    yield place
    place.remove()


@pytest.fixture(scope="session")
def place(empty_place: Place, request: pytest.FixtureRequest) -> Place:
    """Yield the cluster: two slices with two hosts each, and a spare slice."""
    try:
        empty_place.xpk(*empty_place.create)
    except AssertionError:
        empty_place.lab.collect(ARTIFACTS / "create")
        raise
    request.session.stash[SHARED] = empty_place
    return empty_place


@pytest.fixture(scope="module", autouse=True)
def clean_afterwards(request: pytest.FixtureRequest) -> Iterator[None]:
    """Delete the workloads of a file's tests, so that a failed test does not make others fail."""
    yield
    if _on_kind(request.node.nodeid) and SHARED in request.session.stash:
        request.session.stash[SHARED].clear()


@pytest.fixture(scope="session")
def calm(place: Place) -> Workload:
    """Return the undisturbed run with which every disturbed run must agree."""
    run = Workload(place.lab, "calm")
    if not place.kubectl("get", "jobset", run.name, "--ignore-not-found"):  # a kept place has it already
        start(place, run.name, max_restarts=0)
    run.wait(SECONDS)
    assert sorted(run.losses) == list(range(1, STEPS + 1)) and run.lost_steps == 0
    return run


def _on_kind(nodeid: str) -> bool:
    return nodeid.startswith("e2e/test_kind")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Collect diagnostics of a failed test, and print their location."""
    report = yield
    labs = [getattr(value, "lab", value) for value in getattr(item, "funcargs", {}).values()]
    labs = [lab for lab in labs if callable(getattr(lab, "collect", None))]
    if report.failed and labs:
        folder = _new_folder(f"{item.nodeid.rpartition('/')[2]}-{report.when}")
        (folder / "failure.txt").write_text(report.longreprtext, encoding="utf-8")
        for lab in {id(lab): lab for lab in labs}.values():
            try:
                lab.collect(folder)
            except OSError as error:  # files change while they are copied; the test has failed for another reason
                (folder / "not-collected.txt").write_text(f"{error}\n", encoding="utf-8")
        report.sections.append(("artifacts", str(folder)))
    return report


def _new_folder(what: str) -> Path:
    """Create a new folder for a failure, also if the same test fails again."""
    name = re.sub(r"[^\w.-]+", "_", what)
    for number in itertools.count(1):
        folder = ARTIFACTS / (name if number == 1 else f"{name}-{number}")
        if not folder.exists():
            break
    folder.mkdir(parents=True)
    return folder
