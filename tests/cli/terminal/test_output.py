"""Terminals and pipes get no foreign control sequences, short errors, and one exit code if the output is closed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import xpk
from tests.api.scripted_server import Answer, Script, kubeconfig, serving
from tests.cli.conftest import Xpk
from tests.jobs.objects import jobset
from xpk.cli.terminal.output import Console, echo
from xpk.cli.workload import views
from xpk.jobs.host_logs import HostLine
from xpk.jobs.status.fields import when

EVIL = "\x1b]52;c;cm0gLXJm\x07 \x1b[2J \u202e \x9b1A"
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"


def listed(*items: object) -> Answer:
    return 200, {"metadata": {"resourceVersion": "1"}, "items": list(items)}


def is_clean(text: str) -> bool:
    return not {"\x1b", "\x07", "\x9b", "\u202e"} & set(text)


@pytest.mark.parametrize("command", ["status w", "describe w", "list", "list -o wide", "delete w", "wait w"])
@pytest.mark.parametrize("form", [(), ("-o", "json"), ("-o", "yaml")])
def test_control_sequences_in_objects_are_removed(xpk: Xpk, state: Path, command: str, form: tuple[str, ...]) -> None:
    if form and command in ("delete w", "list -o wide"):
        return
    folder = state / "kind" / "far"
    folder.mkdir(parents=True)
    failed = {"type": "Failed", "status": "True", "reason": EVIL, "message": EVIL, "lastTransitionTime": EVIL}
    result = jobset(annotations={"xpk.dev/user": EVIL, "xpk.dev/accelerator-type": EVIL}, conditions=[failed])
    result["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]["command"] = [EVIL]
    script: dict[str, list[Answer | None]] = {
        f"GET {JOBSETS}": [listed(result)],
        f"GET {JOBSETS}/w": [(200, result)],
        "*": [listed()],
    }
    with serving(Script({**script, f"DELETE {JOBSETS}/w": [(422, {"message": EVIL})]})) as server:
        kubeconfig(folder, server)
        outcome = xpk("workload", *command.split(), "--cluster", "far", *form)
    assert is_clean(outcome.out) and is_clean(outcome.err)
    assert "internal error" not in outcome.err
    if form == ("-o", "json") and command != "wait w":
        (first,) = outcome.data if command == "list" else [outcome.data]
        assert first["user"] == EVIL, "the data are equal in another form"


def test_a_log_line_is_shown_and_raw_on_demand() -> None:
    line = HostLine(when("2026-01-31T12:00:00Z"), 0, 1, f"a\t{EVIL}\x1b[31mb\udcff")
    shown = views.log_line(line, prefix=False, timestamps=False).decode()
    assert is_clean(shown) and shown.startswith("a\t\\x1b]52;c;") and shown.endswith("b\\udcff")
    raw = views.log_line(line, prefix=False, timestamps=False, raw=True)
    assert raw == f"a\t{EVIL}\x1b[31mb".encode() + b"\xff"


def test_logs_of_a_host(dev: Xpk) -> None:
    text = r"printf '\033]0;title\007\033[2Jhello\n'"
    assert dev("workload", "create", "run", "--command", text, "--wait", "--timeout", "30").code == 0
    assert r"\x1b]0;title\x07hello" in dev("workload", "logs", "run").out
    assert "\x1b]0;title\x07\x1b[2Jhello" in dev("workload", "logs", "run", "--raw").out


def test_our_own_colors_stay(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda *_, **__: False)
    Console().done(f"{EVIL} done")
    echo("\x1b[8mhidden\x1b[0m")
    report = capsys.readouterr()
    assert "\x1b[32m✓\x1b[0m" in report.err and "\x1b[2J" not in report.err
    assert report.out == "hidden\x1b[0m\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("workload", "create", "A" * 1_000_000, "--command", "true"),
        ("workload", "list", "--" + "A" * 1_000_000),
        ("workload", "logs", "w", "--since", "a " * 500_000),
        ("\x1b[2J" * 1000,),
    ],
)
def test_a_long_argument_is_shortened_in_errors(dev: Xpk, arguments: tuple[str, ...]) -> None:
    result = dev(*arguments)
    assert result.code in (2, 3) and len(result.err) < 10_000 and is_clean(result.err)
    assert result.err.startswith("error: ") and "  hint: " in result.err


@pytest.mark.parametrize(
    "arguments", [("--help",), ("accelerator", "list", "-o", "json"), ("workload", "create", "-h")]
)
@pytest.mark.parametrize("both", [False, True])
def test_a_closed_pipe_is_not_an_error(arguments: tuple[str, ...], both: bool, state: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as pipe:
        ended = subprocess.run(
            [sys.executable, "-m", "xpk", *arguments], stdout=pipe, stderr=pipe if both else subprocess.PIPE, timeout=60
        )
    assert (ended.returncode, ended.stderr or b"") == (0, b"")


def test_an_error_with_a_closed_stderr_keeps_its_exit_code(state: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as pipe:
        ended = subprocess.run([sys.executable, "-m", "xpk", "no-such-command"], stderr=pipe, timeout=60)
    assert ended.returncode in (1, 2)


def test_an_interrupt_during_imports_is_handled(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-m", "xpk"], env=environment, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "interrupted\n")
    program = "import sys; before = set(sys.modules); import xpk.__main__; print(*set(sys.modules) - before)"
    loaded = subprocess.run(
        [sys.executable, "-S", "-c", program],
        cwd=Path(xpk.__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert set(loaded.stdout.split()) == {"__future__", "xpk", "xpk.__main__", "xpk.version"}, (
        "an interrupt causes a traceback there"
    )


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("command", ["cluster list", "accelerator list -o json"])
def test_a_closed_stream_is_not_an_error(state: Path, closed: str, command: str) -> None:
    script = f"{sys.executable} -m xpk {command} {closed}"
    ended = subprocess.run(["/bin/bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0 and "error" not in ended.stderr
