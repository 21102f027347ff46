"""File operations that Orbax needs in a bucket, for etils and fsspec.

Arrays do not pass through here: TensorStore has its own client. gcsfs would do the same but depends on gRPC, and it
caches listings, which other hosts change.
"""

import io
from typing import Any

import fsspec  # type: ignore[import-untyped]

from xpk_shared.storage.address import split_address
from xpk_shared.storage.bucket import Bucket


def register() -> None:
    """Make Orbax and its dependencies access buckets with these files."""
    for scheme in ("gs", "gcs"):  # both are used
        fsspec.register_implementation(scheme, Files, clobber=True)


class Files(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Objects as small files that are read and written whole."""

    protocol = ("gs", "gcs")
    cachable = False

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return size and type of an object, or a directory if there are objects below."""
        place = self._place(path)
        name = self._strip_protocol(path)
        if place.is_file():
            entry = place.entry()
            return {"name": name, "size": entry.size, "type": "file", "mtime": entry.changed / 1e6}
        if place.is_folder():
            return {"name": name, "size": 0, "type": "directory"}
        raise FileNotFoundError(2, "no such object", str(place))

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """Return the entries directly below."""
        place, name = self._place(path), self._strip_protocol(path)
        entries = [{"name": f"{name}/{entry.name}", "size": entry.size, "type": "file"} for entry in place.files()]
        entries += [{"name": f"{name}/{folder}", "size": 0, "type": "directory"} for folder in place.folders()]
        if not entries:
            raise FileNotFoundError(2, "no such object or folder", str(place))
        return entries if detail else [entry["name"] for entry in entries]

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Do nothing: a folder exists as soon as an object is in it."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Do nothing, as `mkdir`."""

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove an object, or all below."""
        place = self._place(path)
        place.remove_each(place.sums()) if recursive else place.remove()

    def _open(self, path: str, mode: str = "rb", **_: Any) -> io.BytesIO:
        place = self._place(path)
        return _Upload(place) if "w" in mode else io.BytesIO(place.read())

    def _place(self, path: str) -> Bucket:
        return Bucket(None, *split_address(self._strip_protocol(path)))


class _Upload(io.BytesIO):
    """A buffer that becomes an object when it is closed."""

    def __init__(self, place: Bucket) -> None:
        super().__init__()
        self._place = place

    def close(self) -> None:
        if not self.closed:
            content = self.getvalue()
            super().close()
            self._place.write(content)
