"""Write docs/performance.md and its pictures from the newest results of each benchmark.

python -m bench.performance
"""

from __future__ import annotations

from pathlib import Path

from bench.performance.page import PICTURES, read_measurements, render

DOCS = Path(__file__).resolve().parents[2] / "docs"


def main() -> None:
    """Write the page and the pictures."""
    measurements = read_measurements()
    (DOCS / "performance.md").write_text(render(measurements), encoding="utf-8")
    for one in measurements:
        if one.content is not None and one.section.draw:
            one.section.draw(one.content, DOCS / PICTURES / one.picture)
    print("written to docs/performance.md")


if __name__ == "__main__":
    main()
