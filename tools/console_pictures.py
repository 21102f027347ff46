"""Pictures of the console in Chromium, which also check the page: python -m tools.console_pictures docs/pictures.

Hosts of a local cluster wait while this program writes the files of a trainer. It checks that a new step appears, that
nothing is refused by the content security policy, that a narrow page does not scroll sideways, and that the keyboard
reaches and reads the charts.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.jobs.report.runs import RunWriter
from tests.waiting import until
from tools.browser import Tab, open_tab
from xpk import Cluster, Workload, create_cluster

CLUSTER, STEPS = "dev", 400
LOG = "for i in $(seq 120 200); do echo step $i of host $TPU_WORKER_ID; done; sleep 600"
RUN, OTHER = f"run={CLUSTER}/default/lm", f"run={CLUSTER}/default/lm-lr2"


def main() -> int:
    """Write the pictures; return the exit code."""
    parser = argparse.ArgumentParser(description="Write the pictures of the console.")
    parser.add_argument("folder", type=Path, help="folder of the pictures")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as state:
        os.environ |= {"XPK_STATE_DIR": state, "XPK_CONFIG_DIR": f"{state}/config"}
        create_cluster(CLUSTER, "v5litepod-8", num_slices=2)
        try:
            run = submit_runs()
            with served() as url, open_tab() as tab:
                take(tab, url, run, folder)
        finally:
            Cluster(CLUSTER).delete(force=True)
    return 0


def submit_runs() -> RunWriter:
    """Create runs in several phases and return the writer of one that trains."""
    cluster = Cluster(CLUSTER)
    cluster.submit(Workload(name="typo", command="echo 'No module named jaxx'; exit 42"))
    until(lambda: cluster.workload("typo").status().phase.is_final, seconds=60)
    for name in ("lm", "lm-lr2"):
        cluster.submit(Workload(name=name, command=LOG, max_restarts=3))
        until(lambda name=name: cluster.workload(name).status().phase == "Running", seconds=60)  # type: ignore[misc]
    cluster.submit(Workload(name="next", command="true", num_slices=2, priority="low"))
    write(RunWriter(folder_of("lm-lr2"), slices=1, hosts=2, now=time.time() - 130), offset=0.25, last=190)
    run = RunWriter(folder_of("lm"), slices=1, hosts=2, now=time.time() - 160)
    run.train(0, 98)
    run.kill((0, 1))
    run.bring_up(60, compile_=1.2)
    run.steps(61, 150)
    run.save(150)
    run.evaluate(150)
    finding = {"host": "s0/h1", "reason": "data", "own": 0.31, "median": 0.02, "conclusive": True}
    run.event("pace", (0, 0), step=100, slow=[finding])
    complete(run)
    return run


def write(run: RunWriter, *, offset: float, last: int) -> None:
    """Write a run without failures whose loss is higher."""
    run.bring_up(0)
    run.steps(1, last, step_seconds=0.6)
    complete(run, offset)


def complete(run: RunWriter, offset: float = 0.0) -> None:
    """Write the files of a run, with the number of steps and the MFU of its lines."""
    lines = [json.loads(line) for line in run.metrics]
    more = {"total_steps": STEPS, "mfu": 0.41}
    run.metrics = [
        json.dumps({**line, **more, "loss": line["loss"] + offset} if "loss" in line else line) for line in lines
    ]
    run.write()


def folder_of(name: str) -> Path:
    """Return the output folder of a run."""
    return Path(Cluster(CLUSTER).workload(name).status().output_dir)


@contextmanager
def served() -> Iterator[str]:
    """Serve the console and yield its address with the token."""
    command = [sys.executable, "-u", "-m", "xpk", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def take(tab: Tab, url: str, run: RunWriter, folder: Path) -> None:
    """Take all pictures and check the page."""
    page = url.partition("?")[0]
    tab.show(url, width=1200, height=800)
    tab.wait("document.querySelectorAll('table.runs tbody tr').length === 4")
    tab.wait("document.querySelector('[data-part=runs]').innerText.match(/%[^]*%/)")  # goodput of both
    tab.picture(folder / "console.png")
    check_live(tab, run)
    check_keyboard(tab)
    show_run(tab, page, RUN, width=1200, height=1080, is_dark=True)
    tab.picture(folder / "console-run.png")
    tab.show(f"{page}?compare#{RUN}&{OTHER}", width=1200, height=1200)
    tab.wait("document.querySelector('[data-part=comparison] .curve.run-1')")
    tab.picture(folder / "console-comparison.png")
    for name, selection in (("list", ""), ("run", RUN), ("comparison", f"{RUN}&{OTHER}")):
        tab.show(f"{page}?{name}#{selection}", width=360, height=800, is_dark=name == "list")
        tab.wait("document.querySelector('[data-part]:not(:empty) section')")
        assert tab.value("document.documentElement.scrollWidth") == 360, f"{name} scrolls sideways"
        if name == "run":
            tab.wait("document.querySelector('[data-part=loss] svg')")
            tab.picture(folder / "console-narrow.png")
    assert not tab.errors, tab.errors


def show_run(tab: Tab, page: str, selection: str, *, width: int, height: int, is_dark: bool) -> None:
    """Open the page of a run and wait for its charts."""
    tab.show(f"{page}?run#{selection}", width=width, height=height, is_dark=is_dark)
    tab.wait("document.querySelector('[data-part=signals] svg')")
    dark = "matchMedia('(prefers-color-scheme: dark)').matches"
    assert tab.value(dark) == is_dark and re.match(
        r"rgb\(1\d, " if is_dark else r"rgb\(24\d, ", tab.value("getComputedStyle(document.body).backgroundColor")
    )


def check_live(tab: Tab, run: RunWriter) -> None:
    """Write a step and wait until the page shows it."""
    run.now = time.time()
    run.steps(151, 151)
    complete(run)
    started = time.monotonic()
    tab.wait("document.querySelector('[data-part=runs]').innerText.includes('151 / ')")
    print(f"a step was shown {time.monotonic() - started:.1f} s after it was written")


def check_keyboard(tab: Tab) -> None:
    """Open a run and read a chart by the keyboard alone."""
    tab.value("document.querySelector('h1 a').focus()")
    for _ in range(12):
        tab.press("Tab")
        if tab.value("document.activeElement.textContent") == "lm":
            break
    assert tab.value("getComputedStyle(document.activeElement).outlineStyle") == "solid", "the focus is not visible"
    tab.press("Enter")
    tab.wait("document.activeElement.matches('h2.title') && document.querySelector('[data-part=loss] svg.plot')")
    tab.press("Tab")
    tab.press("ArrowRight")
    tab.wait("document.getElementById('tip').textContent.startsWith('step 1 ')")
    focused = "document.activeElement.matches('[data-part=loss] svg.plot')"
    tab.wait(focused)
    time.sleep(1.5)  # two readings: an update must not take the focus away
    assert tab.value(focused), "an update has moved the focus"


if __name__ == "__main__":
    sys.exit(main())
