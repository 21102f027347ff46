"""`xpk_run.log` in programs of their own processes: what is recorded, and what cannot stop a program."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpk_run

SOURCE = Path(xpk_run.__file__)


def run(program: str, file: str | Path | None, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a program that may import only xpk_run and the standard library."""
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE.parent), **more}
    if file is not None:
        variables["XPK_PROGRESS_FILE"] = str(file)
    command = [sys.executable, "-S", "-c", program, *arguments]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=60)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_steps_are_lines_with_the_attempt_and_its_start(tmp_path: Path) -> None:
    file = tmp_path / "made" / "progress.jsonl"
    program = "import xpk_run; xpk_run.log(step=1, steps=9, loss=0.5); xpk_run.log(2, loss=float('nan'), lr=1e-3)"
    done = run(program, file, XPK_RESTART_ATTEMPT="3", XPK_ATTEMPT_STARTED="1800000000.25")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    first, second = lines(file)
    assert abs(first.pop("time") - time.time()) < 60 and second.pop("time")
    assert first == {"attempt": 3, "step": 1, "steps": 9, "loss": 0.5, "started": 1800000000.25}
    assert second == {"attempt": 3, "step": 2, "loss": None, "lr": 0.001}


def test_numbers_of_other_libraries_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XPK_PROGRESS_FILE", str(tmp_path / "file"))
    xpk_run.log(step=np.int64(7), loss=np.float32(0.5), array=np.array(2.5), flag=np.bool_(True))
    (line,) = lines(tmp_path / "file")
    assert (line["step"], line["loss"], line["array"], line["flag"]) == (7, 0.5, 2.5, 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("step=1, loss='much'", "loss is not recorded: it is not a number but str"),
        ("step=1, loss=[1, 2]", "loss is not recorded: it is not a number but list"),
        ("step=1, loss=Odd()", "loss is not recorded: it is not a number but Odd"),
        ("step=object()", "step is not recorded: it is not a number but object"),
        ("step=1, loss=10**400", "loss is not recorded: it is not a number but int"),
    ],
)
def test_values_that_are_no_numbers_are_left_out(call: str, message: str, tmp_path: Path) -> None:
    odd = "class Odd:\n  def __float__(self): raise RuntimeError('odd')\n"
    done = run(f"import xpk_run\n{odd}for _ in range(3): xpk_run.log({call})\nprint('on')", tmp_path / "file")
    assert (done.stdout, done.stderr) == ("on\n", f"xpk_run: {message}\n")
    assert len(lines(tmp_path / "file")) == 3


def test_without_a_file_nothing_is_recorded_and_one_line_says_so(tmp_path: Path) -> None:
    program = "import xpk_run\nfor step in range(3): xpk_run.log(step=step)\nprint('on')"
    done = run(program, None)
    assert (done.stdout, done.stderr) == ("on\n", "xpk_run: XPK_PROGRESS_FILE is not set; progress is not recorded\n")
    for more in ({"file": "/dev/null"}, {"file": str(tmp_path / "file"), "RANK": "1"}):
        assert run(program, **more).stderr == "" and not (tmp_path / "file").exists()


@pytest.mark.parametrize("file", ["/dev/full", "/proc/no/such/folder/file", "/"])
def test_a_file_that_cannot_be_written_does_not_stop_the_program(file: str) -> None:
    done = run("import xpk_run\nfor step in range(9): xpk_run.log(step=step)\nprint('on')", file)
    assert (done.returncode, done.stdout) == (0, "on\n")
    assert done.stderr.startswith("xpk_run: progress is not recorded: ") and done.stderr.count("\n") == 1


def test_an_incomplete_line_of_a_killed_process_is_ended(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text('{"step": 1}\n{"ste')
    run("import xpk_run; xpk_run.log(step=2)", file)
    assert [json.loads(line)["step"] for line in file.read_text().splitlines() if line != '{"ste'] == [1, 2]


def test_lines_of_threads_and_forked_processes_do_not_mix(tmp_path: Path) -> None:
    program = """
import os, threading, xpk_run
def work(number):
    for step in range(200):
        xpk_run.log(step=step, worker=number, text_length=10**15)
threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for thread in threads: thread.start()
children = []
for number in range(4, 8):
    pid = os.fork()
    if not pid:
        work(number)
        xpk_run.flush()
        os._exit(0)
    children.append(pid)
for pid in children: assert os.waitpid(pid, 0)[1] == 0
for thread in threads: thread.join()
"""
    done = run(program, tmp_path / "file")
    assert done.returncode == 0, done.stderr
    written = [(line["worker"], line["step"]) for line in lines(tmp_path / "file")]
    assert sorted(written) == [(worker, step) for worker in range(8) for step in range(200)]


def test_a_call_costs_less_than_50_microseconds(tmp_path: Path) -> None:
    program = """
import time, xpk_run
def measure():
    began = time.process_time()
    for step in range(2000):
        xpk_run.log(step=step, steps=2000, loss=0.25, tokens=4096)
    return (time.process_time() - began) / 2000
print(min(measure() for _ in range(5)))
"""
    assert float(run(program, tmp_path / "file").stdout) < 50e-6


def test_a_shell_records_steps_with_the_module(tmp_path: Path) -> None:
    main = "import runpy, sys; runpy.run_module('xpk_run', run_name='__main__', alter_sys=True)"
    assert run(main, tmp_path / "file", "step=5", "steps=10", "loss=0.25").returncode == 0
    (line,) = lines(tmp_path / "file")
    assert (line["step"], line["steps"], line["loss"]) == (5, 10, 0.25)
    wrong = run(main, tmp_path / "file", "step")
    assert wrong.returncode == 2 and wrong.stderr.startswith("usage: python3 -m xpk_run step=NUMBER")


def test_the_module_is_python_3_8_with_the_standard_library() -> None:
    tree = ast.parse(SOURCE.read_text(), feature_version=(3, 8))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {getattr(node, "module", None) or node.names[0].name for node in imports}
    assert modules <= set(sys.stdlib_module_names) and "__future__" in modules
