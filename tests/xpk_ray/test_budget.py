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


class Dying(Exception):
    """In place of Ray's errors."""


class Ray:
    """In place of Ray: one host, whose trainers die one after the other."""

    exceptions = SimpleNamespace(RayError=Dying)

    def __init__(self) -> None:
        self.attempts = 0

    def remote(self, **_: object) -> Any:
        """Return a decorator whose actors are this object."""
        return lambda actor: SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._start))

    def _start(self, **_: object) -> Any:
        self.attempts += 1
        return SimpleNamespace(meeting_place=SimpleNamespace(remote=lambda: None))

    def get(self, call: object) -> None:
        raise Dying("the actor died")

    def kill(self, actor: object) -> None:
        """Do nothing: it is dead."""


def run(folder: Path, most: int, **doubles: Any) -> tuple[int, int]:
    """Run a driver whose trainers die; return its exit code and how many attempts it made."""
    ray = Ray()
    host = Host(job_id="j", output_dir=str(folder))
    launcher: Any = SimpleNamespace(host=host, ships_code=False, stopping=SimpleNamespace(is_set=lambda: False))
    one = SimpleNamespace(hosts=1, options=lambda host: {})
    doubles = {"connect": lambda launcher: ray, "reserve": lambda: [one], **doubles}
    return driver.Driver(launcher, Config(), most, **doubles).run(), ray.attempts


def test_the_driver_ends_for_good_when_nothing_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, 0) == (1, 1)  # nothing was replaced: the JobSet's own count is the budget
    assert run(tmp_path, 3) == (42, 3)  # it was 1 restart and 2 replacements
    assert "no restart is left: 2 by new trainers and 1 by the JobSet, of 3" in "".join(capsys.readouterr())
    assert run(tmp_path, 3) == (42, 0)


def test_an_output_that_may_not_be_used_is_no_crash(tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with pytest.raises(FatalError, match="cannot be used: Permission denied"):
        run(tmp_path, 3, open_budget=refuse)


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
    one = driver.Driver(SimpleNamespace(host=host, ships_code=False), Config(), 3)  # type: ignore[arg-type]
    assert one._judge({process: Report(0, ExitCode(code)) for process, code in codes.items()}, {}) == failure


def test_output_in_the_home_folder_is_not_written_beside_shipped_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    launcher: Any = SimpleNamespace(host=Host(job_id="j"), ships_code=True)
    asked = dataclasses.replace(Config(), run=dataclasses.replace(Config().run, output_dir="~/out"))
    assert driver.Driver(launcher, asked, 3)._config.run.output_dir == str(tmp_path / "out")
