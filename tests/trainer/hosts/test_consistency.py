"""Inconsistent hosts are named before they start."""

from functools import partial
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.trainer.hosts.connections import together
from tests.trainer.small import SETTINGS, start
from trainer import config
from trainer.errors import FatalError
from trainer.hosts.bootstrap import Host
from trainer.hosts.consistency import Traits, check_agreement, code_traits, traits
from trainer.hosts.peers import Peers

SECONDS = 60


def compared(mine: list[Traits]) -> list[str]:
    """Compare this number of hosts; return the error of each, or "" if all agree."""
    port, message = free_port(), [""] * len(mine)

    def work(process: int) -> None:
        host = Host(num_slices=len(mine), slice_id=process)
        peers = Peers(process, len(mine), on_lost=lambda peer: None, on_message=lambda what, by: None)
        peers.connect("127.0.0.1", port, SECONDS)
        try:
            check_agreement(peers, host, mine[process])
        except FatalError as error:
            message[process] = str(error)

    together([partial(work, process) for process in range(len(mine))], SECONDS)
    return message


def of(*settings: str, **environ: str) -> Traits:
    return traits(config.load("tiny", [*SETTINGS, *settings]), environ)


def test_equal_hosts_are_consistent() -> None:
    places = of("run.output_dir=/here", XLA_FLAGS="--xla_dump_to=/tmp/1 --a=b"), of(XLA_FLAGS="--a=b")
    assert compared([*places, places[0]]) == ["", "", ""]


def test_the_inconsistent_host_is_named_with_its_differences() -> None:
    usual, odd = of(), of("optim.lr=0.5", XLA_FLAGS="--fast")
    words = (
        "slice 1 host 0 differs from slice 0 host 0: XLA_FLAGS is --fast, expected missing; "
        "optim.lr is 0.5, expected 0.004"
    )
    assert compared([usual, odd, usual]) == [words] * 3
    # Of two hosts process 0 is assumed to be right.
    assert compared([usual, odd]) == [words] * 2


def test_process_0_can_be_the_inconsistent_host() -> None:
    usual, odd = of(), of("data.seed=3")
    words = "slice 0 host 0 differs from slice 1 host 0: data.seed is 3, expected 0"
    assert compared([odd, usual, usual]) == [words] * 3


def test_several_groups_of_inconsistent_hosts_are_named() -> None:
    message = compared([of(), of("run.seed=1"), of(), of("run.seed=2"), of("run.seed=1")])
    assert set(message) == {
        "slice 1 host 0, slice 4 host 0 differs from slice 0 host 0: run.seed is 1, expected 0; "
        "slice 3 host 0 differs from slice 0 host 0: run.seed is 2, expected 0"
    }


def test_different_code_is_detected(tmp_path: Path) -> None:
    made = config.load("tiny")
    for name in ("one", "other"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "part.py").write_text("A = 1\n")
    one, other = (traits(made, {}, code_traits([tmp_path / name])) for name in ("one", "other"))
    assert one == other
    (tmp_path / "other" / "sub" / "part.py").write_text("A = 2\n")
    changed = traits(made, {}, code_traits([tmp_path / "other"]))
    assert {name for name in one if one[name] != changed[name]} == {"the trainer's code"}


@pytest.mark.slow
def test_a_job_with_an_inconsistent_host_ends_immediately(tmp_path: Path) -> None:
    job = start(tmp_path, ["run.steps=5"], faults={1: "lr:1"})
    assert job.exit_codes() == [42, 42], job.logs()
    assert "error: slice 1 host 0 differs from slice 0 host 0: optim.lr is 0.5, expected 0.004." in job.logs()
    assert "Traceback" not in job.logs()
