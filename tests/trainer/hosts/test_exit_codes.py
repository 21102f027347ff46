"""End of a host after an error: its exit code, its messages, its records, and what the other hosts learn."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.trainer.checkpoint.tiers import a_job
from tests.trainer.hosts.connections import SECONDS, connected, together
from tests.trainer.small import WORKLOADS
from trainer.errors import (
    AddressError,
    ChipsError,
    CorruptError,
    ExitCode,
    FatalError,
    PeerAbsent,
    Problem,
    SaveError,
    StorageError,
)
from trainer.hosts.job import report_error
from trainer.hosts.lease import FILE
from trainer.telemetry.metrics import flush
from xpk_shared.storage.errors import Unreachable

DENIED = PermissionError(13, "Permission denied", "/data/tokens.bin")
CORRUPT = "replicas of step 8 differ"


def failures(folder: Path, name: str = "fail", host: int = 0) -> list[str]:
    """Return the reasons in a host's events."""
    flush(SECONDS)
    file = folder / f"events-{host}"
    events = map(json.loads, file.read_text().splitlines() if file.exists() else ())
    return [event["reason"] for event in events if event["event"] == name]


@pytest.mark.parametrize(
    ("error", "code", "printed", "recorded"),
    [
        (
            FatalError(Problem("no data", "Set data.path"), Problem("no model", "Set model.name")),
            42, "error: no data. Set data.path\nerror: no model. Set model.name\n", ["no data; no model"],
        ),
        (
            DENIED, 42, "error: /data/tokens.bin: Permission denied. Grant this host access\n",
            ["/data/tokens.bin: Permission denied"],
        ),
        (StorageError("/out: I/O error"), 1, "error: /out: I/O error\n", ["/out: I/O error"]),
        (
            StorageError("/out: No space left on device"), 1,
            "error: /out: No space left on device. Free some disk space\n", ["/out: No space left on device"],
        ),
        (SaveError("not saved"), 1, "error: not saved\n", ["not saved"]),
        (
            AddressError("port 8476 is in use"), 1,
            "error: port 8476 is in use. Another job may be using it: stop that job, or try again later\n",
            ["port 8476 is in use"],
        ),
        (
            ChipsError("3 of 4 chips"), 1, "error: 3 of 4 chips. Find the host with missing chips\n", ["3 of 4 chips"],
        ),
        (
            Unreachable(5, "no answer", "gs://bucket"), 1, "error: gs://bucket: no answer\n",
            ["[Errno 5] no answer: 'gs://bucket'"],
        ),
        (
            CorruptError(CORRUPT, [0, 1]), 77,
            f"error: {CORRUPT}. The job restarts from the newest checkpoint\n", [CORRUPT],
        ),
        (CorruptError(CORRUPT, [1]), 75, f"error: {CORRUPT}. The job restarts from the newest checkpoint\n", []),
        (PeerAbsent("slice 1 host 0 did not connect"), 75, "", []),
    ],
)  # fmt: skip
def test_an_error_determines_the_exit_code_the_message_and_the_record(
    error: BaseException, code: int, printed: str, recorded: list[str],
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert report_error(a_job(tmp_path), error) == code
    assert capsys.readouterr().err == printed
    assert failures(tmp_path) == recorded


def test_an_absent_host_is_named_in_the_log_and_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report_error(a_job(tmp_path), PeerAbsent("slice 1 host 0 did not connect"))
    assert "slice 1 host 0 did not connect" in capsys.readouterr().out
    assert failures(tmp_path, "peer_lost") == ["slice 1 host 0 did not connect"]


def test_a_bug_is_shown_with_its_stack_and_recorded_in_one_short_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        raise ValueError("shapes\n  differ " + 400 * "x")
    except ValueError as error:
        assert report_error(a_job(tmp_path), error) == ExitCode.CRASH
    printed = capsys.readouterr().err
    assert "Traceback" in printed and "test_exit_codes.py" in printed
    assert failures(tmp_path) == ["ValueError: shapes differ " + 286 * "x"]


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_bug_waits_for_the_end_of_a_peer_that_may_be_its_cause(hosts: int, tmp_path: Path) -> None:
    peers, _ = connected(hosts)
    began = time.monotonic()
    report_error(a_job(tmp_path, peers=peers[0]), ValueError("bug"))
    assert (time.monotonic() - began >= 1.0) is (hosts > 1)
    together([one.leave for one in peers])


def test_a_host_that_is_ending_already_keeps_the_code_that_it_was_asked_for(tmp_path: Path) -> None:
    job, ended = a_job(tmp_path), list[bool]()
    job.stop.code = ExitCode.INTERRUPTED
    job.stop.leaving = threading.Thread(target=lambda: ended.append(threading.Event().wait(0.2)))
    job.stop.leaving.start()
    assert report_error(job, FatalError(Problem("no data", "Set data.path"))) == ExitCode.INTERRUPTED
    assert ended, "it has not waited for the end"


@pytest.mark.parametrize("error", [DENIED, SaveError("not saved"), ValueError("bug")])
def test_a_host_that_ends_releases_its_output_folder(error: BaseException, tmp_path: Path) -> None:
    job = a_job(tmp_path)
    job.lease.take()
    report_error(job, error)
    assert json.loads((job.out / FILE).slot().look()[1])["released"]


def test_other_hosts_learn_of_a_permanent_failure_only(tmp_path: Path) -> None:
    peers, heard = connected(2)
    job = a_job(tmp_path, peers=peers[0])
    report_error(job, StorageError("/out: I/O error"))
    with pytest.raises(queue.Empty):
        heard[1].get(timeout=0.2)
    report_error(job, DENIED)
    assert heard[1].get(timeout=SECONDS) == ("fatal", 0)
    together([one.leave for one in peers])


@pytest.mark.parametrize(("error", "codes"), [(SaveError("no"), [1, 1]), (CorruptError(CORRUPT, [1]), [75, 77])])
def test_the_first_host_ends_last_after_an_error_that_all_know(
    error: BaseException, codes: list[int], tmp_path: Path
) -> None:
    peers, heard = connected(2)
    jobs = [a_job(tmp_path, peers=one, local=f"ram{number}") for number, one in enumerate(peers)]
    results: list[int] = []
    first = threading.Thread(target=lambda: results.append(report_error(jobs[0], error)), daemon=True)
    first.start()
    first.join(0.3)
    assert first.is_alive(), "it waits for the other host, whose process JAX would abort"
    other = report_error(jobs[1], error)
    first.join(SECONDS)
    assert [*results, other] == codes
    assert all(one.empty() for one in heard), "no host is reported as lost"


@pytest.mark.parametrize(("code", "said"), [("PREEMPTED", True), ("CRASH", False), ("DONE", False)])
def test_a_host_that_ends_flushes_its_output_and_tells_kubernetes_if_it_was_asked_to_end(
    code: str, said: bool, tmp_path: Path
) -> None:
    program = (
        "import sys; from trainer.errors import ExitCode; from trainer.hosts.job import end\n"
        "from trainer.telemetry.metrics import register\n"
        "class Records:\n"
        "    def flush(self, seconds): print('records ' if seconds else '', end='')\n"
        "register(records := Records())\n"
        f"sys.stdout.write('unfinished line'); sys.stderr.write('!'); end(ExitCode.{code}, 1.0)"
    )
    log = tmp_path / "termination"
    env = os.environ | {"PYTHONPATH": str(WORKLOADS), "XPK_TERMINATION_LOG": str(log)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode[code], "unfinished linerecords ", "!")
    assert log.exists() is said
