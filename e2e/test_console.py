"""The console and the report page in Chromium: keyboard, small screens, dark colors, updates, and screen readers."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.console_scene import OTHER, RUN, Scene, console, make_step, served
from tests.jobs.report.pages import FACTS
from tests.jobs.report.runs import RunWriter
from tools.browser import Tab, find_chromium, open_tab
from xpk.jobs.report.page import render_report
from xpk.jobs.report.record import read_record
from xpk.storage import open_folder

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="Chromium is not installed (Debian: `chromium`)")

READY = {  # of each view: its part after `#`, and a condition for having all its parts
    "overview": ("", "document.querySelectorAll('table.runs tbody tr').length === 4"),
    "run": (RUN, "document.querySelector('[data-part=signals] svg')"),
    "comparison": (f"{RUN}&{OTHER}", "document.querySelector('[data-part=comparison] .curve.run-1')"),
}
NAMED = ("link", "button", "checkbox", "image", "table", "region", "heading", "graphics-symbol", "DisclosureTriangle")
# Text with less contrast than WCAG 2.2 demands (4.5, large text 3). Labels with an outline contrast with that.
FAINT = """(() => {
  const channels = color => (color.match(/[\\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
  const light = color => channels(color).slice(0, 3).map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, index) => sum + c * [0.2126, 0.7152, 0.0722][index], 0);
  const ground = element => {
    const color = getComputedStyle(element).backgroundColor, alpha = channels(color)[3] ?? 1;
    return alpha > 0.5 || !element.parentElement ? color : ground(element.parentElement);
  };
  const faint = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, style = getComputedStyle(element);
    const isShown = element.checkVisibility() && !element.closest("title, script, .hidden, .skip, .bar-label, .end");
    if (!walker.currentNode.data.trim() || !isShown) continue;
    const color = element.closest("svg") ? style.fill : style.color, size = parseFloat(style.fontSize);
    const [low, high] = [light(color), light(ground(element))].sort((a, b) => a - b);
    const least = size >= 24 || (size >= 18.6 && style.fontWeight >= 700) ? 3 : 4.5;
    if ((high + 0.05) / (low + 0.05) < least) faint.push(`${walker.currentNode.data.trim()}: ${color}`);
  }
  return faint;
})()"""
# Elements that can be moved sideways, and text that ends beyond the right edge.
WIDE = """[...document.querySelectorAll("*")].filter(element =>
  (element.scrollWidth > element.clientWidth + 1 && getComputedStyle(element).overflowX === "auto")
  || (element.closest("section, header") && element.getBoundingClientRect().right > innerWidth + 1)
).map(element => element.outerHTML.slice(0, 80))"""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Yield a console with runs in four phases."""
    with pytest.MonkeyPatch.context() as patch:
        state = tmp_path_factory.mktemp("state")
        patch.setenv("XPK_STATE_DIR", str(state))
        patch.setenv("XPK_CONFIG_DIR", str(state / "config"))
        with console() as scene:
            yield scene


@pytest.fixture(scope="module")
def browser(scene: Scene) -> Iterator[Tab]:
    """Yield a page of a browser that the console has admitted."""
    with open_tab() as tab:
        tab.show(scene.entrance, width=1200, height=800)
        tab.wait(READY["overview"][1])
        yield tab


@pytest.fixture
def tab(browser: Tab) -> Iterator[Tab]:
    """Yield the page; the test fails if a script or the content security policy has refused something."""
    browser.errors.clear()
    yield browser
    assert not browser.errors


@pytest.fixture
def report(tmp_path: Path) -> str:
    """Return the address of the report page of a run with a failure and an evaluation."""
    run = RunWriter(tmp_path)
    run.train(0, 40)
    run.kill((0, 1))
    run.train(20, 60)
    run.evaluate(60)
    run.write()
    file = tmp_path / "report.html"
    file.write_text(render_report(read_record(open_folder(str(tmp_path))), FACTS), encoding="utf-8")
    return file.as_uri()


Open = Callable[..., None]


@pytest.fixture
def show(scene: Scene, tab: Tab) -> Open:
    """Return a function that opens a view of the console and waits for all its parts."""

    def show(view: str, *, width: int = 1200, is_dark: bool = False) -> None:
        selection, ready = READY[view]
        tab.show(f"{scene.page}?{view}-{width}-{is_dark}#{selection}", width=width, height=800, is_dark=is_dark)
        tab.wait(ready)

    return show


def test_a_new_step_appears_without_reloading(scene: Scene, tab: Tab, show: Open) -> None:
    show("overview")
    make_step(scene.run, 151)
    started = time.monotonic()
    tab.wait("document.querySelector('[data-part=runs]').innerText.includes('151 / ')")
    assert time.monotonic() - started < 5  # half a second on an idle machine; python -m bench.fleet measures it


