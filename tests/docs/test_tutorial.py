"""The local tutorial, command by command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from xpk.capacity.local.provider import LocalProvider
from xpk.local.cluster import delete_cluster

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
SECONDS = 600.0  # alone: 60; other tests may run at the same time
_ELSEWHERE = ("make ", "export ")  # the environment of the tests replaces them


def commands() -> Iterator[tuple[str, int]]:
    """Yield each command of the page with its exit code: the value that `echo $?` prints after it, else 0."""
    blocks = re.findall(r"^```console\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).splitlines()
    for number, line in enumerate(lines):
        command = line.removeprefix("$ ")
        if command == line or command.startswith((*_ELSEWHERE, "echo $?")):
            continue
        after = lines[number + 1 :]
        asked = next((at for at, item in enumerate(after) if item.startswith("$ ")), None)
        code = int(after[asked + 1]) if asked is not None and after[asked] == "$ echo $?" else 0
        yield command, code


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    provider = LocalProvider(tmp_path / "state")
    for name in provider.names():
        delete_cluster(tmp_path / "state" / "clusters" / name, force=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_command_of_the_tutorial_exits_as_documented(folder: Path) -> None:
    ours = {"XPK_STATE_DIR": str(folder / "state"), "XPK_CONFIG_DIR": str(folder / "config")}
    environ = {key: value for key, value in os.environ.items() if not key.startswith("XPK_")} | ours
    environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environ["PATH"]])
    result = list(commands())
    assert len(result) > 20 and 8 in [code for _, code in result]
    for command, code in result:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environ,
            timeout=SECONDS,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, f"{command}: {done.stderr}"
    assert (folder / "lm.html").stat().st_size > 10_000
