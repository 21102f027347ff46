"""Pictures of the console in Chromium and of `xpk top`: python -m tools.console_pictures docs/pictures.

The runs are those of e2e/test_console.py, which checks the page.
"""

from __future__ import annotations

import argparse
import os
import pty
import subprocess
import sys
import tempfile
from pathlib import Path

from e2e.console_scene import OTHER, RUN, Scene, console
from tools.browser import Tab, open_tab
from tools.pictures import terminal

COLUMNS = 110


def main() -> int:
    """Write the pictures; return the exit code."""
    parser = argparse.ArgumentParser(description="Write the pictures of the console.")
    parser.add_argument("folder", type=Path, help="folder of the pictures")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as state:
        os.environ |= {"XPK_STATE_DIR": state, "XPK_CONFIG_DIR": f"{state}/config"}
        with console() as scene, open_tab() as tab:
            take(tab, scene, folder)
            (folder / "top.svg").write_text(terminal(["$ xpk top", "", *watch_top()], "xpk top"), encoding="utf-8")
    return 0


def take(tab: Tab, scene: Scene, folder: Path) -> None:
    """Take all pictures."""
    tab.show(scene.entrance, width=1200, height=800)
    tab.wait("document.querySelectorAll('table.runs tbody tr').length === 4")
    tab.wait("document.querySelector('[data-part=runs]').innerText.match(/%[^]*%/)")  # goodput of both
    tab.picture(folder / "console.png")
    tab.show(f"{scene.page}?run#{RUN}", width=1200, height=1080, is_dark=True)
    tab.wait("document.querySelector('[data-part=signals] svg')")
    tab.picture(folder / "console-run.png")
    tab.show(f"{scene.page}?compare#{RUN}&{OTHER}", width=1200, height=1200)
    tab.wait("document.querySelector('[data-part=comparison] .curve.run-1')")
    tab.picture(folder / "console-comparison.png")
    tab.show(f"{scene.page}?narrow#{RUN}", width=360, height=800)
    tab.wait("document.querySelector('[data-part=signals] svg')")
    tab.picture(folder / "console-narrow.png")


def watch_top() -> list[str]:
    """Return the lines of `xpk top` in a terminal, once it has the goodput of both runs that train."""
    screen, terminal_end = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "LINES": "40"}
    command = [sys.executable, "-m", "xpk", "top"]
    shown, output = "", ""
    with subprocess.Popen(command, stdin=terminal_end, stdout=terminal_end, env=environment) as process:
        os.close(terminal_end)
        while shown.count("%") < 2:
            output += os.read(screen, 65536).decode()
            shown = output.rpartition("\x1b[J")[0].rpartition("\x1b[?7l")[2]  # the last complete screen
        process.terminate()
    os.close(screen)
    return [line.rstrip("\r").removesuffix("\x1b[K") for line in shown.rstrip().split("\n")]


if __name__ == "__main__":
    sys.exit(main())
