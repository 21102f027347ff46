"""One budget for replacements of actors and restarts of the JobSet."""

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
    """Return the budget of a new driver."""
    result = Budget(open_place(str(folder)), job, most)
    result.begin()
    return result


def test_replacements_and_restarts_share_one_budget(tmp_path: Path) -> None:
    assert budget(tmp_path, 2).replace()
    second = budget(tmp_path, 2)  # a host has died
    assert (second.replaced, second.restarts, second.is_exceeded) == (1, 1, False)
    assert not second.replace()
    assert budget(tmp_path, 2).is_exceeded
    assert budget(tmp_path, 2, job="another").replace()


def test_stop_requests_do_not_use_the_budget(tmp_path: Path) -> None:
    first = budget(tmp_path, 1)
    first.record_stop_request()
    first.record_stop_request()
    assert budget(tmp_path, 1).replace()


def test_without_replacements_only_the_jobset_counts(tmp_path: Path) -> None:
    for _ in range(3):  # not all of these restarts count for the JobSet
        assert not budget(tmp_path, 1).is_exceeded


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"job": "old", "replaced": 7}', None])
def test_a_budget_file_of_another_job_is_ignored(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "ray.json").write_bytes(content)
    assert (budget(tmp_path, 1).replaced, budget(tmp_path, 1).restarts) == (0, 1)


class Dying(Exception):
    """Replaces Ray's errors."""


class Ray:
    """Replaces Ray: one host, whose trainers die one after the other."""

    exceptions = SimpleNamespace(RayError=Dying)

    def __init__(self) -> None:
        self.attempts = 0

    def remote(self, **_: object) -> Any:
        """Return a decorator whose actors are this object."""
        return lambda actor: SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._start))

    def _start(self, **_: object) -> Any:
        self.attempts += 1
        return SimpleNamespace(choose_coordinator=SimpleNamespace(remote=lambda: None))

    def get(self, call: object) -> None:
        raise Dying("the actor died")

    def kill(self, actor: object) -> None:
        """Do nothing: the actor is dead."""


class MovedRay(Ray):
    """Ray of a run that continues on another cluster: its trainers end at once."""

    def _start(self, **_: object) -> Any:
        super()._start()
        end = Report(0, ExitCode.MOVED, "the run continues on cluster 'b'")
        return SimpleNamespace(
            choose_coordinator=SimpleNamespace(remote=lambda: "127.0.0.1:1"),
            begin=SimpleNamespace(remote=lambda *_: end),
        )

    def get(self, call: object) -> Any:
        return call

    def wait(self, calls: list[object], **_: object) -> tuple[list[object], list[object]]:
        """Return the first call as finished."""
        return calls[:1], calls[1:]


def run(folder: Path, most: int, **doubles: Any) -> tuple[int, int]:
    """Run a driver whose trainers die; return its exit code and the number of attempts."""
    ray = Ray()
    host = Host(job_id="j", output_dir=str(folder))
    launcher: Any = SimpleNamespace(host=host, ships_code=False, stopping=SimpleNamespace(is_set=lambda: False))
    one = SimpleNamespace(hosts=1, options=lambda host: {})
    doubles = {"connect": lambda launcher: ray, "reserve": lambda: [one], **doubles}
    return driver.Driver(launcher, Config(), most, **doubles).run(), ray.attempts


def test_the_driver_ends_when_the_budget_is_used_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, 0) == (1, 1)  # without replacements the JobSet's own count is the budget
    assert run(tmp_path, 3) == (42, 3)  # 1 restart and 2 replacements
    assert "no restarts left: 2 by new trainers and 1 by the JobSet, of 3" in "".join(capsys.readouterr())
    assert run(tmp_path, 3) == (42, 0)


def test_a_run_that_continues_elsewhere_ends_uncounted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        ray = MovedRay()
        assert run(tmp_path, 1, connect=lambda launcher, ray=ray: ray) == (ExitCode.MOVED, 0) and ray.attempts == 1
    assert "slice 0 host 0: the run continues on cluster 'b'" in "".join(capsys.readouterr())
    assert budget(tmp_path, 1).restarts == 0


def test_a_forbidden_output_folder_is_reported(tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with pytest.raises(FatalError, match="cannot be used: Permission denied"):
        run(tmp_path, 3, open_budget=refuse)


@pytest.mark.parametrize(
    ("codes", "failure"),
    [
        ({0: 75, 1: 76}, Failure(1, "slice 0 host 1: its trainer hung; see its log")),
        ({0: 75, 1: 75}, Failure(1, "slice 0 host 0: its trainer exited with 75; see its log")),
        ({0: 75, 1: 42}, Failure(42, "slice 0 host 1: its trainer exited with 42; see its log")),
        ({0: 75, 1: 80}, Failure(80, "slice 0 host 1: its trainer exited with 80; see its log")),
    ],
)
def test_a_trainer_that_failed_without_a_cause_is_named(
    codes: dict[int, int], failure: Failure, tmp_path: Path
) -> None:
    host = Host(job_id="j", output_dir=str(tmp_path), hosts_per_slice=2)
    one = driver.Driver(SimpleNamespace(host=host, ships_code=False), Config(), 3)  # type: ignore[arg-type]
    assert one._find_cause({process: Report(0, ExitCode(code)) for process, code in codes.items()}, {}) == failure


def test_output_in_the_home_folder_is_not_written_into_shipped_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    launcher: Any = SimpleNamespace(host=Host(job_id="j"), ships_code=True)
    asked = dataclasses.replace(Config(), run=dataclasses.replace(Config().run, output_dir="~/out"))
    assert driver.Driver(launcher, asked, 3)._config.run.output_dir == str(tmp_path / "out")
