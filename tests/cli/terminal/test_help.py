"""Help pages: sections, complete summaries, valid examples, short names, and shell completion."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from xpk.cli.main import main, xpk
from xpk.cli.terminal.help import EXAMPLES, SECTIONS


def commands(group: click.Group, path: str = "xpk") -> Iterator[tuple[str, click.Command]]:
    """Yield every command except groups, with its path."""
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


COMMANDS = dict(commands(xpk))


def page(*arguments: str, width: int = 80) -> str:
    """Return a help page."""
    done = CliRunner().invoke(xpk, [*arguments, "--help"], prog_name="xpk", terminal_width=width)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("path", ["cluster create", "workload create"])
def test_options_of_large_commands_are_in_sections(path: str) -> None:
    text = page(*path.split())
    (command,) = (command for known, command in COMMANDS.items() if known == f"xpk {path}")
    listed = {flag for flags in SECTIONS.values() for flag in flags}
    shown = [item for item in command.params if isinstance(item, click.Option) and not item.hidden]
    assert [item.opts for item in shown if not listed & set(item.opts)] == []
    assert text.index("\nCapacity:") < text.index("\nOutput:") < text.index("\nExamples:")


def test_summaries_fit_80_columns() -> None:
    for group in ("cluster", "workload", "queue", "image"):
        text = page(group)
        assert "..." not in text.partition("Commands:")[2]
        assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("path", sorted(set(COMMANDS) - {"xpk completion"}))
def test_each_command_has_an_example(path: str) -> None:
    examples = EXAMPLES.get(path, ())
    assert examples or "\n      xpk " in (COMMANDS[path].help or "") or "\n  xpk " in page(*path.split()[1:])


@pytest.mark.parametrize("path", sorted(EXAMPLES))
def test_examples_fit_80_columns_and_can_be_pasted(path: str) -> None:
    shown = page(*path.split()[1:]).partition("Examples:\n")[2].rstrip()
    assert max(map(len, shown.splitlines())) <= 80
    pasted = [shlex.split(line) for line in shown.replace("\\\n", " ").splitlines()]
    assert pasted == [shlex.split(line) for line in EXAMPLES[path]]


def test_an_example_is_broken_before_an_option() -> None:
    shown = page("cluster", "create").partition("Examples:\n")[2]
    assert " \\\n    --tpu-type v5litepod-256 --dry-run\n" in shown


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_flags_of_examples_exist(line: str) -> None:
    words = shlex.split(line[line.index("xpk ") :].partition(" -- ")[0].removesuffix(" get pods").replace(")", ""))
    path = " ".join(words[:3]) if " ".join(words[:3]) in COMMANDS else " ".join(words[:2])
    known = {flag for parameter in COMMANDS[path].params for flag in (*parameter.opts, *parameter.secondary_opts)}
    assert {word.partition("=")[0] for word in words if word.startswith("-")} <= known


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [(["cluster", "ls"], ""), (["help", "workload", "wait"], "Usage: xpk workload wait"), (["help"], "Usage: xpk ")],
)
def test_aliases_from_other_tools_work(arguments: list[str], shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    assert shown in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "ours"),
    [
        (["workload", "stop", "lm"], "suspend"),
        (["cluster", "stop", "dev"], "delete"),
        (["workload", "get"], "list"),
        (["workload", "run"], "create"),
    ],
)
def test_names_of_other_tools_lead_to_ours(arguments: list[str], ours: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert f"No such command '{arguments[1]}'. Did you mean '{ours}'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "ours"),
    [
        (["workloadd"], "'workload'"),
        (["goodputt"], "'plan goodput'"),
        (["status"], "'workload status'"),
        (["quarantine"], "'node quarantine'"),
        (["queue", "simulat"], "'simulate'"),
        (["plan", "goodputt"], "'goodput'"),
        (["workload", "logz"], "'logs'"),
    ],
)
def test_misspelled_commands_lead_to_the_closest(
    arguments: list[str], ours: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert f"error: No such command '{arguments[-1]}'. Did you mean {ours}?" in capsys.readouterr().err


def test_a_command_that_resembles_none_has_no_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["xyzzy"]) == 2
    assert capsys.readouterr().err.startswith("error: No such command 'xyzzy'\n")


@pytest.mark.parametrize("flag", ["-q", "--quiet", "-v", "--verbose", "--color=never"])
def test_global_flags_are_accepted_anywhere(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["cluster", "list", flag], ["cluster", flag, "list"], [flag, "cluster", "list"]):
        assert main(words) == 0
    assert main(["image", "build", "--script-dir", ".", flag]) == 2
    assert "--base-docker-image" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "begun", "expected"),
    [
        (["workload", "create", "--priority"], "very", {"very-low", "very-high"}),
        (["cluster", "create", "--tpu-type"], "v5litepod-2", {"v5litepod-256"}),
        (["cluster", "create", "--provider"], "", {"gke", "kind", "local"}),
        (["workload", "create-pathways", "--priority"], "very", {"very-low", "very-high"}),
        (["cluster", "create-ray", "--provider"], "", {"gke", "kind", "local"}),
        (["workload", "status"], "", set()),
        (["workload", "create"], "", set()),
    ],
)
def test_values_are_completed(words: list[str], begun: str, expected: set[str]) -> None:
    result = ShellComplete(xpk, {}, "xpk", "_XPK_COMPLETE").get_completions(words, begun)
    assert {item.value for item in result} >= expected
    if not expected:
        assert not result


def test_pages_of_the_documentation_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs"]) == 0
    assert "Sharing a cluster" in next(
        line for line in capsys.readouterr().out.splitlines() if line.startswith("queues ")
    )
    assert main(["docs", "docs/queues.md"]) == 0
    assert "xpk queue create" in capsys.readouterr().out
    for topic in ("how-to/spot", "spot"):
        assert main(["docs", topic]) == 0
        assert capsys.readouterr().out.startswith("# Use spot capacity")
    assert main(["docs", "queue"]) == 3
    assert "`xpk docs queues`" in capsys.readouterr().err


def test_a_data_set_is_prepared_without_a_checkout(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("one two three\n" * 100)
    assert main(["data", "prepare", str(tmp_path / "text"), "--out", str(tmp_path / "out")]) == 0
    (manifest,) = (tmp_path / "out").glob("tokens-*.json")
    assert str(manifest) in capfd.readouterr().out
    assert main(["data", "prepare", str(tmp_path / "none"), "--out", str(tmp_path / "out")]) == 2
