"""JAX's compilation cache in a folder of the host to which no other user can write.

Hosts and attempts of a workload share their additions as signed files in the output folder.
"""

import re
import threading
from pathlib import Path

from trainer.errors import reason
from trainer.storage import open_place
from trainer.storage.signed import SignedFiles
from trainer.telemetry.metrics import say
from xpk_shared.storage import Entry

_NAME = re.compile(r"[\w.-]+-cache")  # JAX's file names


class CompileCache:
    """The cache in `folder`, and optionally the shared files."""

    def __init__(self, folder: Path, shared: SignedFiles | None) -> None:
        self.folder, self._shared = folder, shared
        self._seen: set[Entry] = set()  # shared files already seen, whether usable or not
        self._known = {file.name for file in folder.glob("*-cache")}  # already in the folder, so not shared again
        self._lock = threading.Lock()

    @property
    def is_shared(self) -> bool:
        """True if other hosts of the workload get the programs that this one compiles."""
        return self._shared is not None

    def fetch(self) -> None:
        """Copy the programs that other hosts have shared since the last call; programs with errors are compiled."""
        if self._shared is None:
            return
        with self._lock:
            rejected = self._copy_new(self._shared)
        if rejected:
            say(f"{rejected} compiled programs in {self._shared} are ignored: damaged, or from another workload")

    def share(self) -> None:
        """Share the programs that this host has compiled."""
        if self._shared is None:
            return
        try:
            with self._lock:
                for file in [file for file in self.folder.glob("*-cache") if file.name not in self._known]:
                    self._shared.write(file.name, file.read_bytes())
                    self._known.add(file.name)
        except OSError as error:
            say(f"compiled programs are not shared in {self._shared}: {reason(error)}")

    def _copy_new(self, shared: SignedFiles) -> int:
        """Copy new programs; return the number that could not be used."""
        rejected = 0
        try:
            new = [entry for entry in shared.entries() if _NAME.fullmatch(entry.name)]
            for entry in [entry for entry in new if entry not in self._seen]:
                if entry.name not in self._known:
                    rejected += not self._copy(shared, entry.name)
                self._seen.add(entry)
        except OSError as error:
            say(f"compiled programs in {shared} cannot be read: {reason(error)}")
        return rejected

    def _copy(self, shared: SignedFiles, name: str) -> bool:
        try:
            content = shared.read(name)
        except ValueError:
            return False
        if content is not None:
            open_place(self.folder / name).write(content)
            self._known.add(name)
        return True
