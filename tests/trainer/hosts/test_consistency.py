"""Hosts that do not run the same are told before they begin, by name."""

from functools import partial
from pathlib import Path

import pytest

from tests.trainer.hosts.connections import together
from tests.trainer.small import SETTINGS, free_ports, start
from trainer import config
from trainer.errors import FatalError
from trainer.hosts.bootstrap import Host
from trainer.hosts.consistency import Traits, agree, code_traits, traits
from trainer.hosts.peers import Peers

SECONDS = 60


def compared(mine: list[Traits]) -> list[str]:
    """Let as many hosts compare these; return what each is told, nothing where all is well."""
    port, told = free_ports(), [""] * len(mine)

    def work(process: int) -> None:
        host = Host(num_slices=len(mine), slice_id=process)
        peers = Peers(process, len(mine), on_lost=lambda peer: None, on_told=lambda what, by: None)
        peers.connect("127.0.0.1", port, SECONDS)
        try:
            agree(peers, host, mine[process])
        except FatalError as error:
            told[process] = str(error)

    together([partial(work, process) for process in range(len(mine))], SECONDS)
    return told


def of(*settings: str, **environ: str) -> Traits:
    return traits(config.load("tiny", [*SETTINGS, *settings]), environ)


def test_hosts_that_run_the_same_agree() -> None:
    places = of("run.output_dir=/here", XLA_FLAGS="--xla_dump_to=/tmp/1 --a=b"), of(XLA_FLAGS="--a=b")
    assert compared([*places, places[0]]) == ["", "", ""]


def test_the_odd_host_is_named_with_what_is_not_the_same() -> None:
    usual, odd = of(), of("optim.lr=0.5", XLA_FLAGS="--fast")
    words = (
        "slice 1 host 0 does not run what slice 0 host 0 does: XLA_FLAGS is --fast, there missing; "
        "optim.lr is 0.5, there 0.004"
    )
    assert compared([usual, odd, usual]) == [words] * 3
    # Of two hosts process 0 is taken for right.
    assert compared([usual, odd]) == [words] * 2


def test_it_may_be_process_0() -> None:
    usual, odd = of(), of("data.seed=3")
    words = "slice 0 host 0 does not run what slice 1 host 0 does: data.seed is 3, there 0"
    assert compared([odd, usual, usual]) == [words] * 3


def test_several_kinds_of_odd_hosts_are_all_named() -> None:
    told = compared([of(), of("run.seed=1"), of(), of("run.seed=2"), of("run.seed=1")])
    assert set(told) == {
        "slice 1 host 0, slice 4 host 0 does not run what slice 0 host 0 does: run.seed is 1, there 0; "
        "slice 3 host 0 does not run what slice 0 host 0 does: run.seed is 2, there 0"
    }


def test_code_that_is_not_the_same_is_noticed(tmp_path: Path) -> None:
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
def test_a_job_with_an_odd_host_ends_at_once(tmp_path: Path) -> None:
    job = start(tmp_path, ["run.steps=5"], faults={1: "lr:1"})
    assert job.exit_codes() == [42, 42], job.logs()
    assert "error: slice 1 host 0 does not run what slice 0 host 0 does: optim.lr is 0.5, there 0.004." in job.logs()
    assert "Traceback" not in job.logs()
