"""A workload in a file: the fields of the flags, written by a dry run and read with -f."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import yaml

from xpk.cli.main import main

SPEC = ("--dry-run", "-o", "spec")
ASKED = (
    "--num-slices",
    "2",
    "--env",
    "A=1",
    "--env",
    "B=x=y",
    "--label",
    "team=red",
    "--max-restarts",
    "3",
    "--spot",
    "--min-slices",
    "1",
)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what a command prints."""
    assert main(["workload", "create", *arguments]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_a_spec_file_reproduces_its_workload(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "lm", *ASKED, *SPEC, "--", "--config", "tiny")
    (tmp_path / "lm.yaml").write_text(text)
    assert yaml.safe_load(text) == {
        "name": "lm", "num-slices": 2, "spot": True, "env": ["A=1", "B=x=y"], "label": ["team=red"],
        "max-restarts": 3, "min-slices": 1, "args": ["--config", "tiny"],
    }  # fmt: skip
    assert printed(capsys, "-f", str(tmp_path / "lm.yaml"), *SPEC) == text


def test_flags_take_precedence_and_mappings_are_variables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lm.yaml").write_text("name: lm\nnum-slices: 2\nenv: {A: 1, B: two}\nargs: [--config, tiny]\n")
    result = yaml.safe_load(
        printed(capsys, "other", "-f", str(tmp_path / "lm.yaml"), "--num-slices", "4", *SPEC, "--", "--config", "128b")
    )
    assert result == {"name": "other", "num-slices": 4, "env": ["A=1", "B=two"], "args": ["--config", "128b"]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("num-slice: 2", "unknown field 'num-slice'; did you mean 'num-slices'?"),
        ("spot: 3", "spot must be true or false, got '3'"),
        ("num-slices: [1]", "num-slices must be one value"),
        ("args: --config tiny", "args must be a list of words"),
        ("- 1", "must hold fields"),
        ("a: &a [*a]", "YAML aliases"),
        ("{", "cannot read"),
        ("1: 2", "unknown field '1'"),
        ("num-slices: many", "'many' is not a valid integer"),
    ],
)
def test_a_problem_of_a_file_is_one_line(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    assert main(["workload", "create", "x", "-f", str(tmp_path / "bad.yaml"), *SPEC]) == 2
    error = capsys.readouterr().err
    assert said in error and "hint:" in error and "Traceback" not in error


def test_all_problems_of_a_file_are_reported_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.yaml").write_text("spot: 3\nnum-slice: 2\n")
    assert main(["workload", "create", "x", "-f", str(tmp_path / "bad.yaml"), *SPEC]) == 2
    assert capsys.readouterr().err.count("error:") == 2


def test_an_invalid_file_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file, said in (
        (tmp_path, "is not a file"),
        (tmp_path / "none", "does not exist"),
        (Path("/dev/zero"), "is not"),
    ):
        assert main(["workload", "create", "x", "-f", str(file), *SPEC]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("preferred", ["low", "high"])
def test_fields_take_precedence_over_preferences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, preferred: str
) -> None:
    monkeypatch.setenv("XPK_CONFIG_DIR", str(tmp_path))
    assert main(["config", "set", "priority", preferred]) == 0
    (tmp_path / "lm.yaml").write_text("name: lm\npriority: medium\nargs: [--config, tiny]\n")
    text = printed(capsys, "-f", str(tmp_path / "lm.yaml"), *SPEC)
    assert "priority: medium" in text


def test_the_format_needs_a_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workload", "create", "x", "-o", "spec"]) == 2
    assert "requires --dry-run" in capsys.readouterr().err


def test_fields_take_precedence_over_variables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lm.yaml").write_text("name: lm\nnamespace: red\ncluster: ours\nnum-slices: 2\nenv: [A=1]\n")
    for name, value in (("NAMESPACE", "blue"), ("CLUSTER", "theirs"), ("WORKLOAD_CREATE_NUM_SLICES", "5")):
        monkeypatch.setenv(f"XPK_{name}", value)
    result = yaml.safe_load(printed(capsys, "-f", str(tmp_path / "lm.yaml"), "-n", "green", *SPEC))
    assert result == {"name": "lm", "namespace": "green", "cluster": "ours", "num-slices": 2, "env": ["A=1"]}


def test_a_file_keeps_the_cluster_location(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "lm", "--context", "c", "--project", "p", "--zone", "z", *SPEC)
    assert yaml.safe_load(text) == {"name": "lm", "context": "c", "project": "p", "zone": "z"}
    (tmp_path / "lm.yaml").write_text(text)
    assert printed(capsys, "-f", str(tmp_path / "lm.yaml"), *SPEC) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("env: {DEBUG: true}", "env.DEBUG must be a string, got true"),
        ("env: {EMPTY: }", "env.EMPTY must be a string, got null"),
        ("env: {V: 1.10}", "env.V must be a string, got 1.1"),
        ("args: [2026-11-23]", "args[0] must be a string"),
        ("command: yes", "command must be a string, got true"),
        ("num-slices: 1.9", "num-slices must be an integer, got 1.9"),
        ("max-restarts: yes", "max-restarts must be an integer, got true"),
        ("max-cost: yes", "max-cost must be a number, got true"),
    ],
)
def test_values_of_a_file_do_not_change_silently(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    assert main(["workload", "create", "x", "-f", str(tmp_path / "bad.yaml"), *SPEC]) == 2
    assert said in capsys.readouterr().err


def test_numbers_are_kept_as_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lm.yaml").write_text("env: {A: 010, B: 1_0, C: 1:30, D: -7}\nargs: [--steps, 20]\n")
    result = yaml.safe_load(printed(capsys, "lm", "-f", str(tmp_path / "lm.yaml"), *SPEC))
    assert result["env"] == ["A=010", "B=1_0", "C=1:30", "D=-7"] and result["args"] == ["--steps", "20"]


def test_a_file_may_be_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"name: lm\nnum-slices: 2\n")))
    assert yaml.safe_load(printed(capsys, "-f", "-", *SPEC)) == {"name": "lm", "num-slices": 2}
