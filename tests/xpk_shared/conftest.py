"""Fixtures of the tests of what tool, trainer and supervisor share."""

import pytest

from tests.xpk_shared.supervised import starter

start = pytest.fixture(starter, name="start")
