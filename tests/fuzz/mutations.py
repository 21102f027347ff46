"""Changes to valid JSON: values of other types, missing and additional fields, other bytes."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

REMOVED = object()  # the field is missing
DEEP: Any = json.loads("[" * 200 + "]" * 200)
# JSON of Python, whose readers accept infinity and NaN too.
ODD = [REMOVED, None, True, False, 0, -1, 1, 1.5, 2**31, 2**63, -(2**63), 10**400, 1e308, float("inf"), float("nan"),
       "", "x", "0", "a b", "a\nb", "\0", "\x1b[31mred\x1b]0;title\x07", "\u202eevil", "\ud800", "a" * 300, "../../x",
       "/x", "9" * 5000, "{{7*7}}", "%s", "[red]", "nan", "1e400", "-5", "16Ei", "2026-01-31T12:00:00",
       "0001-01-01T00:00:00Z", "9999-12-31T23:59:59+23:59", [], {}, [None], [[]], [{}], ["x", 1], {"a": None}, {"": ""},
       DEEP]  # fmt: skip
Path = tuple[Any, ...]


def paths(tree: Any, start: Path = ()) -> Iterator[Path]:
    """Yield the path of every value in a tree."""
    fields = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in fields:
        yield (*start, key)
        yield from paths(value, (*start, key))


def changed(tree: Any, changes: list[tuple[Path, Any]]) -> Any:
    """Return a copy of a tree with other values at these paths; those that no longer exist are left out."""
    made = copy.deepcopy(tree)
    for (*parents, key), value in changes:
        place = made
        try:
            for parent in parents:
                place = place[parent]
            if value is REMOVED:
                del place[key]
            elif isinstance(key, str) is isinstance(place, dict):
                place[key] = copy.deepcopy(value)
        except (LookupError, TypeError):
            continue
    return made


def mutants(tree: Any) -> st.SearchStrategy[Any]:
    """Return a strategy of copies of a tree with up to four changes."""
    places = list(paths(tree))
    values = st.sampled_from(ODD) | st.integers() | st.sampled_from(places).map(lambda path: _at(tree, path))
    return st.lists(st.tuples(st.sampled_from(places), values), min_size=1, max_size=4).map(
        lambda changes: changed(tree, changes)
    )


def damaged(texts: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Return a strategy of texts, some with a part replaced by other bytes."""

    def damage(text: bytes, at: int, length: int, other: bytes) -> bytes:
        at %= len(text) + 1
        return text[:at] + other + text[at + length :]

    return texts | st.builds(damage, texts, st.integers(0, 9999), st.integers(0, 9), st.binary(max_size=9))


def as_json(tree: Any) -> bytes:
    return json.dumps(tree).encode()


def _at(tree: Any, path: Path) -> Any:
    for key in path:
        tree = tree[key]
    return tree
