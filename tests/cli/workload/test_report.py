"""`xpk workload report --compare`."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Xpk
from tests.cli.conftest import dev as dev
from tests.cli.conftest import state as state
from tests.cli.conftest import xpk as xpk
from tests.jobs.report.runs import RunWriter


def finish(dev: Xpk, name: str, steps: int) -> None:
    """Run a workload that ends at once, and write the output of a trainer."""
    dev("workload", "create", name, "--command", "true")
    done = dev("workload", "wait", name, "--timeout", "60", "-o", "json")
    run = RunWriter(Path(done.data["output_dir"]), slices=1, hosts=2)
    run.train(0, steps)
    run.write()


def test_a_page_compares_several_runs(dev: Xpk, tmp_path: Path) -> None:
    finish(dev, "lm", 30)
    finish(dev, "lm-lr2", 20)
    file = tmp_path / "page.html"
    report = ("workload", "report", "lm", "--file", str(file))
    done = dev(*report, "--compare", "lm-lr2", "-o", "json")
    assert done.code == 0 and done.data["workload"] == "lm"
    page = file.read_text()
    assert "Loss over steps (2 runs)" in page and ">lm-lr2<" in page.replace(" ", "").replace("</h2>", "<")
    unknown = dev(*report, "--compare", "lm-lr3")
    assert (
        unknown.code == 3 and "workload 'lm-lr3' not found" in unknown.err and "did you mean 'lm-lr2'?" in unknown.err
    )


def test_wrong_comparisons_are_refused_with_all_problems(dev: Xpk) -> None:
    four = [word for name in "abcd" for word in ("--compare", name)]
    done = dev("workload", "report", "lm", *four, "--compare", "lm", "-o", "json")
    assert done.code == 2 and "--compare requires workloads other than the reported one" in done.err
    assert "--compare may be repeated 3 times, got 5" in done.err and "it requires --file" in done.err
