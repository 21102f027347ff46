"""A command in an idle interpreter, compared with the same command in a fresh one."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.small import WORKLOADS, arguments, one_host
from tests.waiting import until
from xpk_shared.supervisor.idle import free_bytes
from xpk_shared.supervisor.names import IMPORTS, MIN_SLICES
from xpk_shared.supervisor.standby import Standby, imports_of, parse

PYTHON = sys.executable
# Prepares a standby for a command, like a supervisor, and runs the next attempt once it reads a byte.
DRIVER = f"""
import os, sys, time
sys.path.insert(0, {str(WORKLOADS)!r})
from xpk_shared.supervisor.standby import Standby
argv = sys.argv[2:]
standby = Standby(argv, delay_seconds=float(sys.argv[1]), share=1.0)
standby.prepare(os.environ)
print(standby._process.pid, flush=True)
while not standby.is_ready:
    time.sleep(0.02)
print("ready", flush=True)
os.read(0, 1)
command = standby.take(argv, {{**os.environ, "XPK_RESTART_ATTEMPT": "1"}})
sys.exit(command.wait() % 256)
"""
# The interpreter as a program sees it.
PROBE = """
import atexit, json, os, signal, sys, threading
names = {name: repr(value) for name, value in globals().items() if name not in ("__builtins__", "IMPORTED")}
print(json.dumps({
    "globals": names,
    "arguments": [sys.argv, sys.orig_argv, sys.path, repr(sys.flags), repr(sys._xoptions), sys.warnoptions],
    "environ": dict(os.environ),
    "folder": os.getcwd(),
    "files": sorted(os.listdir("/proc/self/fd")),
    "input": sys.stdin.read(),
    "signals": [repr(signal.getsignal(number)) for number in range(1, 32)],
    "timer": signal.getitimer(signal.ITIMER_PROF),
    "threads": [*map(str, (threading.current_thread().name, threading.active_count()))],
    "priority": [os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0), open("/proc/self/oom_score_adj").read()],
    "leads a session": os.getsid(0) == os.getpid(),
    "is main": sys.modules["__main__"].__dict__ is globals(),
    "foreign": [name for name in sys.modules if name.startswith("xpk")],
}))
atexit.register(print, "at exit")
"""
IMPORTED = "import os\nos.environ['SET_BY_IMPORT'] = '1'\nos.environ.pop('DROPPED_BY_IMPORT')\n"
SLEEPS = "open('up', 'w').close()\nimport time\ntime.sleep(1000)\n"
UNPRIVILEGED = ("setpriv", "--bounding-set=-sys_resource") if os.geteuid() == 0 and shutil.which("setpriv") else ()

CALLS = {
    "module": ["-m", "probe", "--one", "2"],
    "package": ["-u", "-W", "error", "-m", "package", "-x"],
    "script": ["-X", "dev", "-bsO", "sub/script.py", "a b", ""],
    "isolated": ["-I", "script.py"],
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory of the commands."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "heavy.py").write_text(IMPORTED)
    return tmp_path


@pytest.fixture
def standby() -> Iterator[Standby]:
    """Return a standby for the test's script; it is closed afterwards."""
    standby = Standby([PYTHON, "script.py"], delay_seconds=0.0)
    yield standby
    standby.close()


def environ(attempt: int = 0, imports: str = "heavy", **more: str) -> dict[str, str]:
    """Return the environment of an attempt."""
    return {**os.environ, "XPK_RESTART_ATTEMPT": str(attempt), "DROPPED_BY_IMPORT": "1", IMPORTS: imports, **more}


def taken(argv: list[str], imports: str = "heavy", wrapper: tuple[str, ...] = ()) -> tuple[int, str, str]:
    """Run a command in an idle interpreter; return its exit code and output."""
    driver = [*wrapper, PYTHON, "-c", DRIVER, "0", *argv]
    done = subprocess.run(
        driver, env=environ(0, imports), input=".words", capture_output=True, text=True, check=False, timeout=120
    )
    pid, ready, output = done.stdout.split("\n", 2)
    assert pid.isdigit() and ready == "ready"
    return done.returncode, output, done.stderr


