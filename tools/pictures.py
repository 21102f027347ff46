"""Pictures of the README, from a real run of the demo.

    make demo 2> demo.log
    python -m tools.pictures demo.log demo-output/report.html docs/pictures

Writes demo.svg, the terminal, and report.png, the top of the report page. The second needs Chromium on PATH.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

COLUMN, LINE, MARGIN = 7.8, 18, 16  # pixels
WIDTH = 110  # columns; longer lines are truncated
COLORS = {"✓": "#3fb950", "•": "#8b949e", "!": "#d29922", "$": "#58a6ff"}
REPORT_SIZE = (1200, 900)  # pixels


def terminal(lines: list[str]) -> str:
    """Return an SVG of lines in a terminal; the first non-blank character determines a line's color."""
    width = round(2 * MARGIN + COLUMN * max(len(line) for line in lines))
    height = 2 * MARGIN + LINE * len(lines)
    texts = [
        f'<text x="{MARGIN}" y="{MARGIN + LINE * row + 13}" fill="{COLORS.get(line.strip()[:1], "#e6edf3")}" '
        f'xml:space="preserve">{escape(line)}</text>'
        for row, line in enumerate(lines)
        if line.strip()
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" '
            'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="13">',
            "<title>Terminal output of make demo</title>",
            f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>',
            *texts,
            "</svg>\n",
        ]
    )


def last_of_bars(lines: list[str]) -> list[str]:
    """Return the lines without progress bars that are followed by another one: a terminal shows only the last."""
    following = [*lines[1:], ""]
    return [line for line, after in zip(lines, following, strict=True) if not (is_bar(line) and is_bar(after))]


def is_bar(line: str) -> bool:
    """Return whether a line is a progress bar."""
    return line.lstrip().startswith(("━", "╌"))


def screenshot(page: Path, picture: Path) -> None:
    """Write a picture of the top of a page. Raises SystemExit without Chromium."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("error: Chromium is not installed\n  hint: install the package `chromium`")
    with tempfile.TemporaryDirectory() as profile:
        size = f"--window-size={REPORT_SIZE[0]},{REPORT_SIZE[1]}"
        flags = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={profile}", size]
        subprocess.run([browser, *flags, f"--screenshot={picture}", page.resolve().as_uri()], check=True)


def main() -> int:
    """Write both pictures; return the exit code."""
    parser = argparse.ArgumentParser(description="Write the pictures of the README.")
    parser.add_argument("log", type=Path, help="what `make demo` printed")
    parser.add_argument("report", type=Path, help="the demo's report page")
    parser.add_argument("folder", type=Path, help="folder of the pictures")
    arguments = parser.parse_args()
    text = arguments.log.read_text(encoding="utf-8").replace(f"{arguments.report.resolve().parents[1]}/", "")
    lines = ["$ make demo", *last_of_bars(text.rstrip().splitlines())]
    lines = [line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…" for line in lines]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    (arguments.folder / "demo.svg").write_text(terminal(lines), encoding="utf-8")
    screenshot(arguments.report, (arguments.folder / "report.png").resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
