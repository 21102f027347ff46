"""The objects that a connection keeps: always those that are stored, and no controller misses a change of another."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.local.cases import jobset, node
from xpk.api.base import Obj
from xpk.local.store import CHANGES_KEPT, Store, Transaction


def label_all(tx: Transaction, value: str) -> None:
    for obj in tx.list("Node"):
        obj["metadata"]["labels"]["x"] = value
        tx.put(obj)


@pytest.mark.parametrize("writes", [1, CHANGES_KEPT])
def test_changes_of_another_connection_are_seen(tmp_path: Path, writes: int) -> None:
    with Store(tmp_path, create=True) as one, Store(tmp_path) as other:
        with one.transaction() as tx:
            tx.put(node(0, 0))
            tx.put(node(0, 1))
        with other.transaction() as tx:
            removed, _ = tx.list("Node")
            tx.remove(removed)
            tx.put(node(0, 2))
            for number in range(writes):
                label_all(tx, str(number))
        with one.transaction(write=False) as tx:
            assert [(obj["metadata"]["name"], obj["metadata"]["labels"]["x"]) for obj in tx.list("Node")] == [
                ("c-np-0-1", str(writes - 1)), ("c-np-0-2", str(writes - 1)),
            ]  # fmt: skip


def test_an_object_that_is_not_written_is_not_kept(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store:
        with store.transaction() as tx:
            tx.put(node(0, 0))
        with store.transaction() as tx:
            tx.list("Node")[0]["metadata"]["labels"]["x"] = "not written"
        with pytest.raises(RuntimeError), store.transaction() as tx:
            label_all(tx, "rolled back")
            raise RuntimeError
        with store.transaction() as tx:
            assert "x" not in tx.list("Node")[0]["metadata"]["labels"]


class Controller:
    """A controller of one JobSet that counts how often it runs."""

    def __init__(self) -> None:
        self.runs = 0

    def run(self, tx: Transaction, obj: Obj, *, waits: bool = False) -> int:
        """Return how often it has run since the last call."""
        before = self.runs

        def act() -> bool:
            self.runs += 1
            return waits

        tx.settle("controller", (obj["metadata"]["uid"], "Node"), act)
        return self.runs - before


def test_a_controller_runs_again_only_after_a_change_of_what_it_reads(tmp_path: Path) -> None:
    controller = Controller()
    with Store(tmp_path, create=True) as store, Store(tmp_path) as other:
        with store.transaction() as tx:
            for obj in (jobset("a", "true"), jobset("b", "true"), node(0, 0)):
                tx.put(obj)
            own, another = tx.list("JobSet")
            assert [controller.run(tx, own) for _ in range(3)] == [1, 0, 0]
            another["spec"]["suspend"] = True
            tx.put(another)
            assert controller.run(tx, own) == 0
        with other.transaction() as tx:
            label_all(tx, "x")
        with store.transaction() as tx:
            assert [controller.run(tx, own) for _ in range(2)] == [1, 0]
            tx.remove(own)
            assert [controller.run(tx, own, waits=True) for _ in range(2)] == [1, 1]


@pytest.mark.parametrize("is_written", [True, False])
def test_a_controller_that_has_seen_what_is_not_stored_runs_again(tmp_path: Path, is_written: bool) -> None:
    controller = Controller()
    with Store(tmp_path, create=True) as store:
        with store.transaction() as tx:
            tx.put(jobset("a", "true"))
        with store.transaction() as tx:
            (own,) = tx.list("JobSet")
            own["spec"]["suspend"] = True
            if is_written:
                tx.put(own)
            controller.run(tx, own)
            tx.keep_copies()
        with store.transaction() as tx:
            assert controller.run(tx, own) == (not is_written)


def test_only_unchanged_copies_are_kept(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store, Store(tmp_path) as other:
        with store.transaction() as tx:
            for number in range(4):
                tx.put(node(0, number))
        with store.transaction() as tx:
            unchanged, unwritten, written, replaced = tx.list("Node")
            unwritten["metadata"]["labels"]["x"] = "not written"
            written["metadata"]["labels"]["x"] = "written"
            tx.put(written)
            tx.keep_copies()
        written["metadata"]["labels"]["x"] = "changed after the transaction"
        with other.transaction() as tx:
            tx.put(replaced | {"spec": {"unschedulable": True}})
        with store.transaction() as tx:
            nodes = tx.list("Node")
            assert [obj["metadata"]["labels"].get("x") for obj in nodes] == [None, None, "written", None]
            assert [obj["spec"] for obj in nodes[2:]] == [written["spec"], {"unschedulable": True}]
            assert nodes[0] is unchanged
