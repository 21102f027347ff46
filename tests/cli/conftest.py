"""The command line on clusters of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from xpk.capacity.local.provider import LocalProvider
from xpk.cli.main import main
from xpk.local.cluster import delete_cluster


@dataclass(frozen=True, slots=True)
class Outcome:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Return the parsed output of `-o json`."""
        return json.loads(self.out)


Xpk = Callable[..., Outcome]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the test's own state folder; remaining processes in it are ended."""
    folder = tmp_path / "state"
    monkeypatch.setenv("XPK_STATE_DIR", str(folder))
    monkeypatch.setenv("XPK_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    yield folder
    for name in LocalProvider(folder).names():
        delete_cluster(folder / "clusters" / name, force=True)


@pytest.fixture
def xpk(state: Path, capsys: pytest.CaptureFixture[str]) -> Xpk:
    """Return a function that runs `xpk` with arguments."""

    def run(*arguments: str) -> Outcome:
        capsys.readouterr()
        code = main(arguments)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture
def dev(xpk: Xpk) -> Xpk:
    """Return a command line with a cluster `dev` of two slices with two hosts each."""
    assert xpk("cluster", "create", "dev", "--tpu-type", "v5litepod-8", "--num-slices", "2").code == 0
    return xpk
