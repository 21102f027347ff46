"""`xpk` commands in documentation and messages: all parse; those of pages are planned or executed if possible."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import pytest

from tests.docs.pages import BLOCK, PAGES, arguments_of, commands_of
from tests.docs.parsing import VALUE, parse
from xpk.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
READMES = [f"{folder}/README.md" for folder in ("bench", "e2e/environment", "tools/gke_emulator")]
OTHER_PAGES = [ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", *READMES)]
SOURCES = [*sorted((ROOT / "xpk").rglob("*.py")), *sorted((ROOT / "workloads").rglob("*.py"))]


def commands_in_text(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each `xpk` command between backticks in the text; those of any COMMAND are left out."""
    for command in re.findall(r"`(xpk [a-z][^`]*)`", BLOCK.sub("", text)):
        arguments = arguments_of(re.sub(r"[\[\]]", "", command.replace("\n", " ")))
        arguments += [VALUE] if arguments[-1].startswith("--") else []  # text may name an option without its value
        if not any(word in argument for argument in arguments[:2] for word in ("COMMAND", VALUE)):
            yield arguments


def strings_of(source: str) -> Iterator[str]:
    """Yield the strings of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else VALUE for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def wrong_ones(commands: Iterable[list[str]]) -> list[str]:
    """Return the commands that do not parse, with the reason."""
    wrong = []
    for arguments in commands:
        try:
            parse(arguments)
        except click.UsageError as error:
            wrong.append(f"xpk {shlex.join(arguments)}: {error.format_message()}")
    return wrong


@pytest.mark.parametrize("page", [*PAGES, *OTHER_PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_the_documentation_parse(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not wrong_ones([*commands_of(text), *commands_in_text(text)])


def test_commands_in_messages_parse() -> None:
    strings = [text for file in SOURCES for text in strings_of(file.read_text(encoding="utf-8"))]
    commands = [arguments for text in strings for arguments in commands_in_text(text)]
    assert len(commands) > 150 and not wrong_ones(commands)


def test_commands_are_found_and_invalid_ones_are_detected() -> None:
    text = "```console\n$ xpk workload list \\\n    -A  # all\nNAME\n```\n\n  ```\n  xpk docs queues | head\n  ```\n"
    assert list(commands_of(text)) == [["workload", "list", "-A"], ["docs", "queues"]]
    assert list(commands_in_text(f"{text}Run `xpk info` or `xpk COMMAND`.")) == [["info"]]
    assert next(strings_of('print(f"run `xpk info {name}`")')) == "run `xpk info VALUE`"
    assert len([1 for page in PAGES for _ in commands_of(page.read_text(encoding="utf-8"))]) > 150
    for line in ("workload list --no-such-flag", "workload nope", "cluster list -o nope", "docs a b"):
        with pytest.raises(click.UsageError):
            parse(line.split())


def lines_of_pages() -> list[str]:
    """Return the distinct commands of all pages except the generated reference, whose examples are only parsed."""
    pages = [page for page in PAGES if page.name != "cli.md"]
    every = (arguments for page in pages for arguments in commands_of(page.read_text(encoding="utf-8")))
    return sorted({shlex.join(arguments) for arguments in every})


def begin(lines: list[str], *commands: str) -> list[str]:
    """Return the lines of some commands."""
    return [line for line in lines if line.startswith(tuple(f"{command} " for command in commands))]


LINES = lines_of_pages()
CLUSTERS = begin(LINES, "cluster create")
UNPLANNED = (
    "workload create train --cluster c",  # its option requires slices of queued provisioning
    "workload create lm --clusters east,west",  # copies are only made for clusters that exist
)
TRACED = "usage --cluster prod --since 7d --trace"  # it requires workloads in the ledger
PLANNED = begin(
    [line for line in LINES if not line.startswith(UNPLANNED)],
    *("workload create", "queue create", "cluster resize", "cluster delete"),
)
EXECUTED = begin(
    [f"{line} " for line in LINES if not line.startswith(TRACED)],
    "cluster list",
    "cluster health",
    "config",
    "queue list",
    "usage",
    "workload estimate",
    "plan capacity",
    "plan goodput --config",
) + begin([f"{line} " for line in LINES], "workload list")
# Commands of a running workload are executed by tests/docs/test_tutorial.py and the drills of e2e. The others need a
# cloud, Docker or an existing cluster.
PARSED = (
    *(
        "--version",
        "cluster adapt",
        "cluster cache-image",
        "cluster fence",
        "cluster kubeconfig",
        "cluster preflight",
        "data prepare",
        "doctor",
        "serve",
        "translate",
        "node",
    ),
    *(
        "image build",
        "inspector",
        "plan goodput --from-workload",
        "queue simulate",
        "workload delete",
        "workload describe",
        "workload diff",
        "workload exec",
    ),
    *("workload logs", "workload port-forward", "workload report", "workload resume", "workload status"),
    *("workload suspend", "workload wait", "workload place", TRACED, *UNPLANNED),
)
PLACEHOLDERS = {"P": "my-project", "Z": "us-central1-a"}
CAPACITY = (("dev", "v5litepod-8", 2), ("prod", "v5litepod-16", 4), ("cpus", "n2-standard-4-2", 1))
STAND_INS = {"kind-dev": "dev"}
IMAGINED = "c"  # the cluster of docs/gke.md does not exist; workloads on it are those of a new GKE cluster


def dry(line: str) -> list[str]:
    """Return the arguments of a dry run, with its option before those of the trainer."""
    words = [PLACEHOLDERS.get(word, word) for word in shlex.split(line) if word != "--dry-run"]
    words = [word.replace("gs://BUCKET", "gs://my-bucket") for word in words]
    return [*words[:2], "--dry-run", *words[2:]]


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Create local clusters with the names in the pages, and the files that the pages name, in the current folder."""
    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XPK_STATE_DIR", str(folder / "state"))
        patch.setenv("XPK_CONFIG_DIR", str(folder / "config"))
        patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(folder / "no-key.json"))
        patch.chdir(folder)
        shutil.copytree(ROOT / "examples", folder / "examples")
        (folder / "code").mkdir()
        (folder / "code" / "train.py").touch()
        for name, kind, slices in CAPACITY:
            assert main(["cluster", "create", name, "--tpu-type", kind, "--num-slices", str(slices)]) == 0
        for queue, namespace in (("red", "team-red"), ("blue", "team-blue"), ("interns", "interns")):
            options = ["--cluster", "prod", "--namespace", namespace, "--create-namespace", "--quota", "0"]
            assert main(["queue", "create", queue, *options]) == 0
        yield
        for name, _, _ in CAPACITY:
            assert main(["cluster", "delete", name, "--force", "--provider", "local"]) == 0