def test_the_keyboard_opens_a_run_and_reads_its_charts(scene: Scene, tab: Tab, show: Open) -> None:
    show("overview")
    reach(tab, "document.activeElement.textContent === 'lm'")
    assert tab.value("getComputedStyle(document.activeElement).outlineStyle") == "solid", "the focus is not visible"
    tab.press("Enter")
    tab.wait(f"document.activeElement.matches('h2.title') && {READY['run'][1]}")
    in_chart = "document.activeElement.matches('[data-part=loss] svg.plot')"
    reach(tab, in_chart)
    tab.press("ArrowRight")
    tab.wait("document.getElementById('tip').textContent.startsWith('step 1 ')")
    make_step(scene.run, 152)
    tab.wait("document.activeElement.ariaLabel.includes('to step 152 ')")
    assert tab.value(in_chart), "an update has moved the focus"
    reach(tab, "document.activeElement.matches('svg.timeline')")
    tab.press("ArrowRight")
    tab.wait("document.getElementById('tip').textContent.startsWith('no step finished for ')")


def test_the_keyboard_compares_runs_and_goes_back(tab: Tab, show: Open) -> None:
    show("overview")
    for name in ("lm", "lm-lr2"):
        reach(tab, f"document.activeElement.ariaLabel === 'Compare {name}'")
        tab.press(" ")
    tab.wait("document.querySelectorAll('input.choice:checked').length === 2")
    tab.value("document.body.focus(); document.activeElement.blur()")
    reach(tab, "document.activeElement.textContent === 'Compare 2 runs'")
    tab.press("Enter")
    tab.wait(READY["comparison"][1])
    reach(tab, "document.activeElement.id === 'back'", backwards=True)
    tab.press("Enter")
    tab.wait(READY["overview"][1])


@pytest.mark.parametrize("view", READY)
def test_nothing_is_wider_than_a_small_phone(tab: Tab, show: Open, view: str) -> None:
    show(view, width=360)
    assert tab.value("document.documentElement.scrollWidth") == 360
    assert tab.value(WIDE) == []


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("view", READY)
def test_text_has_enough_contrast(tab: Tab, show: Open, view: str, is_dark: bool) -> None:
    show(view, is_dark=is_dark)
    assert_scheme(tab, is_dark)
    assert tab.value(FAINT) == []


@pytest.mark.parametrize("width", [1200, 360])
def test_a_screen_reader_gets_a_name_for_everything(tab: Tab, show: Open, width: int) -> None:
    least = {
        "overview": {"table": 2, "checkbox": 4, "link": 7, "region": 3},
        "run": {"image": 8, "table": 3, "region": 7, "graphics-symbol": 20},
        "comparison": {"image": 2, "link": 5, "region": 4},
    }
    for view, numbers in least.items():
        show(view, width=width)
        assert_named(tab, numbers)
        assert tab.value("document.title") != "" and tab.value("document.documentElement.lang") == "en"


def test_the_report_page_has_names_contrast_and_fits_a_phone(tab: Tab, report: str) -> None:
    for width, is_dark in ((1200, False), (360, True)):
        tab.show(report, width=width, height=800, is_dark=is_dark)
        tab.wait("document.querySelector('svg.plot')")
        assert_scheme(tab, is_dark)
        assert tab.value(FAINT) == []
        assert_named(tab, {"image": 6, "table": 3})
        assert tab.value("document.documentElement.scrollWidth") == width
    assert tab.value(WIDE) == []


def test_a_page_without_its_server_says_so(scene: Scene) -> None:
    with open_tab() as tab:
        with served() as url:
            tab.show(url, width=800, height=600)
            tab.wait("document.getElementById('connection').textContent === 'Live'")
        tab.wait("document.getElementById('connection').textContent.startsWith('Connection lost')")
        assert tab.value("document.querySelector('main').matches('.stale')")
        assert Counter(one.role for one in tab.accessibles())["table"] == 2, "the last state is gone"


def reach(tab: Tab, condition: str, *, backwards: bool = False) -> None:
    """Press Tab until a condition is true, which must not take more than one round."""
    for _ in range(60):
        tab.press("Tab", is_shifted=backwards)
        if tab.value(condition):
            return
    raise AssertionError(f"Tab does not lead to {condition}")


def assert_scheme(tab: Tab, is_dark: bool) -> None:
    color = tab.value("getComputedStyle(document.body).backgroundColor")
    assert re.match(r"rgb\(1\d, " if is_dark else r"rgb\(24\d, ", color), color


def assert_named(tab: Tab, least: dict[str, int]) -> None:
    """Check that whatever has a role of `NAMED`, or can be focused, has a name, and that roles are frequent enough."""
    seen = tab.accessibles()
    must = [one for one in seen if one.role in NAMED or (one.is_focusable and one.role != "main")]
    assert [one for one in must if not one.name] == []
    numbers = Counter(one.role for one in seen)
    assert {role: numbers[role] for role in least if numbers[role] < least[role]} == {}
