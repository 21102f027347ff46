"""JAX's compilation cache: in a folder of this host's own, where nobody else can put a program into it.

Hosts and attempts of a workload share what they add to it as signed files in the output folder.
"""

import re
import threading
from pathlib import Path

from trainer.errors import reason
from trainer.storage.base import Entry
from trainer.storage.local import Folder
from trainer.storage.signed import SignedFiles
from trainer.telemetry.metrics import say

_NAME = re.compile(r"[\w.-]+-cache")  # as JAX calls its files


class CompileCache:
    """The cache in `folder`, and the files that are shared, if any are."""

    def __init__(self, folder: Path, shared: SignedFiles | None) -> None:
        self.folder, self._shared = folder, shared
        self._seen: set[Entry] = set()  # of the shared files, whether they could be used or not
        self._known = {file.name for file in folder.glob("*-cache")}  # here, and not to be shared again
        self._lock = threading.Lock()

    @property
    def is_shared(self) -> bool:
        """Whether other hosts of the workload can have what this one compiles."""
        return self._shared is not None

    def fetch(self) -> None:
        """Copy what other hosts have shared since the last time; where that cannot be done, it is compiled."""
        if self._shared is None:
            return
        with self._lock:
            refused = self._fetched(self._shared)
        if refused:
            say(f"{refused} compiled programs in {self._shared} are not used: damaged, or not of this workload")

    def share(self) -> None:
        """Let other hosts have what this one has compiled."""
        if self._shared is None:
            return
        try:
            with self._lock:
                for file in [file for file in self.folder.glob("*-cache") if file.name not in self._known]:
                    self._shared.write(file.name, file.read_bytes())
                    self._known.add(file.name)
        except OSError as error:
            say(f"compiled programs are not shared in {self._shared}: {reason(error)}")

    def _fetched(self, shared: SignedFiles) -> int:
        """Copy what is new; return how many could not be used."""
        refused = 0
        try:
            new = [entry for entry in shared.entries() if _NAME.fullmatch(entry.name)]
            for entry in [entry for entry in new if entry not in self._seen]:
                if entry.name not in self._known:
                    refused += not self._copied(shared, entry.name)
                self._seen.add(entry)
        except OSError as error:
            say(f"compiled programs in {shared} cannot be read: {reason(error)}")
        return refused

    def _copied(self, shared: SignedFiles, name: str) -> bool:
        try:
            content = shared.read(name)
        except ValueError:
            return False
        if content is not None:
            Folder(self.folder / name).write(content)
            self._known.add(name)
        return True
