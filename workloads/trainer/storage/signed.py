"""Signed files, prefixed with an HMAC under the workload's secret, that only hosts of this workload can write.

They hold content that is executed when it is read, such as compiled programs: write access to the output folder must
not be enough to run code.
"""

import hashlib
import hmac

from xpk_shared.storage import Entry, Place

_BYTES = 32


class SignedFiles:
    """Signed files directly in a folder."""

    def __init__(self, place: Place, secret: bytes) -> None:
        self._place, self._key = place, hmac.digest(secret, b"files of compiled programs", "sha256")

    def __str__(self) -> str:
        return str(self._place)

    def entries(self) -> list[Entry]:
        """Return all entries of the folder, including those of other programs."""
        return self._place.files()

    def read(self, name: str) -> bytes | None:
        """Return a file's content; None if there is none. Raises ValueError for one without a valid signature."""
        file = self._place / name
        if not file.is_file():
            return None
        signed = file.read()
        if not hmac.compare_digest(signed[:_BYTES], self._signature(name, signed[_BYTES:])):
            raise ValueError("damaged, or from another workload")
        return signed[_BYTES:]

    def write(self, name: str, content: bytes) -> None:
        """Write a file."""
        (self._place / name).write(self._signature(name, content) + content)

    def _signature(self, name: str, content: bytes) -> bytes:
        return hmac.digest(self._key, name.encode() + b"\0" + hashlib.sha256(content).digest(), "sha256")