def fresh(argv: list[str], imports: str = "heavy") -> tuple[int, str, str]:
    """Run a command in an interpreter of its own; return its exit code and output."""
    env = environ(1, imports)
    done = subprocess.run(
        argv, env=env, input="words", capture_output=True, text=True, check=False, start_new_session=True
    )
    return done.returncode % 256, done.stdout, done.stderr


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_program_in_the_standby_sees_a_fresh_interpreter(folder: Path, call: list[str]) -> None:
    imports = "" if "-I" in call else "import heavy as IMPORTED\n"
    for file in ("probe.py", "package/__main__.py", "sub/script.py", "script.py"):
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(f"{imports}{PROBE}")
    (folder / "package" / "__init__.py").touch()
    (folder / "sub" / "heavy.py").write_text(IMPORTED)
    argv, names = [PYTHON, *call], "heavy" if imports else "json"
    for wrapper in ((), UNPRIVILEGED):
        (code, output, errors), other = taken(argv, names, wrapper), fresh(argv, names)
        seen, usual = map(parsed, (output, other[1]))
        assert seen == usual
        assert (code, errors) == (other[0], other[2]) and output.endswith("at exit\n")
        assert seen["environ"].get("SET_BY_IMPORT") == ("1" if imports else None)


def parsed(output: str) -> dict[str, Any]:
    """Return the output of a probe, without memory addresses."""
    seen: dict[str, Any] = json.loads(re.sub(r"0x[0-9a-f]+", "", output.partition("\n")[0]))
    return seen


@pytest.mark.parametrize(
    "program",
    [
        "import sys; print('words', end=''); sys.exit(7)",
        "raise SystemExit",
        "import sys; sys.exit('no data')",
        "import os; os._exit(42)",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
        "import threading; threading.Thread(target=lambda: print('late')).start()",
        "1 / 0",
        "not Python",
    ],
)
def test_exit_codes_equal_those_of_a_fresh_interpreter(folder: Path, program: str) -> None:
    (folder / "script.py").write_text(program)
    for argv in ([PYTHON, "script.py"], [PYTHON, "-m", "script"]):
        code, output, errors = taken(argv)
        assert (code, output, errors.splitlines()[-1:]) == (*(usual := fresh(argv))[:2], usual[2].splitlines()[-1:])


def test_a_missing_program_fails_like_in_a_fresh_interpreter(folder: Path) -> None:
    for argv in ([PYTHON, "-m", "missing"], [PYTHON, "missing.py"]):
        assert taken(argv) == fresh(argv)


def test_the_process_is_the_command_and_ends_by_sigterm(folder: Path, standby: Standby) -> None:
    (folder / "script.py").write_text(SLEEPS)
    standby.prepare(environ())
    until(lambda: standby.is_ready)
    command = standby.take([PYTHON, "script.py", "another", "argument"], environ(1))
    assert command is not None and command.args == [PYTHON, "script.py", "another", "argument"]
    until((folder / "up").exists)
    assert os.getpgid(command.pid) == command.pid and not standby.is_ready
    assert standby.take([PYTHON, "script.py"], environ(2)) is None, "it is used once"
    standby.prepare(environ(1))
    until(lambda: standby.is_ready)
    command.terminate()
    assert command.wait() == -signal.SIGTERM


