"""The number of inputs of each test: `make test` tries the same few thousand each time, `make fuzz` 100,000 others."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("XPK_FUZZ_EXAMPLES", "3200"))
PLANNED: dict[str, int] = {}  # test -> inputs that it is to try
TRIED: Counter[str] = Counter()  # test -> inputs that it has tried


def inputs(share: float) -> Callable[[Any], Any]:
    """Return a decorator, above `given`, of a test that uses a share of all inputs."""
    count = max(10, round(EXAMPLES * share))

    def limit(test: Any) -> Any:
        key, inner = f"{test.__module__}.{test.__name__}", test.hypothesis.inner_test
        PLANNED[key] = count

        @functools.wraps(inner)
        def counted(*arguments: Any, **values: Any) -> None:
            TRIED[key] += 1
            inner(*arguments, **values)

        test.hypothesis.inner_test = counted
        return settings(
            max_examples=count,
            derandomize="XPK_FUZZ_EXAMPLES" not in os.environ,
            database=None,
            suppress_health_check=list(HealthCheck),
        )(test)

    return limit
