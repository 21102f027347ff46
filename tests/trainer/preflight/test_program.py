"""The preflight of 2 slices of 2 hosts, as processes: each fault is noticed on its host, and on no other."""

import json
import sys
from pathlib import Path

import pytest

from tests.trainer.preflight.hosts import run_hosts
from tests.trainer.small import run_alone
from trainer.hosts.bootstrap import Host
from trainer.preflight.checks import Check, Result
from trainer.preflight.program import record

HOSTS = {"s0/h0", "s0/h1", "s1/h0", "s1/h1"}
PRINTED = ("dns", "disk", "chips", "bf16", "int8", "memory", "ici", "dcn", "clock")
UNFIT, PEER_LOST = 79, 75


class Bucket:
    """A folder whose files get their lines late, as in a bucket."""

    def __init__(self, error: OSError | None = None) -> None:
        self.there, self._late, self._error = b"", b"", error

    def __truediv__(self, name: str) -> "Bucket":
        """Return the only file."""
        return self

    def lines(self) -> "Bucket":
        """See `Place.lines`."""
        return self

    def write(self, line: bytes, *, at_once: bool = False) -> None:
        """See `Lines.write`."""
        self._late += line

    def flush(self, seconds: float) -> None:
        """See `Lines.flush`."""
        if self._error:
            raise self._error
        self.there, self._late = self.there + self._late, b""


def test_results_are_recorded_before_a_host_can_end_because_of_them() -> None:
    bucket = Bucket()
    judged = [[Result(check=Check.DISK)], [Result(check=Check.DISK, problem="slow")]]
    record(Host(hosts_per_slice=2), bucket, judged)  # type: ignore[arg-type]
    rows = [json.loads(line) for line in bucket.there.splitlines()]
    assert [(row["slice"], row["host"], row["passed"]) for row in rows] == [(0, 0, True), (0, 1, False)]


def test_a_record_that_cannot_be_written_does_not_end_the_checks(capsys: pytest.CaptureFixture[str]) -> None:
    bucket = Bucket(OSError(110, "the bucket does not answer"))
    record(Host(), bucket, [[Result(check=Check.DISK)]])  # type: ignore[arg-type]
    assert "the results cannot be recorded: the bucket does not answer" in capsys.readouterr().out


def test_one_host_passes_and_then_runs_the_program(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "import sys; print('started', sys.argv[1:]); sys.exit(5)", "--", "x"]
    run = run_alone("preflight", "--disk", str(tmp_path), "--", *program, XPK_OUTPUT_DIR=str(tmp_path / "out"))
    lines = run.stdout.splitlines()
    assert (run.returncode, lines[-1]) == (5, "started ['--', 'x']")
    assert [line.split()[1:3] for line in lines[:6]] == [
        [check, "ok"] for check in ("disk", "disk", "chips", "bf16", "int8", "memory")
    ]
    rows = [json.loads(line) for line in (tmp_path / "out" / "preflight.jsonl").read_text().splitlines()]
    assert [(row["check"], row["passed"], row["problem"]) for row in rows] == [
        (line.split()[1], True, "") for line in lines[:6]
    ]


def test_a_failed_check_keeps_the_program_from_starting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run = run_alone("preflight", "--disk", str(tmp_path / "file"), "--", "echo", "started")
    assert run.returncode == UNFIT
    assert "started" not in run.stdout
    assert f"preflight  disk   FAILED  {tmp_path}/file: File exists" in run.stdout


def test_only_a_passed_preflight_is_noted_for_the_next_attempt(tmp_path: Path) -> None:
    note, file = tmp_path / "note", tmp_path / "file"
    file.touch()
    for folder, code, content in ((file, UNFIT, b""), (tmp_path, 0, b"1")):
        note.write_bytes(b"")
        run = run_alone("preflight", "--disk", str(folder), "--", "true", XPK_PREFLIGHT_PASSED=str(note))
        assert (run.returncode, note.read_bytes()) == (code, content)


