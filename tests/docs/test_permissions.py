"""Roles of docs/permissions.md: they suffice, and a missing verb is named in one line or documented as optional.

`e2e/test_refusals.py` does the same with commands and a real API server.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import click
import pytest

from tests.capacity.adapted.nodes import node
from tests.docs.command_tree import commands
from tests.render.workloads import workload
from tests.roles import DOCS, RoleApi, roles, without
from xpk.api.base import Obj
from xpk.capacity.nodes.inventory import cluster_info, slice_nodes, spec_of
from xpk.capacity.provider import ClusterInfo
from xpk.cli.main import xpk
from xpk.jobs.output.roots import OutputRoots
from xpk.jobs.placement.placer import Placer
from xpk.jobs.usage.reading import Source, read
from xpk.model import names
from xpk.model.errors import AuthorizationError
from xpk.model.specs import CopySpec, Target
from xpk.nodes import Nodes
from xpk.render import render_workload
from xpk.storage import open_folder

Action = Callable[[RoleApi, Path], object]
ROLES = roles()
TARGET = Target(emulated=True, sets_slice_environment=True, output_root="")
COPIES = CopySpec(run="r", cluster="east", clusters=("east", "west"), queue="team", move_after_seconds=30.0)
OWN = {"xpk-quarantine": ["xpk-viewer"], "xpk-usage": [], "xpk-placement": ["xpk-workloads", "xpk-viewer"]}


def objects() -> list[Obj]:
    """Return two slices of one node, and a host of a workload on the first."""
    labels = {"jobset.sigs.k8s.io/jobset-name": "w", "jobset.sigs.k8s.io/job-index": "0"}
    meta = {"name": "w-slice-job-0-0-abcde", "namespace": "default", "labels": labels}
    pod = {"kind": "Pod", "metadata": meta, "spec": {"nodeName": "n0"}, "status": {"phase": "Running"}}
    return [node("n0", "np-0", 8), node("n1", "np-1", 8), pod]


def nodes_of(api: RoleApi) -> Nodes:
    def describe() -> ClusterInfo:
        nodes = slice_nodes(api)
        return cluster_info(api, spec_of("c", nodes), nodes, name="c", provider="adapted", location="")

    return Nodes(api, describe, OutputRoots(lambda: TARGET))


def list_nodes(api: RoleApi, _: Path) -> object:
    return nodes_of(api).list()


def quarantine(api: RoleApi, _: Path) -> object:
    return nodes_of(api).quarantine("n0")


def evict(api: RoleApi, _: Path) -> object:
    return nodes_of(api).quarantine("n0", evict=True)


def return_to_service(api: RoleApi, _: Path) -> object:
    nodes_of(api).quarantine("n0")
    return nodes_of(api).return_to_service("n0", force=True)


def read_usage(api: RoleApi, folder: Path) -> list[str]:
    """Return the problems of a reading."""
    source = Source(api, "c", OutputRoots(lambda: TARGET), folder)
    return read(source, since=0, until=source.clock()).problems


def place(api: RoleApi, folder: Path) -> list[str]:
    """Place the copies of a workload, all on one server; return the reasons of the last pass."""
    spec = workload(name="w", copy=COPIES)
    held = next(obj for obj in render_workload(spec) if obj["kind"] == "JobSet")
    east, west = (RoleApi([held], api.permitted) for _ in COPIES.clusters)
    servers = {"east": east, "west": west}
    file = open_folder(str(folder)).slot(names.LEASE_FILE)
    for done in Placer("w", "default", COPIES, file, servers.__getitem__).passes(once=True, pause=lambda _: None):
        views = done.scene.views
        if any(view.is_released for view in views.values()):
            break
    return [view.reason for view in views.values()]


# A role, an action, and the verbs without which it is refused.
REFUSED: list[tuple[str, Action, str, str]] = [
    ("xpk-quarantine", list_nodes, "list", "nodes"),
    ("xpk-quarantine", list_nodes, "list", "jobsets.jobset.x-k8s.io"),
    ("xpk-quarantine", quarantine, "get", "nodes"),
    ("xpk-quarantine", quarantine, "patch", "nodes"),
    ("xpk-quarantine", return_to_service, "patch", "nodes"),
    ("xpk-quarantine", evict, "list", "pods"),
    ("xpk-quarantine", evict, "create", "pods/eviction"),
    ("xpk-usage", read_usage, "list", "jobsets.jobset.x-k8s.io"),
    ("xpk-usage", read_usage, "list", "workloads.kueue.x-k8s.io"),
    ("xpk-usage", read_usage, "list", "localqueues.kueue.x-k8s.io"),
    ("xpk-placement", place, "patch", "jobsets.jobset.x-k8s.io"),
]


@pytest.mark.parametrize("action", [list_nodes, quarantine, evict, return_to_service, read_usage, place])
def test_the_documented_roles_suffice(action: Action, tmp_path: Path) -> None:
    (role,) = {role for role, own, _, _ in REFUSED if own is action}
    result = action(RoleApi(objects(), [ROLES[name] for name in (role, *OWN[role])]), tmp_path)
    if action is read_usage:
        assert result == []
    if action is place:
        assert result == ["Queued: waiting for the queue", ""], "one is released, the other one held"


@pytest.mark.parametrize(("role", "action", "verb", "resource"), REFUSED)
def test_a_missing_verb_is_named_in_one_line(
    role: str, action: Action, verb: str, resource: str, tmp_path: Path
) -> None:
    permitted = [without(ROLES[name], verb, resource, name) for name in (role, *OWN[role])]
    with pytest.raises(AuthorizationError) as refused:
        action(RoleApi(objects(), permitted), tmp_path)
    assert refused.value.message == f"permission denied: user 'ann' cannot {verb} {resource} in the whole cluster"


@pytest.mark.parametrize("resource", ["nodes", "clusterqueues.kueue.x-k8s.io"])
def test_a_reading_without_the_capacity_names_the_missing_verb(resource: str, tmp_path: Path) -> None:
    api = RoleApi(objects(), [without(ROLES["xpk-usage"], "list", resource, "role")])
    (problem,) = read_usage(api, tmp_path)
    assert problem.startswith("the capacity is not recorded: permission denied")
    assert f"cannot list {resource} in the whole cluster" in problem


def test_a_reading_without_events_records_the_rest(tmp_path: Path) -> None:
    api = RoleApi(objects(), [without(ROLES["xpk-usage"], "list", "events", "role")])
    assert read_usage(api, tmp_path) == []


def test_a_quarantine_without_permission_for_events_is_on_the_nodes(tmp_path: Path) -> None:
    permitted = [without(ROLES["xpk-quarantine"], "create", "events", "role"), ROLES["xpk-viewer"]]
    quarantine(api := RoleApi(objects(), permitted), tmp_path)
    assert "xpk.dev/quarantined" in str(api.get("Node", "n0")["spec"]["taints"])


def test_a_copy_that_cannot_be_read_blocks_and_names_the_missing_verb(tmp_path: Path) -> None:
    permitted = [ROLES["xpk-placement"], without(ROLES["xpk-workloads"], "list", "pods", "role")]
    reasons = place(RoleApi(objects(), permitted), tmp_path)
    assert reasons == ["permission denied: user 'ann' cannot list pods in the whole cluster"] * 2


def test_the_page_says_of_every_command_whether_it_is_tested_with_a_role() -> None:
    leaves = {path.removeprefix("xpk ") for path, item in commands(xpk, "xpk") if not isinstance(item, click.Group)}
    listed = [re.findall(r"`([a-z -]+)`", row.split(" | ")[0]) for row in rows_of_commands()]
    assert sorted(name for names in listed for name in names) == sorted(leaves)


def test_the_drill_runs_the_commands_of_which_the_page_says_so() -> None:
    """A command is run if its words, one after the other, are in a tuple or a call of the drill."""
    tree = ast.parse((DOCS.parents[1] / "e2e" / "test_refusals.py").read_text(encoding="utf-8"))
    words: set[str] = set()
    for item in ast.walk(tree):
        parts = item.elts if isinstance(item, ast.Tuple) else item.args if isinstance(item, ast.Call) else []
        texts = [str(part.value) if isinstance(part, ast.Constant) else "" for part in parts]
        words |= {*texts[:1]} | {f"{one} {two}" for one, two in pairwise(texts)}
        words |= {two for one, two in pairwise(texts) if one == "worker"}
    run, partly = rows_of_commands()[:2]
    names_of_rows = re.findall(r"`([a-z -]+)`", run.split(" | ")[0] + partly.split(" | ")[0])
    assert sorted(set(names_of_rows) - words) == []


def rows_of_commands() -> list[str]:
    """Return the rows of the table of tested commands."""
    section = DOCS.read_text(encoding="utf-8").partition("## Commands that are tested")[2]
    return [line for line in section.splitlines() if line.startswith("| `")]
