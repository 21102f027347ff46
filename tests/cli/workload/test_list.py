"""Lists: sorted, filtered, of all namespaces, and watched; deletion of several workloads."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

from tests.cli.conftest import Xpk
from tests.cli.terminal.pseudo_terminal import on_terminal
from tests.jobs.objects import jobset
from tests.waiting import until
from xpk.api.base import Change, Obj
from xpk.jobs.watch import Changes
from xpk.testing import FakeApi


def create(xpk: Xpk, name: str, *options: str) -> None:
    """Create a long-running workload."""
    done = xpk("workload", "create", name, "--command", "sleep 100", *options)
    assert done.code == 0, done.err


def listed(xpk: Xpk, *options: str) -> list[str]:
    """Return the names that `workload list` prints."""
    return xpk("workload", "list", "-o", "name", *options).out.split()


def test_lists_are_sorted_and_headers_can_be_omitted(dev: Xpk) -> None:
    for name, priority in (("b", "high"), ("a", "very-low"), ("c", "medium")):
        create(dev, name, "--priority", priority)
    assert listed(dev, "--sort-by", "name") == ["a", "b", "c"]
    assert listed(dev, "--sort-by", "priority") == ["a", "c", "b"]
    assert [item["name"] for item in dev("workload", "list", "--sort-by", "name", "-o", "json").data] == ["a", "b", "c"]
    plain = dev("workload", "list", "--no-headers").out.splitlines()
    assert sorted(line.split()[0] for line in plain) == ["a", "b", "c"]
    refused = dev("workload", "list", "--sort-by", "color")
    assert refused.code == 2 and "priority" in refused.err
    assert dev("queue", "list", "--no-headers").out.startswith("multislice-queue")
    assert listed(dev, "--sort-by", "namespace") == listed(dev)  # a hidden column


def test_every_list_is_sorted_and_headers_are_optional(xpk: Xpk) -> None:
    types = [item["name"] for item in xpk("accelerator", "list", "--sort-by", "chips", "-o", "json").data]
    assert types.index("v5litepod-16") < types.index("v5litepod-128")
    assert "TYPE" not in xpk("accelerator", "list", "--no-headers").out
    assert "NAME" not in xpk("config", "list", "--no-headers", "--sort-by", "name").out
    assert xpk("cluster", "list", "--no-headers", "--sort-by", "name").code == 0
    assert "--sort-by" in xpk("storage", "list", "--help").out


def test_an_offline_list_can_be_json(xpk: Xpk) -> None:
    result = xpk("cluster", "list", "--dry-run", "-o", "json")
    assert result.data == [] and "changes nothing" in result.err


def test_a_wide_list_has_the_progress_of_each_program(dev: Xpk) -> None:
    line = '{\\"step\\": 12, \\"steps\\": 48, \\"time\\": $(date +%s)}'
    command = f'echo "{line}" >> "$XPK_PROGRESS_FILE"; sleep 100'
    done = dev("workload", "create", "one", "--command", command)
    assert done.code == 0, done.err
    create(dev, "two")

    def shown() -> list[str]:
        lines = dev("workload", "list", "-o", "wide", "--sort-by", "name").out.splitlines()
        assert "PROGRESS" in lines[0]
        return lines[1:]

    until(lambda: "step 12" in shown()[0], seconds=60)
    one, two = shown()
    assert "step 12 of 48 (25 %)" in one and "step" not in two
    assert "PROGRESS" not in dev("workload", "list").out


def test_lists_are_filtered_by_labels(dev: Xpk) -> None:
    create(dev, "one")
    create(dev, "two")
    assert listed(dev, "-l", "xpk.google.com/workload=two") == ["two"]
    assert listed(dev, "-l", "xpk.google.com/workload==two,app.kubernetes.io/managed-by=xpk") == ["two"]
    assert listed(dev, "-l", "team=red") == []
    refused = dev("workload", "list", "-l", "team!=red")
    assert refused.code == 2 and "invalid selector 'team!=red'" in refused.err
    assert dev("workload", "delete", "-l", "xpk.google.com/workload=two", "--yes").code == 0
    assert listed(dev) == ["one"]


def test_lists_of_all_namespaces_name_each_namespace(dev: Xpk) -> None:
    assert dev("queue", "create", "multislice-queue", "-n", "red", "--create-namespace", "--yes").code == 0
    create(dev, "try-1")
    create(dev, "try-1", "-n", "red")
    title, *rows = dev("workload", "list", "-A").out.splitlines()
    assert title.split()[:2] == ["NAMESPACE", "NAME"]
    assert sorted(row.split()[:2] for row in rows) == [["default", "try-1"], ["red", "try-1"]]
    assert dev("workload", "list", "-o", "wide").out.split()[0] == "NAMESPACE"


def test_several_workloads_are_deleted_or_none(dev: Xpk) -> None:
    for name in ("a", "b", "c"):
        create(dev, name)
    refused = dev("workload", "delete", "a", "nix", "b", "nada")
    assert refused.code == 3 and "'nix'" in refused.err and "'nada'" in refused.err
    assert "nothing was deleted" in refused.err and listed(dev) == ["a", "b", "c"]
    one = dev("workload", "delete", "a", "nix")
    assert one.code == 3 and listed(dev) == ["a", "b", "c"]
    done = dev("workload", "delete", "a", "--workload", "b", "nix", "--ignore-not-found")
    assert done.code == 0 and listed(dev) == ["c"] and "nix" in done.err
    assert dev("workload", "delete", "c", "--all").code == 2 and listed(dev) == ["c"]


def test_a_watched_list_is_redrawn_and_ends_with_ctrl_c(dev: Xpk) -> None:
    create(dev, "first")
    steps = ["first", "second"]

    def act(running: subprocess.Popen[bytes], seen: str) -> bool:
        if steps and steps[0] in seen:
            steps.pop(0)
            if steps:
                create(dev, "second")
            else:
                running.send_signal(signal.SIGINT)
        return not steps

    code, seen = on_terminal("workload", "list", "--watch", do=act)
    assert code == 130 and not steps
    assert "\x1b[2A" in seen  # the two lines of the first table are redrawn


def test_a_watched_status_ends_with_its_workload(dev: Xpk) -> None:
    dev("workload", "create", "short", "--command", "sleep 1")
    message = dev("workload", "status", "short", "-w")
    assert message.code == 0 and "short: Succeeded" in message.out
    refused = dev("workload", "status", "short", "-w", "-o", "json")
    assert refused.code == 2 and "--watch" in refused.err


class Counting(FakeApi):
    """A server whose watch yields existing objects, then those put into `later`."""

    def __init__(self, objects: list[Obj]) -> None:
        super().__init__(objects)
        self.later: list[tuple[Change, Obj]] = []

    def watch(self, *args: Any, **options: Any) -> Iterator[tuple[Change, Obj]]:
        """See `ObjectApi.watch`."""
        self._note("watch", str(args[0]), "")
        yield from super().watch(*args, **options)
        while self.later:
            yield self.later.pop(0)


def test_a_change_between_two_polls_is_detected() -> None:
    api = Counting([jobset() | {"kind": "JobSet"}])
    changes = Changes(api, "JobSet", None, pause_seconds=0.05)
    changes.wait()  # all existing objects are known now
    assert api.later == []
    api.later = [("MODIFIED", {"metadata": {"uid": "other", "resourceVersion": "9"}}), ("ADDED", {"metadata": {}})]
    changes.wait()
    assert len(api.later) == 1  # returned at the first one
    api.patch("JobSet", "w", {"status": {"restarts": 1}})
    changes.wait()
    assert len(api.later) == 1  # it was changed before the watch started
    assert json.dumps(api.calls).count("watch") == 3