def test_the_folder_of_local_checkpoints_is_checked_before_the_trainer_starts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    local = f"checkpoint.local_path={tmp_path}/file"
    trainer = ("python", "-m", "trainer", "train", "--config", "tiny", "--set", "run.steps=1", "--set", local)
    run = run_alone("preflight", "--", *trainer)
    assert run.returncode == UNFIT
    assert f"preflight  disk   FAILED  {tmp_path}/file: File exists" in run.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--timeout", "0"], "--timeout must be more than 0 seconds, got 0"),
        (["--timeout", "nan"], "--timeout must be more than 0 seconds, got nan"),
        (["--min-dcn-gbps", "-1"], "--min-dcn-gbps must be a number of at least 0, got -1.0"),
        (["--unknown"], "unrecognized arguments: --unknown"),
    ],
)
def test_invalid_options_are_one_line(arguments: list[str], message: str) -> None:
    run = run_alone("preflight", *arguments)
    assert run.returncode == 42
    assert message in run.stderr
    assert run.stderr.count("\n") == 1


@pytest.mark.slow
def test_undisturbed_hosts_pass(tmp_path: Path) -> None:
    codes, outputs = run_hosts(tmp_path)
    assert codes == dict.fromkeys(HOSTS, 0), outputs
    for output in outputs.values():
        lines = [line.split() for line in output.splitlines() if line.startswith("preflight")]
        assert [line[1:3] for line in lines[: len(PRINTED)]] == [[check, "ok"] for check in PRINTED]
    rows = [json.loads(line) for line in (tmp_path / "preflight.jsonl").read_text().splitlines()]
    assert len(rows) == len(HOSTS) * len(PRINTED)
    assert {f"s{row['slice']}/h{row['host']}" for row in rows} == HOSTS
    assert all(row["passed"] for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "checks"),
    [
        ("bit:1/0", {"bf16"}),
        ("integer:0/1", {"int8"}),
        ("memory:1/1", {"memory"}),
        pytest.param("chip:0/0", {"bf16", "int8"}, marks=pytest.mark.extended),
        pytest.param("link:0/1", {"ici", "dcn"}, marks=pytest.mark.extended),
        ("data:1/0", {"ici", "dcn"}),
        ("disk:1/1", {"disk"}),
        ("dns:0/1", {"dns"}),
    ],
)
def test_a_fault_is_noticed_on_its_host_alone(tmp_path: Path, fault: str, checks: set[str]) -> None:
    place = fault.partition(":")[2]
    bad = "s{}/h{}".format(*place.split("/"))
    if "dns" in checks:  # the others would wait for it, for minutes
        codes, outputs = run_hosts(tmp_path, fault=fault, ends_with=bad)
        assert codes[bad] == UNFIT, outputs
    else:
        codes, outputs = run_hosts(tmp_path, fault=fault)
        assert codes == {host: UNFIT if host == bad else PEER_LOST for host in HOSTS}, outputs
    failed = {line.split()[1] for line in outputs[bad].splitlines() if " FAILED " in line}
    assert failed == checks
    words = (tmp_path / f"termination-{bad.replace('/', '-')}").read_text()
    assert words.startswith("preflight failed: ")
    assert all(f"{check}: " in words for check in checks)


@pytest.mark.slow
def test_a_wrong_clock_is_noticed_on_its_host_alone(tmp_path: Path) -> None:
    codes, outputs = run_hosts(tmp_path, fault="clock:1/0")
    assert codes == {host: UNFIT if host == "s1/h0" else PEER_LOST for host in HOSTS}, outputs
    assert "clock  FAILED  differs by 3" in outputs["s1/h0"]


@pytest.mark.slow
def test_a_check_that_hangs_ends_its_host(tmp_path: Path) -> None:
    codes, outputs = run_hosts(tmp_path, "--timeout", "40", fault="hang:0/1")
    assert codes["s0/h1"] == UNFIT, outputs
    assert "memory FAILED  did not finish within 20 s" in outputs["s0/h1"]
    assert {codes[host] for host in HOSTS - {"s0/h1"}} == {PEER_LOST}
