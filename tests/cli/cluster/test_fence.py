"""`xpk cluster fence` on the command line. The drill with a real node is in e2e/test_kind_recovery.py."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Xpk


def test_a_local_cluster_has_no_nodes_to_fence(dev: Xpk) -> None:
    done = dev("cluster", "fence", "dev")
    assert done.code == 0 and "have no nodes to fence" in done.err and done.out == ""
    assert dev("cluster", "fence", "dev", "--watch").code == 0
    assert dev("cluster", "fence", "dev", "-o", "json").data == []


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("nope",), 3, "cluster 'nope' not found"),
        (("dev", "--max-nodes", "0"), 2, "0 is not in the range x>=1"),
        (("dev", "--max-nodes", "some"), 2, "'some' is not a valid integer range"),
        (("dev", "--per", "0s"), 2, "--per must be between 1 and 604800 seconds, got 0s"),
        (("dev", "--per", "8d"), 2, "--per must be between 1 and 604800 seconds, got 8d"),
        (("dev", "--per", "soon"), 2, "--per 'soon' is not a time"),
        (("dev", "--interval", "0.1"), 2, "--interval must be between 1 and 3600 seconds, got 0.1"),
        (("dev", "--interval", "nan"), 2, "--interval 'nan' is not a time"),
        (("dev", "--interval", "2s"), 2, "--interval requires --watch"),
        (("dev", "--watch", "-o", "json"), 2, "--watch only prints lines"),
    ],
)
def test_bad_input_is_rejected(dev: Xpk, arguments: tuple[str, ...], code: int, says: str) -> None:
    done = dev("cluster", "fence", *arguments)
    assert done.code == code and says in done.err and done.out == "" and "Traceback" not in done.err