@pytest.mark.parametrize("state", ["waiting", "importing", "ready"])
def test_the_standby_ends_with_its_supervisor(folder: Path, capfd: pytest.CaptureFixture[str], state: str) -> None:
    if state == "importing":
        (folder / "heavy.py").write_text(SLEEPS)
    argv = [PYTHON, "-c", DRIVER, "1000" if state == "waiting" else "0", PYTHON, "script.py"]
    with subprocess.Popen(argv, env=environ(), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as driver:
        assert driver.stdout
        pid = int(driver.stdout.readline())
        if state == "ready":
            driver.stdout.readline()
        elif state == "importing":
            until((folder / "up").exists)
        driver.kill()
    until(lambda: has_ended(pid))
    assert capfd.readouterr().err == ""


def has_ended(pid: int) -> bool:
    """Return whether a process has ended, including a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("module", ["1 / 0", "import missing", "import os; os._exit(3)", "raise SystemExit"])
def test_there_is_no_standby_after_a_failed_import(
    folder: Path, standby: Standby, capfd: pytest.CaptureFixture[str], module: str
) -> None:
    (folder / "heavy.py").write_text(module)
    standby.prepare(environ())
    assert standby._process is not None
    standby._process.wait(30)
    assert standby.take([PYTHON, "script.py"], environ(1)) is None
    assert "os._exit" in module or "xpk: no standby: cannot import heavy: " in capfd.readouterr().err


def test_there_is_no_standby_before_it_is_ready(folder: Path, standby: Standby) -> None:
    (folder / "heavy.py").write_text(SLEEPS)
    standby.prepare(environ())
    until((folder / "up").exists)
    process = standby._process
    assert standby.take([PYTHON, "script.py"], environ(1)) is None
    assert process is not None and process.returncode is not None


def test_imports_use_a_share_of_one_core(folder: Path, standby: Standby) -> None:
    (folder / "heavy.py").write_text("import time\nwhile time.process_time() < 0.3: pass\n")
    began = time.monotonic()
    standby.prepare(environ())
    until(lambda: standby.is_ready)
    assert time.monotonic() - began > 0.75  # 1.5 s, less the resolution of the CPU clock


def test_there_is_no_standby_if_memory_is_short() -> None:
    standby = Standby([PYTHON, "script.py"], delay_seconds=0.0, min_free_bytes=1 << 60)
    standby.prepare(environ())
    assert standby._process is None


def test_free_memory_is_that_of_the_node_or_of_a_limit(tmp_path: Path) -> None:
    def write(file: str, text: str) -> None:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)

    proc, groups = str(tmp_path / "proc"), str(tmp_path / "groups")
    write("proc/meminfo", "MemTotal: 100 kB\nMemAvailable:    50 kB\n")
    write("proc/self/cgroup", "4:memory:/old\n0::/pod/container\n")
    assert free_bytes(proc, groups) == 50 * 1024
    write("groups/pod/memory.max", "max\n")
    write("groups/pod/memory.current", "10\n")
    write("groups/pod/container/memory.max", "40000\n")
    write("groups/pod/container/memory.current", "30000\n")
    write("groups/pod/container/memory.stat", "anon 20000\ninactive_file 5000\nactive_file 5000\n")
    assert free_bytes(proc, groups) == 15000
    write("proc/self/cgroup", "0::/\n")
    assert free_bytes(proc, groups) == 50 * 1024


@pytest.mark.parametrize(
    ("argv", "changed"),
    [
        ([PYTHON, "other.py"], {}),
        ([PYTHON, "-m", "script"], {}),
        ([PYTHON, "-u", "script.py"], {}),
        (["bash", "-c", "exit"], {}),
        ([PYTHON, "script.py"], {"PYTHONPATH": "/nowhere"}),
        ([PYTHON, "script.py"], {"JAX_PLATFORMS": "tpu"}),
    ],
)
def test_another_command_or_environment_gets_no_standby(
    standby: Standby, argv: list[str], changed: dict[str, str]
) -> None:
    standby.prepare(environ())
    until(lambda: standby.is_ready)
    assert standby.take(argv, environ(1, **changed)) is None


def test_another_folder_gets_no_standby(folder: Path, standby: Standby, monkeypatch: pytest.MonkeyPatch) -> None:
    standby.prepare(environ())
    until(lambda: standby.is_ready)
    monkeypatch.chdir(folder.parent)
    assert standby.take([PYTHON, "script.py"], environ(1)) is None


@pytest.mark.parametrize(
    ("command", "target"),
    [
        ("python -m trainer train", "trainer"),
        ("/usr/bin/python3.12 -Xutf8 -W error -uB ./train.py -m x", "./train.py"),
        ("python3", None),
        ("python3 -", None),
        ("python3 -c pass", None),
        ("python3 -m", None),
        ("python3 -i train.py", None),
        ("python3 folder", None),
        ("pythonw train.py", None),
        ("bash -c train.py", None),
        ("", None),
    ],
)
def test_only_plain_calls_of_python_are_recognized(command: str, target: str | None) -> None:
    invocation = parse(command.split())
    assert (invocation.target if invocation else None) == target


@pytest.mark.parametrize(
    ("argv", "imports"),
    [
        (["bash", "-c", "exec python script.py"], "json"),
        ([PYTHON, "script.py"], None),
        ([PYTHON, "-m", "trainer"], ""),
        ([PYTHON, "-m", "heavy"], "heavy"),
        (["/nonexistent/python", "script.py"], "json"),
    ],
)
def test_nothing_is_prepared_for_other_commands_or_without_imports(argv: list[str], imports: str | None) -> None:
    standby = Standby(argv)
    standby.prepare(
        {name: value for name, value in environ(0, imports or "").items() if imports is not None or name != IMPORTS}
    )
    assert standby._process is None


@pytest.mark.slow
def test_the_trainer_runs_in_an_idle_standby(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    host = {**one_host(folder, 0), "PYTHONPATH": str(WORKLOADS), "JAX_PLATFORMS": "cpu"}
    env = {name: value for name, value in {**environ(), **host}.items() if name != IMPORTS}
    argv = [PYTHON, "-m", "trainer", *arguments(["run.steps=2", f"data.path={WORKLOADS}", "run.output_dir=out"])]
    standby = Standby(argv, delay_seconds=0.0, share=1.0)
    standby.prepare(env)
    until(lambda: standby.is_ready, seconds=120)
    assert standby._process
    pid = standby._process.pid
    until(lambda: is_idle(pid))  # it reports that it is ready just before it waits
    command = standby.take(argv, env | {"XPK_RESTART_ATTEMPT": "1"})
    assert command and command.wait(120) == 0, capfd.readouterr()
    events = [json.loads(line) for line in (folder / "out/events/s0-h0.jsonl").read_text().splitlines()]
    assert {event["attempt"] for event in events} == {1} and events[-1]["event"] == "done"


def is_idle(pid: int) -> bool:
    """Return whether no thread of a process runs for two seconds."""
    before = switches(pid)
    time.sleep(2)
    return switches(pid) == before


def switches(pid: int) -> list[str]:
    """Return the number of times that each thread of a process has been scheduled."""
    states = [(task / "status").read_text() for task in sorted(Path(f"/proc/{pid}/task").iterdir())]
    return [line for state in states for line in state.splitlines() if "ctxt_switches" in line]


@pytest.mark.parametrize("last", ["trainer.train", "trainer.elastic.train"])
def test_imports_of_the_trainer_create_no_backend(folder: Path, monkeypatch: pytest.MonkeyPatch, last: str) -> None:
    environ = {MIN_SLICES: "2"} if "elastic" in last else {}
    call = parse([PYTHON, "-m", "trainer"])
    assert call
    names = ",".join(imports_of(call, environ))
    (folder / "script.py").write_text(
        "import sys\n"
        f"assert {{{last!r}, 'trainer.train', 'orbax.checkpoint', 'jax'}} <= {{*sys.modules}}\n"
        "from jax._src import xla_bridge\n"
        "print(xla_bridge.backends_are_initialized(), [*xla_bridge._backends])\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(WORKLOADS), os.environ.get("PYTHONPATH", "")]))
    assert taken([PYTHON, "script.py"], names) == (0, "False []\n", "")
