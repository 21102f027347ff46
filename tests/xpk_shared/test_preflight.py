"""Commands that begin with checks of the hosts: the program alone is restarted in place once they have passed."""

from __future__ import annotations

from pathlib import Path

from xpk_shared.supervisor.names import PASSED, PREFLIGHT
from xpk_shared.supervisor.preflight import Preflight, without_preflight


def test_a_command_without_checks_is_unchanged() -> None:
    for argv in (["python", "-m", "trainer", "train"], ["bash", "-c", "a -- b"], [*PREFLIGHT]):
        preflight = Preflight(argv)
        assert (without_preflight(argv), preflight.program, preflight.environment) == (argv, argv, {})
        assert not preflight.has_passed


def test_the_program_follows_the_first_separator() -> None:
    assert without_preflight([*PREFLIGHT, "--disk", "/mnt", "--", "bash", "-c", "x", "--", "y"]) == [
        "bash",
        "-c",
        "x",
        "--",
        "y",
    ]


def test_checks_are_repeated_until_they_have_passed() -> None:
    argv = [*PREFLIGHT, "--", "true"]
    preflight = Preflight(argv)
    assert not preflight.has_passed
    assert preflight.argv(is_passed=preflight.has_passed) == argv
    Path(preflight.environment[PASSED]).write_bytes(b"1")
    assert preflight.has_passed
    assert preflight.argv(is_passed=preflight.has_passed) == ["true"]
