"""One budget for the replacements of actors and the restarts of the JobSet."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.config import Config
from trainer.errors import ExitCode, FatalError
from trainer.hosts.bootstrap import Host
from trainer.storage import open_place
from xpk_ray import driver
from xpk_ray.actor import Report
from xpk_ray.budget import Budget
from xpk_ray.driver import Failure


def budget(folder: Path, most: int, job: str = "j") -> Budget:
    """Return what a driver finds that begins now."""
    found = Budget(open_place(str(folder)), job, most)
    found.begin()
    return found


def test_replacements_and_restarts_are_taken_from_one_budget(tmp_path: Path) -> None:
    assert budget(tmp_path, 2).replace()
    second = budget(tmp_path, 2)  # a host has died
    assert (second.replaced, second.restarts, second.is_overdrawn) == (1, 1, False)
    assert not second.replace()
    assert budget(tmp_path, 2).is_overdrawn
    assert budget(tmp_path, 2, job="another").replace()


def test_what_was_asked_to_stop_costs_nothing(tmp_path: Path) -> None:
    first = budget(tmp_path, 1)
    first.asked_to_stop()
    first.asked_to_stop()
    assert budget(tmp_path, 1).replace()


def test_without_replacements_the_jobset_counts_alone(tmp_path: Path) -> None:
    for _ in range(3):  # not all of these restarts need to count for the JobSet
        assert not budget(tmp_path, 1).is_overdrawn


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"job": "old", "replaced": 7}', None])
def test_a_file_that_tells_nothing_of_this_job_is_no_harm(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "ray.json").write_bytes(content)
    assert (budget(tmp_path, 1).replaced, budget(tmp_path, 1).restarts) == (0, 1)


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Run a driver whose attempts end as told; return its exit code and how many attempts it made."""
    ray = SimpleNamespace(kill=lambda actor: None)
    monkeypatch.setattr(driver, "joined", lambda launcher: ray)
    monkeypatch.setattr(driver, "slices", list)
    monkeypatch.setattr(driver._Driver, "_make", lambda self: [])

    def run(most: int, *outcomes: int | Failure) -> tuple[int, int]:
        left = list(outcomes)
        monkeypatch.setattr(driver._Driver, "_attempt", lambda self, actors: left.pop(0))
        host = Host(job_id="j", output_dir=str(tmp_path))
        launcher: Any = SimpleNamespace(host=host, ships_code=False, stopping=SimpleNamespace(is_set=lambda: False))
        return driver._Driver(launcher, Config(), most).run(), len(outcomes) - len(left)

    return run


def test_the_driver_ends_for_good_when_nothing_is_left(attempts: Any, capsys: pytest.CaptureFixture[str]) -> None:
    died = Failure(1, "slice 1 host 0: its trainer died")
    assert attempts(0, died) == (1, 1)  # nothing was replaced: the JobSet's own count is the budget
    assert attempts(3, died, died, died) == (42, 3)  # it was 1 restart and 2 replacements
    assert "no restart is left: 2 by new trainers and 1 by the JobSet, of 3" in "".join(capsys.readouterr())
    assert attempts(3, 0) == (42, 0)


def test_an_output_that_may_not_be_used_is_no_crash(attempts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(driver, "Budget", refuse)
    with pytest.raises(FatalError, match="cannot be used: Permission denied"):
        attempts(3, 0)


@pytest.mark.parametrize(
    ("codes", "failure"),
    [
        ({0: 75, 1: 76}, Failure(1, "slice 0 host 1: it hung; see its log")),
        ({0: 75, 1: 75}, Failure(1, "slice 0 host 0: its trainer ended with 75; see its log")),
        ({0: 75, 1: 42}, Failure(42, "slice 0 host 1: its trainer ended with 42; see its log")),
    ],
)
def test_a_trainer_that_gives_no_reason_is_named(codes: dict[int, int], failure: Failure, tmp_path: Path) -> None:
    host = Host(job_id="j", output_dir=str(tmp_path), hosts_per_slice=2)
    one = driver._Driver(SimpleNamespace(host=host, ships_code=False), Config(), 3)  # type: ignore[arg-type]
    assert one._judge({process: Report(0, ExitCode(code)) for process, code in codes.items()}, {}) == failure


def test_output_in_the_home_folder_is_not_written_beside_shipped_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    launcher: Any = SimpleNamespace(host=Host(job_id="j"), ships_code=True)
    asked = dataclasses.replace(Config(), run=dataclasses.replace(Config().run, output_dir="~/out"))
    assert driver._Driver(launcher, asked, 3)._config.run.output_dir == str(tmp_path / "out")
