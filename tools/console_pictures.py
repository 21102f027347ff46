"""Pictures of the console in Chromium: python -m tools.console_pictures docs/pictures.

The runs are those of e2e/test_console.py, which checks the page.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from e2e.console_scene import OTHER, RUN, Scene, console
from tools.browser import Tab, open_tab


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


if __name__ == "__main__":
    sys.exit(main())
