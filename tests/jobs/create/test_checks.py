"""Checks of the fields of a workload in a program: each invalid one is a line, none raises a TypeError."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from xpk.jobs.create.checks import valid_fields
from xpk.jobs.create.workload import Workload
from xpk.model.errors import Problems, UsageError

VALID: dict[str, Any] = {
    "num_slices": 2, "command": "true", "args": ["--config", "tiny"], "launcher": "ray", "ray_join_seconds": 0,
    "run_as_user": 1, "service_account": "train-sa", "read_only_root": True, "network_policy": True,
    "script_dir": Path("code"), "env": {"A": "1"}, "secret_env": {"T": ("s", "k")}, "max_cost": 1,
    "fatal_exit_codes": (3,), "max_run_seconds": None, "check_memory": False,
}  # fmt: skip


def problems_of(**fields: Any) -> list[str]:
    """Return the problems of a workload's fields; check that replacements of invalid ones are valid."""
    problems, again = Problems(), Problems()
    valid_fields(valid_fields(Workload(**{"name": "w"} | fields), problems), again)
    again.check("replaced fields", hint="")
    try:
        problems.check("all", hint="")
    except UsageError as error:
        return [problem.partition(" (see")[0] for problem in error.problems]
    return []


def test_valid_fields_are_not_changed() -> None:
    request = Workload(name="w", **VALID)
    assert valid_fields(request, Problems()) is request and problems_of(**VALID) == []


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("name", 5, "name must be a string, got 5"),
        ("num_slices", "2", "num_slices must be an integer, got '2'"),
        ("num_slices", True, "num_slices must be an integer, got True"),
        ("max_restarts", 1.5, "max_restarts must be an integer, got 1.5"),
        ("max_restarts", None, "max_restarts must be an integer, got None"),
        ("run_as_user", 0, "run_as_user must be between 1 and 2147483647, got 0"),
        ("run_as_user", -5, "run_as_user must be between 1 and 2147483647, got -5"),
        ("ray_join_seconds", -3, "ray_join_seconds must be at least 0, got -3"),
        ("ray_join_seconds", float("nan"), "ray_join_seconds must be at least 0, got nan"),
        ("ray_join_seconds", "5m", "ray_join_seconds must be a number, got '5m'"),
        ("launcher", "Ray", "launcher must be plain or ray, got 'Ray'"),
        ("launcher", ["ray"], "launcher must be a string, got ['ray']"),
        ("args", "--config tiny", "args must be a list of strings, got '--config tiny'"),
        ("args", ["--set", 5], "args[1] must be a string, got 5"),
        ("command", ["a"], "command must be a string, got ['a']"),
        ("script_dir", 3, "script_dir must be a string or a path, got 3"),
        ("env", {"A": 1}, "env['A'] must be a string, got 1"),
        ("env", {1: "a"}, "a key of env must be a string, got 1"),
        ("env", ["A=1"], "env must be a mapping of strings to strings, got ['A=1']"),
        ("env", {"API_TOKEN": b"hidden"}, "env['API_TOKEN'] must be a string, got [redacted]"),
        ("secret_env", {"A": "s"}, "secret_env['A'] must be a tuple of 2 strings, got 's'"),
        ("secret_env", 1, "secret_env must be a mapping of strings to tuples, got 1"),
        ("fatal_exit_codes", ["3"], "fatal_exit_codes[0] must be an integer, got '3'"),
        ("resume", "yes", "resume must be True or False, got 'yes'"),
        ("mounts", "x" * 100, f"mounts must be a list of strings, got '{'x' * 79}..."),
    ],
)
def test_an_invalid_field_is_one_line(field: str, value: object, problem: str) -> None:
    assert problems_of(**{field: value}) == [problem]


def test_all_invalid_fields_are_reported() -> None:
    assert len(problems_of(**dict.fromkeys(("num_slices", "args", "env", "launcher", "max_cost"), "x"))) == 5
