"""The pictures of the page."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

Draw = Callable[[Mapping[str, Any], Path], None]
# The same picture for the same figures, and text that a browser can select.
mpl.rcParams["svg.hashsalt"] = "xpk"
mpl.rcParams["svg.fonttype"] = "none"
mpl.rcParams["font.size"] = 9
mpl.rcParams["axes.spines.top"] = mpl.rcParams["axes.spines.right"] = False


def draw_commands(content: Mapping[str, Any], file: Path) -> None:
    """Draw the ratio of each command as a bar."""
    rows = [row for row in content["commands"] if "wall_ratio" in row][::-1]
    figure, axes = plt.subplots(figsize=(7, 0.8 + 0.3 * len(rows)))
    bars = axes.barh([row["command"] for row in rows], [row["wall_ratio"] for row in rows], color="#3b7dd8")
    axes.bar_label(bars, fmt="%.1f", padding=3)
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("times as fast as Google's xpk")
    _save(figure, file)


def draw_recovery(content: Mapping[str, Any], file: Path) -> None:
    """Draw the parts of a recovery as stacked bars."""
    cases = list(content["cases"].values())[::-1]
    figure, axes = plt.subplots(figsize=(7, 1.2 + 0.35 * len(cases)))
    left = [0.0] * len(cases)
    for part in recovery_parts(content):
        widths = [median_part(case, part) or 0.0 for case in cases]
        axes.barh([case["what"] for case in cases], widths, left=left, label=part)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_xlabel("seconds to the next finished step")
    axes.legend(fontsize=7, ncols=4, loc="lower center", bbox_to_anchor=(0.4, 1.0), frameon=False)
    _save(figure, file)


def draw_start(content: Mapping[str, Any], file: Path) -> None:
    """Draw the seconds of a start against the number of hosts."""
    figure, axes = plt.subplots(figsize=(7, 3.2))
    for variant, sizes in content["summary"]["running_seconds"].items():
        points = sorted((int(hosts), seconds) for hosts, seconds in sizes.items())
        axes.plot(*zip(*points, strict=True), marker="o", label=variant)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("hosts")
    axes.set_ylabel("seconds until all run")
    axes.legend(frameon=False)
    _save(figure, file)


def draw_convergence(content: Mapping[str, Any], file: Path) -> None:
    """Draw the accuracy of each optimizer against the batch size, a panel for each model."""
    models = list(content["studies"])
    figure, panels = plt.subplots(1, len(models), figsize=(7, 2.8), squeeze=False)
    for model, axes in zip(models, panels[0], strict=True):
        rows = [row for row in content["summary"] if row["model"] == model]
        for name in dict.fromkeys(row["optimizer"] for row in rows):
            own = [row for row in rows if row["optimizer"] == name]
            batches = [row["batch"] for row in own]
            middle = [100 * statistics.median(row["accuracies"]) for row in own]
            below = [mid - 100 * min(row["accuracies"]) for mid, row in zip(middle, own, strict=True)]
            above = [100 * max(row["accuracies"]) - mid for mid, row in zip(middle, own, strict=True)]
            drawn = axes.errorbar(batches, middle, (below, above), marker="o", capsize=3, label=f"{name}, scaled rate")
            tuned = [100 * row["tuned"]["accuracy"] for row in own]
            axes.plot(batches, tuned, linestyle=":", color=drawn[0].get_color(), label=f"{name}, best rate")
        axes.set_xscale("log", base=2)
        axes.set_xticks([row["batch"] for row in rows], [str(row["batch"]) for row in rows])
        axes.set_title(model, fontsize=9)
        axes.set_xlabel("examples in a batch")
        axes.legend(fontsize=7, frameon=False)
    panels[0][0].set_ylabel("held-out accuracy, %")
    _save(figure, file)


def recovery_parts(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the parts of a recovery, in order."""
    first = next(iter(content["cases"].values()))
    yield from first["recoveries"][0]["parts"]


def median_part(case: Mapping[str, Any], part: str) -> float | None:
    """Return the median seconds of a part; None if it was part of the next one."""
    values = [one["parts"].get(part) for one in case["recoveries"]]
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _save(figure: Figure, file: Path) -> None:
    figure.savefig(file, bbox_inches="tight", metadata={"Date": None}, transparent=False)
    plt.close(figure)
