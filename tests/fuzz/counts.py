"""The number of inputs of each test: `make test` tries the same few thousand each time, `make fuzz` 100,000 others.

`make fuzz` keeps inputs that fail in .hypothesis/fuzz and tries them first the next time, until they pass. The corpus
that is committed are the cases marked `@example`.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase

_IS_NIGHTLY = "XPK_FUZZ_EXAMPLES" in os.environ
_KEPT = Path(__file__).parents[2] / ".hypothesis" / "fuzz"
EXAMPLES = int(os.environ.get("XPK_FUZZ_EXAMPLES", "3200"))
PLANNED: dict[str, int] = {}  # test -> inputs that it is to try
TRIED: Counter[str] = Counter()  # test -> inputs that it has tried


def kept_inputs(folder: Path) -> ExampleDatabase:
    """Return the inputs that have failed, which later runs try first."""
    return DirectoryBasedExampleDatabase(folder)


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
            derandomize=not _IS_NIGHTLY,
            database=kept_inputs(_KEPT) if _IS_NIGHTLY else None,
            suppress_health_check=list(HealthCheck),
        )(test)

    return limit
