"""Pictures of the terminal and of the report page, from a real run of the demo.

    make demo 2> demo.log
    python -m tools.pictures demo.log demo-output/report.html docs/pictures

Writes demo.svg, the terminal, and the top of the report page: report.png, report-dark.png, and report-narrow.png of a
phone. The pages need Chromium.
"""

from __future__ import annotations

import argparse
import re
import sys
from html import escape
from pathlib import Path

from tools.browser import open_tab

COLUMN, LINE, MARGIN = 7.8, 18, 16  # pixels
WIDTH = 110  # columns; longer lines are truncated
COLORS = {"✓": "#3fb950", "•": "#8b949e", "!": "#d29922", "$": "#58a6ff"}
INK = "#e6edf3"
PALETTE = {
    "31": "#ff7b72",
    "32": "#3fb950",
    "33": "#d29922",
    "34": "#58a6ff",
    "36": "#39c5cf",
    "2": "#8b949e",
}  # by SGR code
REPORTS = {"report": (1200, 900, False), "report-dark": (1200, 900, True), "report-narrow": (360, 1280, True)}  # pixels


def terminal(lines: list[str], title: str) -> str:
    """Return an SVG of lines in a terminal, with their ANSI colors.

    The first non-blank character determines the color of a line without them.
    """
    columns = max(len(re.sub("\x1b.*?m", "", line)) for line in lines)
    width, height = round(2 * MARGIN + COLUMN * columns), 2 * MARGIN + LINE * len(lines)
    texts = [
        f'<text x="{MARGIN}" y="{MARGIN + LINE * row + 13}" fill="{COLORS.get(line.strip()[:1], INK)}" '
        f'xml:space="preserve">{spans(line)}</text>'
        for row, line in enumerate(lines)
        if line.strip()
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" '
            'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="13">',
            f"<title>{escape(title)}</title>",
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


def spans(line: str) -> str:
    """Return a line as SVG, with a span for each colored part."""
    parts = re.split("\x1b\\[([0-9;]*)m", line)
    text = escape(parts[0])
    for code, part in zip(parts[1::2], parts[2::2], strict=True):
        color = PALETTE.get(code)
        text += f'<tspan fill="{color}">{escape(part)}</tspan>' if color and part else escape(part)
    return text


def take_report(page: Path, folder: Path) -> None:
    """Write pictures of the top of a report page. Raises SystemExit without Chromium."""
    with open_tab() as tab:
        for name, (width, height, is_dark) in REPORTS.items():
            tab.show(page.resolve().as_uri(), width=width, height=height, is_dark=is_dark)
            tab.wait("document.querySelector('svg.plot')")
            tab.picture(folder / f"{name}.png")


def main() -> int:
    """Write all pictures; return the exit code."""
    parser = argparse.ArgumentParser(description="Write the pictures of the demo.")
    parser.add_argument("log", type=Path, help="what `make demo` printed")
    parser.add_argument("report", type=Path, help="the demo's report page")
    parser.add_argument("folder", type=Path, help="folder of the pictures")
    arguments = parser.parse_args()
    text = arguments.log.read_text(encoding="utf-8").replace(f"{arguments.report.resolve().parents[1]}/", "")
    lines = ["$ make demo", *last_of_bars(text.rstrip().splitlines())]
    lines = [line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…" for line in lines]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    (arguments.folder / "demo.svg").write_text(terminal(lines, "Terminal output of make demo"), encoding="utf-8")
    take_report(arguments.report, arguments.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
