"""The documentation is correct: references are generated, and named things exist."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import tokenize
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from tests.docs.command_tree import commands
from tools.json_reference import comments_of, reference, words_of
from trainer.config import sections
from trainer.errors import ExitCode
from xpk.cli import google_xpk
from xpk.cli.main import INTERRUPTED, xpk
from xpk.model import errors

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
CLI_HEAD = """# Command line reference

Generated from the program by `make golden`. `xpk COMMAND --help` shows the same; `make man` writes it as man pages.

stdout is data, stderr everything else. Exit codes: 0 done, 1 failure, 2 wrong usage, 3 not found, 4 exists or
conflicts, 5 no quota or never fits, 6 permission denied, 7 a program or package is missing,
8 the workload failed, 124 timed out, 130 interrupted.
"""
TRAINER_HEAD = """# Settings of the trainer

Generated from `workloads/trainer/config.py` by `make golden`. `--config NAME` starts from one of the configurations
that [models](models.md) lists or the path of a YAML file; `--set section.key=value` changes one setting and may be
repeated.
"""


def cli_reference() -> str:
    """Return the expected content of docs/cli.md."""
    parts = [CLI_HEAD]
    for path, command in [("xpk", xpk), *commands(xpk, "xpk")]:
        names = ["-h", "--help"]
        context = click.Context(
            command, info_name=path, help_option_names=names, max_content_width=100, terminal_width=100
        )
        parts.append(f"## {path}\n```\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)


def trainer_reference() -> str:
    """Return the expected content of docs/trainer-settings.md."""
    parts = [TRAINER_HEAD]
    for name, kind in sections().items():
        meanings = comments_of(inspect.getsource(kind))  # several sections may have a setting of the same name
        parts += [f"## {name}", (kind.__doc__ or "").strip(), "", "| setting | default | meaning |", "|---|---|---|"]
        for field in dataclasses.fields(kind):
            meaning = meanings[field.name].replace("|", "/")
            parts.append(f"| `{name}.{field.name}` | `{field.default}` | {meaning} |")
        parts.append("")
    return "\n".join(parts)


@pytest.mark.parametrize(
    ("file", "page"),
    [("cli.md", cli_reference), ("json.md", reference), ("trainer-settings.md", trainer_reference)],
)
def test_generated_references_are_up_to_date(file: str, page: Callable[[], str]) -> None:
    text = page()
    if os.environ.get("XPK_UPDATE_GOLDEN"):
        (DOCS / file).write_text(text, encoding="utf-8")
    assert text == (DOCS / file).read_text(encoding="utf-8"), "run `make golden`"


def test_every_setting_has_a_description() -> None:
    source = "".join(inspect.getsource(kind) for kind in sections().values())
    comments = [word.string.lstrip("# ") for word in words_of(source) if word.type == tokenize.COMMENT]
    assert len(comments) > 60
    text = trainer_reference()
    assert [comment for comment in comments if comment.replace("|", "/") not in text] == []


def test_every_command_and_option_has_help() -> None:
    for path, command in commands(xpk, "xpk"):
        assert command.help, path
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert parameter.help, f"{path} {parameter.name}"


def test_every_rejected_flag_and_command_of_googles_xpk_is_in_the_table() -> None:
    text = (DOCS / "migrating-from-xpk.md").read_text(encoding="utf-8")
    assert not [flag for flag in {**google_xpk.CLUSTER, **google_xpk.WORKLOAD} if f"`{flag}`" not in text]
    commands = [
        *(f"cluster {name}" for name in google_xpk.CLUSTER_COMMANDS),
        *(f"workload {name}" for name in google_xpk.WORKLOAD_COMMANDS),
    ]
    assert not [name for name in commands if f"`{name}`" not in text]


@pytest.mark.parametrize(
    "file",
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))],
    ids=lambda file: str(file.relative_to(ROOT)),
)
def test_links_in_the_documentation_exist(file: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", file.read_text(encoding="utf-8")):
        page = file.parent / target if target else file
        assert page.exists(), target
        assert not anchor or anchor in anchors(page), f"{target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_every_exit_code_is_in_the_table_with_its_error() -> None:
    text = (DOCS / "exit-codes.md").read_text(encoding="utf-8")
    ours, _, of_hosts = text.partition("## Of a host")
    rows = set(re.findall(r"^\| (\d+) \| (?:`(\w+)`|–) \|", ours, re.MULTILINE))
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.XpkError)]
    assert {(code, name) for code, name in rows if name} == {(str(kind.exit_code), kind.__name__) for kind in kinds}
    assert {code for code, name in rows if not name} == {"0", "125", str(INTERRUPTED)}
    hosts = set(re.findall(r"^\| (\d+) \| `(\w+)` \|", of_hosts, re.MULTILINE))
    assert hosts == {(str(code.value), code.name) for code in ExitCode}


def test_tests_that_the_security_page_names_exist() -> None:
    section = (DOCS / "security.md").read_text(encoding="utf-8").partition("## Tests that attack again")[2]
    file, count = "", 0
    for name, test in re.findall(r"`([\w/.]*)::(\w+)`", section):
        file = name or file
        assert f"def {test}(" in (DOCS.parent / file).read_text(encoding="utf-8"), f"{file}::{test}"
        count += 1
    assert count > 40
