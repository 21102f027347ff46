"""Random values for every option and argument: each is accepted, or rejected in one line, immediately."""

from __future__ import annotations

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.conftest import CommandLine
from tests.fuzz.counts import inputs
from tests.fuzz.inputs import COMMANDS, DIGITS, LONG, TEXTS, WORDS

GKE = ("cluster", "create", "c", "--provider", "gke", "--project", "p", "--zone", "z-a", "--tpu-type", "v5litepod-8",
       "--num-slices", "1", "--dry-run")  # fmt: skip
CREATE = ("workload", "create", "w", "--cluster", "fz", "--command", "true")

# Arguments that a command needs besides the tested value. Others get the name of the workload or the cluster.
VALID = {
    "workload create": ("wx", "--cluster", "fz", "--command", "true"),
    "workload estimate": (),
    "workload list": ("--cluster", "fz"),
    "cluster create": ("cx", "--tpu-type", "v4-8"),
    "cluster adapt": ("ctx",),
    "cluster list": (),
    "plan capacity": ("--config", "tiny", "--tokens", "1e6", "--tpu-type", "v5litepod-8", "--num-slices", "1"),
    "plan goodput": ("--step-seconds", "1", "--num-slices", "2"),
    "queue create": ("qx", "--cluster", "fz", "--num-slices", "1"),
    "queue list": ("--cluster", "fz"),
    "storage create": ("s0", "--cluster", "fz", "--mount-point", "/data", "--size", "10"),
    "storage attach": ("s0", "--cluster", "fz", "--mount-point", "/data"),
    "storage list": ("--cluster", "fz"),
    "data prepare": ("binary", "--out", "prepared"),
}
NAMED = {"workload": ("w0", "--cluster", "fz"), "queue": ("q0", "--cluster", "fz"), "storage": ("s0",)}
NAMED |= {"cluster": ("fz",), "image": ("i0",), "config": ("cluster",), "accelerator": ("v4-8",)}

PIECES = st.lists(st.sampled_from(["=", ",", ":", ".", "-", "9", "v5litepod", "gs:", "x", " ", "\n"]), max_size=8)
VALUES = st.sampled_from(TEXTS) | WORDS | st.integers().map(str) | PIECES.map("".join)


PLACES = [
    (path, parameter)
    for path, command in COMMANDS.items()
    if path != "serve"  # it would serve until a signal; tests/console has its options
    for parameter in command.params
    if isinstance(parameter, click.Argument) or (isinstance(parameter, click.Option) and not parameter.is_flag)
]


def line(path: str, parameter: click.Parameter, value: str) -> list[str]:
    """Return a command line that is valid except for one value."""
    others = list(VALID.get(path, NAMED.get(path.split()[0], ())))
    if isinstance(parameter, click.Argument):
        words = [*others[1:], *(["--"] if value.startswith("-") else []), value]
    else:
        option = parameter.opts[0]
        if option in others:
            del others[others.index(option) : others.index(option) + 2]
        words = [*others, f"{option}={value}" if option.startswith("--") else option + value]
    dry = any("--dry-run" in item.opts for item in COMMANDS[path].params)
    return [*path.split(), *(["--dry-run"] if dry else []), *words]


@inputs(0.08)
@given(place=st.sampled_from(PLACES), value=VALUES)
def test_any_value_of_any_option(command_line: CommandLine, place: tuple[str, click.Parameter], value: str) -> None:
    command_line.check(*line(*place, value))


def refused(command_line: CommandLine, *arguments: str) -> str:
    err = command_line.check(*arguments)
    assert err.startswith("error: ") and len(err) < 10_000, err[:500]
    return err


@pytest.mark.parametrize("file", ["fifo", "device", "folder", "binary", "huge", LONG])
def test_invalid_files_are_rejected(command_line: CommandLine, file: str) -> None:
    assert "cannot read --env-file" in refused(command_line, *CREATE, "--env-file", file)
    refused(command_line, *GKE, "--prices", file)
    refused(command_line, *CREATE, "--script-dir", file) if file != "folder" else None
    refused(command_line, "workload", "create", "-f", file)


@pytest.mark.parametrize("file", ["fifo", "device", "folder", "binary", "huge"])
def test_invalid_preferences_and_ignore_files_are_rejected(command_line: CommandLine, file: str) -> None:
    config, code = command_line.folder / "config", command_line.folder / "work" / f"code-{file}"
    odd = command_line.folder / "work" / file
    config.mkdir()
    code.mkdir()
    (code / "run.sh").write_text("true")
    (code / ".xpkignore").symlink_to(odd)
    (config / "preferences.toml").symlink_to(odd)
    assert "preferences.toml" in refused(command_line, "config", "list")
    assert ".xpkignore" in refused(command_line, *CREATE, "--script-dir", str(code))


@pytest.mark.parametrize(
    "arguments",
    [
        (*CREATE, "--env-file", "a\0b"),
        ("workload", "report", "w", "--cluster", "fz", "--file", "\ud800"),
        ("workload", "logs", "w", "--cluster", "fz", "--tail", "99999999999999999999999"),
        ("workload", "report", "w", "--cluster", "fz", "--file", LONG),
        (*GKE, "--enable-autoprovisioning", "--autoprovisioning-max-memory", DIGITS),
        (*GKE, "--enable-autoprovisioning", "--autoprovisioning-max-cpu", DIGITS),
        (*GKE, "--custom-cluster-arguments", "--a=b " * 170_000),
        ("cluster", "create", LONG, "--tpu-type", "v5litepod-8"),
        ("cluster", "delete", LONG),
        ("workload", "list", "--cluster", LONG),
        (*CREATE, "--num-slices", DIGITS),
        (*CREATE, "--max-restarts", "9" * 30),
        ("workload", "wait", "w", "--cluster", "fz", "--timeout", DIGITS),
        ("workload", "delete", "w0", "--all", "--cluster", "fz"),
        ("workload", "status", "w0", "--cluster", "fz", "--namespace", ""),
        ("workload", "list", "--cluster", "fz", "--namespace", "\u202e"),
    ],
)
def test_random_arguments_are_rejected(command_line: CommandLine, arguments: tuple[str, ...]) -> None:
    refused(command_line, *arguments)
