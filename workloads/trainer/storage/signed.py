"""Files that only hosts of this workload can have written: before the content is its HMAC with the workload's secret.

For what is run when it is read, such as compiled programs: who may write to the output folder must not decide that.
"""

import hashlib
import hmac

from trainer.storage.base import Entry, Place

_BYTES = 32


class SignedFiles:
    """Files directly in a folder."""

    def __init__(self, place: Place, secret: bytes) -> None:
        self._place, self._key = place, hmac.digest(secret, b"files of compiled programs", "sha256")

    def __str__(self) -> str:
        return str(self._place)

    def entries(self) -> list[Entry]:
        """Return what is in the folder, whoever has written it."""
        return self._place.files()

    def read(self, name: str) -> bytes | None:
        """Return a file's content; None if there is none. Raises ValueError for one that none of these hosts wrote."""
        file = self._place / name
        if not file.is_file():
            return None
        signed = file.read()
        if not hmac.compare_digest(signed[:_BYTES], self._signature(name, signed[_BYTES:])):
            raise ValueError("it is damaged, or not of this workload")
        return signed[_BYTES:]

    def write(self, name: str, content: bytes) -> None:
        """Write a file."""
        (self._place / name).write(self._signature(name, content) + content)

    def _signature(self, name: str, content: bytes) -> bytes:
        return hmac.digest(self._key, name.encode() + b"\0" + hashlib.sha256(content).digest(), "sha256")
