"""Checks of names, folders and clocks."""

import functools
import time
from pathlib import Path

from tests.trainer.hosts.connections import connected, together
from trainer.preflight import machine


def test_a_name_that_resolves_passes_and_an_unknown_one_fails() -> None:
    assert machine.check_name("127.0.0.1:8476", print).passed
    result = machine.check_name("nowhere.invalid:8476", print, timeout=0.0)
    assert result.problem == "the coordinator's name 'nowhere.invalid' did not resolve within 0 s"


def test_a_folder_passes_and_stays_empty(tmp_path: Path) -> None:
    assert machine.check_storage(str(tmp_path / "new"), "s0-h0").passed
    assert list((tmp_path / "new").iterdir()) == []


def test_a_full_disk_fails(tmp_path: Path) -> None:
    (tmp_path / ".preflight-s0-h0").symlink_to("/dev/full")
    assert machine.check_storage(str(tmp_path), "s0-h0").problem == f"{tmp_path}: No space left on device"


def test_a_folder_that_cannot_be_written_fails(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert machine.check_storage(str(file), "s0-h0").problem == f"{file}: File exists"
    assert machine.check_storage("/proc/xpk", "s0-h0").problem == "/proc/xpk: No such file or directory"


def test_other_bytes_than_the_written_ones_fail(tmp_path: Path) -> None:
    result = machine.check_storage(str(tmp_path), "s0-h0", read=lambda file: file.read_bytes()[:-1] + b"?")
    assert result.problem == f"{tmp_path}: returns other bytes than the 4,194,304 that were written"


def test_clocks_that_agree_pass_and_one_that_is_ahead_fails() -> None:
    hosts, _ = connected(3)
    clocks = [time.time, time.time, lambda: time.time() + 30]
    results, *others = together(
        [functools.partial(machine.compare_clocks, peers, clock) for peers, clock in zip(hosts, clocks, strict=True)]
    )
    assert others == [[], []]
    assert isinstance(results, list)
    assert [one.passed for one in results] == [True, True, False]
    assert 29 < results[2].value < 31


def test_an_offset_within_the_uncertainty_of_a_slow_answer_passes() -> None:
    assert machine.clock_result(3.0, 2.5).passed
    assert not machine.clock_result(-3.0, 0.5).passed
