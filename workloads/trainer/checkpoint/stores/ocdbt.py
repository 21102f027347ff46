"""Index of TensorStore's OCDBT database, which maps bytes of a checkpoint's files to arrays."""

import re
from collections.abc import Iterator
from typing import Any

_SHOWN = 3
_VALUE = re.compile(r"value:(?P<folder>[^:]*):(?P<file>[^:]*):(?P<first>\d+):(?P<length>\d+)")


def inside(url: str, file: str, begin: int, end: int) -> str:
    """Return a description of the arrays with values in a range of bytes of a file of the database at `url`.

    The range is from `begin` to `end`, which is exclusive.
    Empty if there are none, or if the index cannot be read.
    """
    try:
        arrays = sorted(
            {
                array
                for array, other, first, length in _values(url)
                if other == file and first < end and begin < first + length
            }
        )
    except Exception:  # TensorStore raises errors of many types for a damaged index
        return ""
    more = f" and {len(arrays) - _SHOWN} more" if len(arrays) > _SHOWN else ""
    return f"{'array' if len(arrays) == 1 else 'arrays'} {', '.join(arrays[:_SHOWN])}{more}" if arrays else ""


def _values(url: str) -> Iterator[tuple[str, str, int, int]]:
    """Yield array, file, first byte and length of every value that is not in the index itself."""
    import tensorstore

    store = tensorstore.KvStore.open(url).result()
    newest = tensorstore.ocdbt.dump(store).result()["versions"][-1]["root"]["location"]
    locations = [(newest, b"")]
    while locations:
        location, prefix = locations.pop()
        for entry in tensorstore.ocdbt.dump(store, location).result()["entries"]:
            key: Any = prefix + entry.get("key", b"")
            if "location" in entry:
                locations.append((entry["location"], prefix + entry.get("subtree_common_prefix", b"")))
            elif value := _VALUE.match(entry.get("indirect_value", "")):
                array = key.decode(errors="replace").rpartition("/")[0]
                yield array, value["folder"] + value["file"], int(value["first"]), int(value["length"])
