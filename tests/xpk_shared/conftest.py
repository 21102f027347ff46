"""Fixtures of the tests of the code shared by tool, trainer and supervisor."""

import pytest

from tests.xpk_shared.supervised import starter

start = pytest.fixture(starter, name="start")
