"""Emulators for the duration of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.gke_emulator.cloud import Cloud
from tools.gke_emulator import GkeEmulator


@pytest.fixture
def emulate() -> Iterator[Callable[..., Cloud]]:
    """Start emulators with options; operations take a thousandth of their time by default."""
    with ExitStack() as stack:

        def start(**knobs: Any) -> Cloud:
            gke = stack.enter_context(GkeEmulator(**{"speed": 2000.0, **knobs}))
            cloud = Cloud(gke)
            stack.callback(cloud.close)
            return cloud

        yield start
