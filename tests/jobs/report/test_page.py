"""The page is well-formed, self-contained, escaped, and limited in size."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.report.pages import FACTS, Checker
from tests.jobs.report.runs import START, RunWriter, one_kill
from xpk.jobs.report.page import ReportFacts, render_report
from xpk.jobs.report.programs import read_folder
from xpk.jobs.report.record import RunRecord
from xpk.jobs.report.restart_lines import RestartFact
from xpk.jobs.report.stragglers import slow_hosts


def page_of(folder: Path, facts: ReportFacts = FACTS) -> str:
    return render_report(read_folder(folder), facts)


def test_the_page_is_well_formed_and_contains_the_figures(tmp_path: Path) -> None:
    page = Checker(page_of(one_kill(tmp_path)))
    for text in ("demo", "2 slices × 2 hosts × 4 chips = 16 chips", "Lost steps", "slice 1 host 1 lost", "Goodput"):
        assert text in page.text
    assert "ended with exit code 137" in page.text
    assert page.tags.count("script") == 1


def test_the_page_fetches_nothing(tmp_path: Path) -> None:
    page = page_of(one_kill(tmp_path))
    assert not re.search(r"https?://|url\((?!#)|@import|<link|<iframe|<img", page)
    names = {name for name, _ in Checker(page).attributes}
    assert not names & {"src", "href", "srcset", "onload", "onclick"}


def test_user_text_in_the_page_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
    facts = ReportFacts(
        workload=evil,
        cluster=evil,
        accelerator=evil,
        slices=2,
        hosts_per_slice=2,
        chips_per_host=4,
        state=evil,
        command=("bash", "-c", evil),
        config={evil: evil},
        restarts=(RestartFact(cause=evil),),
    )
    run = RunWriter(tmp_path)
    run.train(0, 4)
    run.event("fail", (0, 1), reason=evil)
    run.attempt = 1
    run.train(0, 4)
    page = Checker(page_of(run.write(), facts))
    assert page.tags.count("script") == 1 and "img" not in page.tags
    assert page.text.count(evil) >= 5


def test_after_a_sigterm_the_first_leg_is_the_save(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.train(0, 7)
    run.save(7)
    run.all("preempt", step=7)
    run.attempt = 1
    run.train(7, 9)
    text = Checker(page_of(run.write())).text
    assert "Notice and save" in text and "SIGTERM" in text and "Detection" not in text


def test_a_run_without_records_has_a_page() -> None:
    assert "No data yet" in Checker(render_report(RunRecord(), FACTS)).text


def test_a_run_that_died_before_its_first_step_has_a_page(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.all("start")
    run.kill((0, 0))
    run.all("start")
    assert "Hosts over wall time" in Checker(page_of(run.write())).text


@pytest.mark.parametrize("word", ["NaN", "null"])
def test_a_nonfinite_loss_leaves_a_gap_in_the_curve(word: str, tmp_path: Path) -> None:
    lines = [
        f'{{"time": {START + step}, "step": {step}, "loss": {word if step > 5 else 3}, "step_seconds": 1}}'
        for step in range(1, 11)
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    page = Checker(page_of(tmp_path))
    assert "not finite" in page.text
    assert not any("nan" in (value or "").lower() for name, value in page.attributes if name in ("d", "cx", "cy"))


@pytest.mark.parametrize(("slices", "hosts", "rows"), [(1, 1, 1), (2, 2, 4), (16, 4, 64), (32, 4, 32), (128, 1, 64)])
def test_from_one_to_128_hosts(tmp_path: Path, slices: int, hosts: int, rows: int) -> None:
    run = RunWriter(tmp_path, slices=slices, hosts=hosts)
    run.train(0, 10)
    run.done(10)
    page = page_of(run.write())
    Checker(page)
    assert page.count('<g transform="translate(0') == 2 * rows  # once for a desktop, once for a phone


def test_a_long_run_stays_a_small_page(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.bring_up(0)
    run.steps(1, 30_000, step_seconds=0.01, log_every=1000)
    run.done(30_000)
    page = page_of(run.write())
    assert len(page) < 1_000_000
    for path in re.findall(r'<path class="curve [a-z-]+" d="M([^"]*)"', page):
        assert len(path.split()) <= 2000


def test_measured_values_are_drawn(tmp_path: Path) -> None:
    page = Checker(page_of(one_kill(tmp_path)))
    labels = [value or "" for name, value in page.attributes if name == "aria-label"]
    for quantity in ("Learning rate", "Gradient norm", "Tokens per second", "Step time", "Host memory"):
        assert len([label for label in labels if label.startswith(quantity)]) == 2, "for a desktop and for a phone"
    assert not [label for label in labels if label.startswith(("MFU", "Accelerator memory", "Images"))]
    assert any("step 1 · learning rate 5e-05 to step 150 · learning rate 0.001" in label for label in labels)


def test_charts_have_labels_and_keyboard_access(tmp_path: Path) -> None:
    page = page_of(one_kill(tmp_path))
    charts = re.findall(r'<svg class="(?:wide|narrow) (?:plot|timeline)"[^>]*>', page)
    assert charts and all('tabindex="0"' in chart and 'role="img"' in chart for chart in charts)
    assert re.search(r'aria-label="Loss over steps: step 1 · loss \S+ to step 150 · loss \S+; 1 failure marked"', page)
    assert {"ArrowRight", "ArrowLeft", "Home", "End", "pointerdown"} <= set(re.findall(r"\w+", page))


def test_a_narrow_screen_gets_labeled_cells_and_wide_bars_are_labeled(tmp_path: Path) -> None:
    page = page_of(one_kill(tmp_path))
    (restarts,) = re.findall(r'<tr><td data-label="Restart">.*?</tr>', page)
    assert restarts.count("<td") == restarts.count("data-label=") == 7
    labels = re.findall(r'<text class="bar-label"[^>]*>(\w+)</text>', page)
    assert {"steps", "lost"} <= set(labels)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_every_color_has_enough_contrast(scheme: int) -> None:
    style = render_report(RunRecord(), FACTS)
    colors = dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", style.split("prefers-color-scheme: dark")[scheme]))
    drawn = {name: color for name, color in colors.items() if name not in ("page", "card", "faint")}
    assert len(drawn) >= 16
    low = {name: contrast(color, colors["card"]) for name, color in drawn.items()}
    assert not {name: round(ratio, 2) for name, ratio in low.items() if ratio < 3}


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colors, 1 to 21 (WCAG 2.2, relative luminance)."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def luminance(color: str) -> float:
    channels = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in channels]
    return float(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])


def test_slow_hosts_are_named_once_that_is_conclusive(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.train(0, 40)
    slow = {"host": "slice 1 host 1", "reason": "data", "own": 0.26, "median": 0.01, "conclusive": False}
    chip = {"host": "slice 0 host 0", "reason": "chip", "own": 0.0105, "median": 0.0064, "conclusive": False}
    named: list[Any] = [[slow], [chip], [slow | {"own": 0.28}], [slow | {"own": 0.27, "conclusive": True}], "nonsense"]
    for step, result in enumerate(named, 10):
        run.event("pace", (0, 0), step=step, step_seconds=0.5, medians={}, slow=result)
    run.done(40)
    record = read_folder(run.write())
    first, second = slow_hosts(record)
    assert (first.host, first.reason, first.times, first.comparisons) == ("slice 1 host 1", "data", 3, 5)
    assert (round(first.own, 6), first.median, first.conclusive) == (0.27, 0.01, True)
    assert (second.host, second.times, second.conclusive) == ("slice 0 host 0", 1, False)
    text = Checker(render_report(record, FACTS)).text
    assert "Slow hosts" in text and "waits for its data" in text and "0.2700 s" in text and "3 of 5" in text
    assert "measured slower once (chips); not conclusive" in text and "0.0105 s" in text
    assert "has slow chips" not in text and "64 %" not in text
    assert "Median step" in text and "p99 500 ms" in text
