"""The page of the long runs, and how their results are read."""

from __future__ import annotations

import pytest

from e2e.long_runs.__main__ import main, perform
from e2e.long_runs.page import PAGE, read_results, render
from e2e.long_runs.runs import RUNS, LongRun

LINES = {
    "drills": ("======= 1 failed, 107 passed, 1 skipped in 768.54s (0:12:48) =======", "1 failed, 107 passed"),
    "chaos": ("7/110 kill-host plain: failed: not within 240 s (250 s)", "kill-host plain: failed: not within 240 s"),
    "chaos-kind": ("7/90 kill-host ray: failed: no host (25 s)", "kill-host ray: failed: no host"),
    "simulated-checkpoints": ("2,000 lives, 91,000 changes of files in 281 s: no problem", "2,000 lives, 91,000"),
    "simulated-slices": ("2,000 lives, 299,568 steps of slices in 96 s: no problem", "2,000 lives, 299,568 steps"),
    "mutation": ("  28 of 30 noticed, 1 equivalent: 97 %", "28 of 30 noticed, 1 equivalent: 97 %"),
    "soak": ("500 of 500 faults survived (100.0%)", "500 of 500 faults survived (100.0%)"),
    "soak-elastic": ("stall: p50 0.19 s, p99 4.40 s, max 24.60 s", "stall: p50 0.19 s"),
    "soak-kind": ("50 of 50 faults survived, 41 in place; 0 losses differ", "50 of 50 faults survived, 41 in place"),
    "queue-traces": ("2,990 of 3,000 admissions and preemptions are equal (99.67 %); 498 of", "2,990 of 3,000 adm"),
    "fuzz": ("==================== 21 passed in 1500.10s ====================", "21 passed in 1500.10s"),
    "simulation": ("30 worlds, 30,000 hours, 91,000 passes in 281 s: no problem", "30 worlds, 30,000 hours"),
    "simulated-bugs": ("lost-eviction    3.1 s  found by 1/4: it ran twice", "lost-eviction    3.1 s  found by 1/4"),
}  # fmt: skip


def test_the_page_is_written_from_the_last_results() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(read_results()), "run `python -m e2e.long_runs NAME`"


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_results_are_recognized(run: LongRun) -> None:
    line, result = LINES[run.name]
    (found,) = run.results_in(["something else\n", f"{line}\n"])
    assert found.startswith(result)


def test_a_failed_run_is_recorded_with_its_results() -> None:
    run = LongRun("x", "A run", ("sh", "-c", "echo one; echo '== 1 failed in 2s =='; exit 3"), RUNS[0].result, 1)
    result = perform(run)
    assert (result["exit_code"], result["lines"]) == (3, ["1 failed in 2s"])
    page = render({RUNS[0].name: result})
    assert "Failed with exit code 3" in page and "1 failed in 2s" in page
    assert page.count("Not run yet.") == sum(not other.parts for other in RUNS[1:])
    assert "Not run as a whole yet. [chaos.md](chaos.md#on-kind) has the last result of each part." in page


def test_an_unknown_run_is_rejected(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["long_runs", "sleep"])
    with pytest.raises(SystemExit) as raised:
        main()
    assert raised.value.code == 2
    assert "unknown run 'sleep': choose from drills, " in capsys.readouterr().err
