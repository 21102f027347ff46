"""Emulated projects for the tests of the gke provider. No call leaves this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.capacity.gke.site import QUOTAS, Site
from tools.gke_emulator.emulator import GkeEmulator

MakeSite = Callable[..., Site]


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[MakeSite]:
    """Return a factory of projects; its options are the emulator's."""
    with ExitStack() as stack:

        def make(**knobs: Any) -> Site:
            folder = tmp_path / f"site-{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            return Site(folder, stack.enter_context(GkeEmulator(**{"speed": 20_000, "quotas": QUOTAS, **knobs})))

        yield make


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    """Return a project without faults."""
    return make_site()