@pytest.mark.parametrize("line", CLUSTERS)
def test_clusters_are_planned(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without credentials the plan is that of an empty project; kind and Docker exist, without clusters."""
    for program, version in (("kind", "kind v0.30.0 go1.25 linux/amd64"), ("docker", "28.0")):
        (tmp_path / program).write_text(f"#!/bin/sh\n[ $1 != version ] || echo {version}\n")
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("XPK_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "no-key.json"))
    assert main(dry(line)) == 0


@pytest.mark.parametrize("line", PLANNED)
def test_workloads_queues_and_changes_of_clusters_are_planned(line: str, stand_ins: None) -> None:
    arguments = [STAND_INS.get(word, word) for word in dry(line)]
    if arguments[0] == "workload":
        if "--cluster" not in arguments:
            arguments[3:3] = ["--cluster", "dev"]
        if "gs://" in line or "--mount" in line:  # a local cluster would look for the data
            arguments[arguments.index("--cluster") + 1] = IMAGINED
        if IMAGINED in arguments and "--tpu-type" not in arguments:
            arguments[3:3] = ["--tpu-type", "v5litepod-256"]
    elif arguments[0] == "cluster":
        arguments = ["prod" if word == IMAGINED else word for word in arguments]
    assert main(arguments) == 0, arguments


@pytest.mark.parametrize("line", EXECUTED)
def test_commands_that_need_no_workload_are_executed(
    line: str, stand_ins: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XPK_CONFIG_DIR", str(tmp_path))
    assert main(["config", "set", "cluster", "prod"]) == 0
    assert main(shlex.split(line)) == 0


def test_every_command_is_executed_planned_or_known_to_need_more_than_this_machine() -> None:
    tested = {line.strip() for line in (*CLUSTERS, *PLANNED, *EXECUTED)}
    assert len(tested) > 80
    assert begin([f"{line} " for line in LINES if line not in tested], *PARSED) == [
        f"{line} " for line in LINES if line not in tested
    ]
