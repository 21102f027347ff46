"""An earlier version that really runs: its files in a folder of its own, an environment, and its commands."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = Path(__file__).with_name("fixtures")
FOLDER = Path("/tmp/xpk-release")  # always the same: it is part of recorded files, and tests replace it


class Release:
    """The version of a commit, installed in FOLDER, where its state and its preferences are as well."""

    def __init__(self, commit: str) -> None:
        folder = self.folder = FOLDER
        self.folder.mkdir(mode=0o700)
        self.tree = folder / "xpk"
        self.tree.mkdir()
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
        subprocess.run(["tar", "--extract", "--directory", self.tree], input=archive, check=True)
        venv = folder / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
        self.python = str(venv / "bin" / "python")
        # Other packages come from this environment, whose own `.pth` files, such as that of this version, are not read.
        paths = [self.tree, self.tree / "workloads", sysconfig.get_path("purelib")]
        (site,) = (venv / "lib").glob("python*/site-packages")
        (site / "release.pth").write_text("".join(f"{path}\n" for path in paths))
        places = self.run(
            "-c", "import xpk, trainer, xpk_shared as s; print(xpk.__file__, trainer.__file__, s.__file__)"
        )
        assert all(place.startswith(f"{self.tree}/") for place in places.split()), places

    @property
    def environment(self) -> dict[str, str]:
        """A small environment, since hosts' files record parts of it."""
        return {
            "PATH": os.defpath,
            "HOME": str(self.folder),
            "USER": "user",
            "LOGNAME": "user",
            "LANG": "C.UTF-8",
            "XPK_STATE_DIR": str(self.folder / "state"),
            "XPK_CONFIG_DIR": str(self.folder / "config"),
            "JAX_PLATFORMS": "cpu",
        }

    def xpk(self, *words: str, code: int | None = 0) -> str:
        """Run a command; return its output."""
        return self.run("-m", "xpk", *words, code=code)

    def run(self, *words: str, code: int | None = 0) -> str:
        """Run the release's Python; return its output. `code`: expected exit code, None for any."""
        command = [self.python, *words]
        done = subprocess.run(
            command, env=self.environment, cwd=self.folder, capture_output=True, text=True, check=False
        )
        assert code in (None, done.returncode), f"{words} exited with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def kill(self) -> None:
        """End everything by SIGKILL, as a power failure does: daemons first, so that they record no host's end."""
        for is_daemon in (True, False):
            while pids := list(self._processes(is_daemon)):
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

    def _processes(self, is_daemon: bool) -> list[int]:
        pids = []
        for entry in Path("/proc").iterdir():
            try:
                is_ours = str(self.folder).encode() in (entry / "environ").read_bytes()
                if is_ours and (not is_daemon or b"xpk.local.daemon" in (entry / "cmdline").read_bytes()):
                    pids.append(int(entry.name))
            except (OSError, ValueError):
                continue
        return pids


def pack(archive: Path, folder: Path, *names: str) -> None:
    """Archive files and folders below `folder`, without compiled programs, which fit only the recording machine."""

    def without_owner(item: tarfile.TarInfo) -> tarfile.TarInfo | None:
        item.uid = item.gid = 0
        item.uname = item.gname = ""
        return None if "compile-cache" in item.name else item

    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for name in names:
            tar.add(folder / name, name, filter=without_owner)
