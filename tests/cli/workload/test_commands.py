"""`xpk workload` on the local provider: real processes, real queue."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from functools import partial
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Xpk
from tests.cli.workload.descriptions import described, is_running
from tests.waiting import until


def test_from_create_to_delete(dev: Xpk) -> None:
    created = dev(
        "workload", "create", "hello", "--num-slices", "2", "--command", "echo $MEGASCALE_SLICE_ID/$TPU_WORKER_ID"
    )
    assert created.code == 0
    assert dev("workload", "wait", "hello", "--timeout", "30").code == 0
    lines = dev("workload", "logs", "hello").out.splitlines()
    assert sorted(lines) == [f"s{s}/h{h} │ {s}/{h}" for s in (0, 1) for h in (0, 1)]
    assert dev("workload", "logs", "hello", "--slice", "1", "--host", "0", "--no-prefix").out == "1/0\n"
    assert dev("workload", "logs", "hello", "--grep", "^0/").out.count("\n") == 2
    (listed,) = dev("workload", "list", "-o", "json").data
    assert (listed["phase"], listed["num_slices"], listed["hosts_per_slice"]) == ("Succeeded", 2, 2)
    assert dev("workload", "delete", "hello").code == 0
    assert dev("workload", "list", "-o", "json").data == []


def test_mounts_are_rejected_for_local_clusters(dev: Xpk) -> None:
    for source in ("data", "gs://bucket/data"):
        done = dev("workload", "create", "w", "--command", "true", "--mount", f"source={source},target=/data")
        assert done.code == 2 and len(done.err.splitlines()) == 2, done.err
        assert "processes of this machine" in done.err and "at their own paths" in done.err
    assert dev("workload", "list", "-o", "json").data == []


def test_a_dry_run_prints_what_create_applies_and_creates_nothing(dev: Xpk) -> None:
    create = ("workload", "create", "hello", "--command", "true", "--env", "A=1")
    (manifest,) = yaml.safe_load_all(dev(*create, "--dry-run").out)
    assert manifest["kind"] == "JobSet"
    assert dev("workload", "list", "-o", "json").data == []
    assert dev(*create).code == 0
    from xpk.capacity.local.provider import LocalProvider

    stored = LocalProvider().connect("dev").get("JobSet", "hello")
    assert stored["spec"]["replicatedJobs"] == manifest["spec"]["replicatedJobs"]


def test_a_run_duration_is_rejected_for_existing_slices(dev: Xpk) -> None:
    for time_, words in (("2h", "for slices of queued provisioning"), ("soon", "is not a time")):
        refused = dev("workload", "create", "hello", "--command", "true", "--max-run-duration", time_)
        assert refused.code == 2 and words in refused.err and "Traceback" not in refused.err


VALUES = ["two words", "quo\"te's", "line\nbreak", "{{ x }}", "a: b", "$(A) $$ $HOME `x`", "ünï 😀", "", " lead", "#no"]


def test_values_arrive_unchanged(dev: Xpk, tmp_path: Path) -> None:
    flags = [part for index, value in enumerate(VALUES) for part in ("--env", f"V{index}={value}")]
    values = "{k: v for k, v in os.environ.items() if k[0] == 'V'}"
    program = f"import json, os; json.dump({values}, open(__file__ + '.json', 'w'))"
    (dump := tmp_path / "dump.py").write_text(program)
    assert (
        dev("workload", "create", "env", "--command", f"if [ $TPU_WORKER_ID = 0 ]; then python {dump}; fi", *flags).code
        == 0
    )
    assert dev("workload", "wait", "env", "--timeout", "30").code == 0
    arrived = json.loads((tmp_path / "dump.py.json").read_text())
    assert [arrived[f"V{index}"] for index in range(len(VALUES))] == VALUES


def test_environment_files(dev: Xpk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_SHELL", "shell's")
    (tmp_path / "env").write_text("# ours\nONE=1\nFROM_SHELL\nTWO=a=b\n")
    dev(
        "workload",
        "create",
        "env",
        "--env-file",
        "env",
        "--env",
        "ONE=uno",
        "--command",
        'echo "$ONE $FROM_SHELL $TWO"',
    )
    dev("workload", "wait", "env", "--timeout", "30")
    assert dev("workload", "logs", "env", "--host", "0", "--no-prefix").out == "uno shell's a=b\n"


def test_exit_codes_of_wait(dev: Xpk) -> None:
    dev("workload", "create", "bad", "--command", "echo oh no; exit 3")
    failed = dev("workload", "wait", "bad", "--timeout", "30")
    assert failed.code == 8 and "exit code 3" in failed.err and "xpk workload logs bad" in failed.err
    dev("workload", "create", "slow", "--command", "sleep 60")
    late = dev("workload", "wait", "slow", "--timeout", "0.5")
    assert late.code == 124 and "after 0.5 s" in late.err
    assert dev("workload", "wait", "none").code == 3


def test_a_failed_command_is_restarted_in_place(dev: Xpk, tmp_path: Path) -> None:
    waits = f"until [ -e {tmp_path}/may-fail ]; do sleep 0.05; done"
    fails = f'[ "$MEGASCALE_SLICE_ID$TPU_WORKER_ID" = 11 ] && {{ {waits}; exit 7; }}; sleep 600'
    command = f"echo attempt $XPK_RESTART_ATTEMPT; [ $XPK_RESTART_ATTEMPT = 2 ] || {{ {fails}; }}"
    dev("workload", "create", "phoenix", "--num-slices", "2", "--max-restarts", "3", "--command", command)
    before = {host["pod"] for host in described(dev, "phoenix", is_running)["hosts"]}
    (tmp_path / "may-fail").touch()
    assert dev("workload", "wait", "phoenix", "--timeout", "60").code == 0
    status = dev("workload", "describe", "phoenix", "-o", "json").data
    assert status["restarts"] == status["restarts_counted"] == status["restarts_in_place"] == 2
    causes = [(restart["attempt"], restart["cause"]) for restart in status["restart_history"]]
    assert causes == [(n, "host s1/h1 ended with exit code 7; restarted in place") for n in (0, 1)]
    assert {host["pod"] for host in status["hosts"]} == before
    assert "2 of 3 allowed, 2 in place" in dev("workload", "status", "phoenix").out
    (listed,) = dev("workload", "list", "-o", "json").data
    assert listed["restarts"] == 2
    assert "attempt 2" in dev("workload", "logs", "phoenix", "--no-prefix", "--slice", "1", "--host", "0").out


def test_hosts_are_told_the_modules_of_their_standby(dev: Xpk) -> None:
    create = ("workload", "create", "warm", "--command", "python3 train.py", "--dry-run")
    assert "XPK_STANDBY_IMPORTS" not in dev(*create).out
    _, _, after = dev(*create, "--standby-imports", "json,email.mime").out.partition("XPK_STANDBY_IMPORTS")
    assert "json,email.mime" in after.splitlines()[1]
    wrong = dev(*create, "--standby-imports", "a-b", "--no-restart-in-place")
    assert wrong.code == 2 and "--standby-imports: 'a-b' is not the name of a module" in wrong.err
    assert "--standby-imports requires --restart-in-place" in wrong.err


def test_restarts_in_place_are_limited(dev: Xpk) -> None:
    dev("workload", "create", "bad", "--max-restarts", "1", "--command", "exit 7")
    failed = dev("workload", "wait", "bad", "--timeout", "60")
    assert failed.code == 8 and "ended with exit code 7, and no restart is left" in failed.err
    status = dev("workload", "describe", "bad", "-o", "json").data
    assert (status["restarts"], status["restarts_counted"], status["max_restarts"]) == (1, 1, 1)


def test_without_restarts_in_place_hosts_are_recreated(dev: Xpk) -> None:
    command = "[ $XPK_RESTART_ATTEMPT = 1 ] || exit 7"
    dev("workload", "create", "anew", "--max-restarts", "1", "--no-restart-in-place", "--command", command)
    assert dev("workload", "wait", "anew", "--timeout", "60").code == 0
    status = dev("workload", "describe", "anew", "-o", "json").data
    assert (status["restarts"], status["restarts_in_place"]) == (1, 0)


def test_a_killed_host_restarts_the_workload(dev: Xpk) -> None:
    command = "echo attempt $XPK_RESTART_ATTEMPT; if [ $XPK_RESTART_ATTEMPT = 0 ]; then sleep 60; fi"
    dev("workload", "create", "phoenix", "--num-slices", "2", "--max-restarts", "1", "--command", command)
    hosts = described(dev, "phoenix", is_running)["hosts"]
    until(lambda: dev("workload", "logs", "phoenix").out.count("attempt 0") == 4)
    os.kill(next(host["pid"] for host in hosts if (host["slice"], host["host"]) == (1, 1)), signal.SIGKILL)
    assert dev("workload", "wait", "phoenix", "--timeout", "30").code == 0
    found = dev("workload", "describe", "phoenix", "-o", "json").data
    assert found["restarts"] == found["restarts_counted"] == 1
    (restart,) = found["restart_history"]
    assert "s1/h1" in restart["cause"] and "exit code 137" in restart["cause"]
    assert "attempt 1" in dev("workload", "logs", "phoenix").out
    previous = dev("workload", "logs", "phoenix", "--previous").out
    assert previous.count("attempt 0") == 4 and "attempt 1" not in previous


def test_follow_continues_after_a_restart(dev: Xpk) -> None:
    waits = "[ $XPK_RESTART_ATTEMPT = 1 ] || sleep 2"  # for the command that follows
    command = f"echo attempt $XPK_RESTART_ATTEMPT; {waits}; exit $((1 - XPK_RESTART_ATTEMPT))"
    dev("workload", "create", "twice", "--max-restarts", "1", "--command", command)
    followed = dev("workload", "logs", "twice", "-f", "--host", "0")
    assert followed.code == 0
    lines = [line for line in followed.out.splitlines() if "xpk: the command of host" not in line]
    assert lines == ["s0/h0 │ attempt 0", "s0/h0 │ xpk: restart 1 in place", "s0/h0 │ attempt 1"]
    assert followed.err.splitlines()[-1] == " ✓ workload 'twice' succeeded"


def test_follow_ends_with_the_outcome_of_a_workload_that_fails(dev: Xpk) -> None:
    dev("workload", "create", "bad", "--command", "echo oh no; exit 3")
    for _ in ("while it runs", "when it has ended"):
        followed = dev("workload", "logs", "bad", "-f")
        assert followed.code == 8 and "oh no" in followed.out
        assert "error: workload 'bad' failed: host s0/h" in followed.err and "exit code 3" in followed.err
        assert followed.err.splitlines()[-1] == "  hint: `xpk workload status bad --cluster dev`"


def test_a_preempted_workload_resumes(dev: Xpk, tmp_path: Path) -> None:
    waits = f"until [ -e {tmp_path}/may-end ]; do sleep 0.05; done"
    dev("workload", "create", "small", "--num-slices", "2", "--priority", "low", "--command", "sleep 60")
    described(dev, "small", is_running)
    dev("workload", "create", "urgent", "--num-slices", "1", "--priority", "high", "--command", waits)
    queued = described(dev, "small", lambda found: found["position"] == 1)
    assert queued["phase"] == "Queued" and "preempt" in queued["reason"].lower()
    assert "position" in dev("workload", "status", "small").out
    (tmp_path / "may-end").touch()
    assert dev("workload", "wait", "urgent", "--timeout", "30").code == 0
    assert described(dev, "small", is_running)["restarts"] == 0


def test_the_queue_position_names_workloads_ahead(dev: Xpk) -> None:
    for name in ("first", "second", "third"):
        dev("workload", "create", name, "--num-slices", "2", "--command", "sleep 60")
    found = described(dev, "third", lambda found: found["position"] == 2)
    assert found["ahead"] == ["second"] and "insufficient unused quota" in found["reason"]


def test_suspend_and_resume(dev: Xpk) -> None:
    dev("workload", "create", "nap", "--command", "sleep 60")
    described(dev, "nap", is_running)
    assert dev("workload", "suspend", "nap").code == 0
    described(dev, "nap", lambda found: found["phase"] == "Suspended" and not found["hosts"])
    assert dev("workload", "resume", "nap").code == 0
    described(dev, "nap", is_running)


def test_interrupting_create_wait_detaches(dev: Xpk) -> None:
    create = [sys.executable, "-m", "xpk", "workload", "create", "long", "--command", "sleep 60", "--wait"]
    with subprocess.Popen(create, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr is not None
        while "Running" not in waiting.stderr.readline():
            assert waiting.poll() is None
        waiting.send_signal(signal.SIGINT)
        message = waiting.stderr.read()
    assert waiting.returncode == 130
    assert "stopped waiting" in message and "xpk workload wait long --cluster dev" in message
    assert dev("workload", "status", "long", "-o", "json").data["phase"] == "Running"


def test_output_of_an_earlier_run_is_neither_lost_nor_continued_by_accident(dev: Xpk) -> None:
    create = (
        "workload",
        "create",
        "run",
        "--wait",
        "--timeout",
        "30",
        "--command",
        "mkdir -p $XPK_OUTPUT_DIR; touch $XPK_OUTPUT_DIR/x",
    )
    assert dev(*create).code == 0
    assert dev("workload", "delete", "run").code == 0
    refused = dev(*create)
    assert refused.code == 4 and "--resume" in refused.err and "--fresh" in refused.err
    assert dev(*create, "--resume").code == 0
    dev("workload", "delete", "run")
    assert dev(*create, "--fresh").code == 0
    output = Path(dev("workload", "status", "run", "-o", "json").data["output_dir"])
    assert len(list(output.parent.glob("run.*"))) == 1
    assert dev("workload", "delete", "run", "--with-output").code == 0
    assert not output.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("Bad_Name", "--command", "true"), 2, "is not a DNS label"),
        (
            ("a-name-that-is-too-long-for-any-host-of-it", "--command", "true"),
            2,
            "has 42 characters; at most 40 are allowed",
        ),
        (("w", "--num-slices", "0", "--command", "true"), 2, "between 1 and 1024, got 0"),
        (("w", "--num-slices", "3", "--command", "true"), 5, "use --num-slices 2"),
        (("w", "--tpu-type", "v5p-8", "--command", "true"), 2, "has slices of type v5litepod-8"),
        (("w", "--command", "true", "--env", "NOEQ"), 2, "has no '='"),
        (("w", "--command", "true", "--env-file", "nope"), 2, "cannot read --env-file nope"),
        (("w", "--command", "true", "--env", "XPK_WORKLOAD=x"), 2, "is set by xpk"),
        (("w", "--command", "true", "--priority", "urgent"), 2, "unknown priority"),
        (("w", "--command", "true", "--max-restarts", "-1"), 2, "must be between 0 and 2147483647, got -1"),
        (("w", "--command", "true", "--fatal-exit-codes", "x"), 2, "not a list of codes"),
        (("w", "--command", "true", "--fatal-exit-codes", "1-999999999"), 2, "not a list of codes"),
        (("w", "--command", "true", "--output-manifest-file", "no/such/file"), 1, "cannot write no/such/file"),
        (("w", "--command", "true", "--timeout", "soon", "--wait"), 2, "is not a time"),
        (("w", "--command", ""), 2, "--command is empty"),
        (("w", "--command", "true", "--", "--config", "tiny"), 2, "exclude each other"),
        (("w", "--command", "true", "--restart-on-exit-codes", "1-x"), 2, "not a list of codes"),
        (("w", "--command", "true", "--cluster", "nope"), 3, "cluster 'nope' not found"),
        (("w", "--", "--config", "huge"), 2, "huge"),
        (("w", "--", "--confg", "tiny"), 2, "--confg"),
        (("w", "--", "--set", "data.global_batch=33"), 2, "33 is not divisible"),
        (("w", "--", "--set", "model.heads=3", "--set", "mesh.tp=2"), 2, "not divisible by mesh.tp = 2"),
        (("w", "--", "--set", "optim.learning_rat=1"), 2, "learning_rat"),
        (("w", "--", "--set", "data.path=/no/such/folder"), 2, "/no/such/folder"),
    ],
)
def test_bad_input_is_one_line_with_a_hint_and_creates_nothing(
    dev: Xpk, arguments: tuple[str, ...], code: int, says: str
) -> None:
    outcome = dev("workload", "create", *arguments)
    assert outcome.code == code and says in outcome.err and "  hint: " in outcome.err, outcome.err
    assert "Traceback" not in outcome.err and outcome.out == ""
    assert dev("workload", "list", "--cluster", "dev", "-o", "json").data == []


def test_all_problems_are_reported_together(dev: Xpk) -> None:
    wrong = ("--env", "X", "--fatal-exit-codes", "999", "--max-run-duration", "soon", "--command", "")
    outcome = dev("workload", "create", "Bad_Name", *wrong, "--output-root", "gs:/runs")
    assert outcome.code == 2
    lines = outcome.err.splitlines()
    for part in ("--env 'X'", "--fatal-exit-codes '999'", "'soon' is not a time", "--command is empty", "Bad_Name"):
        assert sum(part in line for line in lines) == 1, outcome.err
    assert "(use a list such as 3,10-12)" in outcome.err, "each problem is followed by its hint"
    assert lines[-1] == "  hint: see `xpk workload create --help`" and outcome.err.count("hint:") == 1


@pytest.mark.parametrize("tpu_type", ["v5litepod-8", "v5litepd-8"])
def test_flags_types_and_settings_are_reported_together(dev: Xpk, tpu_type: str) -> None:
    flags = ("--num-slices", "two", "--max-restarts", "1.5", "--launcher", "rae", "--timeout", "soon")
    outcome = dev("workload", "create", "w", "--tpu-type", tpu_type, *flags, "--", "--set", "optim.learning_rat=1")
    assert outcome.code == 2
    problems = [line for line in outcome.err.splitlines() if line.startswith("error: ")]
    words = ["--num-slices", "--max-restarts", "--launcher", "'soon' is not a time", "optim.learning_rat"]
    for word in words + ["'v5litepd-8'"] * (tpu_type == "v5litepd-8"):
        assert sum(word in problem for problem in problems) == 1, outcome.err
    assert "'two' is not a valid integer" in outcome.err and "Traceback" not in outcome.err
    assert len(problems) == len(words) + (tpu_type == "v5litepd-8"), "a run is not checked for an unknown size"


def test_a_missing_cluster_is_reported_together_with_wrong_options(dev: Xpk) -> None:
    outcome = dev("workload", "create", "w", "--command", "true", "--cluster", "nope", "--priority", "urgent")
    assert outcome.code == 2
    problems = [line for line in outcome.err.splitlines() if line.startswith("error: ")]
    assert len(problems) == 2 and "unknown priority 'urgent'" in problems[0], outcome.err
    assert "'nope'" in problems[1] and "choose from dev" in problems[1]


def test_an_existing_name_is_rejected(dev: Xpk) -> None:
    create = ("workload", "create", "one", "--command", "sleep 60")
    assert dev(*create).code == 0
    same, other = dev(*create), dev(*create, "--max-restarts", "2")
    assert same.code == other.code == 4
    assert "with the same settings" in same.err and "failurePolicy.maxRestarts" in other.err


def test_all_output_formats_keep_stdout_clean(dev: Xpk) -> None:
    created = dev("workload", "create", "one", "--command", "sleep 60", "-o", "json")
    assert created.data["name"] == "one"
    assert yaml.safe_load(dev("workload", "list", "-o", "yaml").out)[0]["name"] == "one"
    assert dev("workload", "list", "-o", "name").out == "one\n"
    assert dev("-o", "json", "workload", "status", "one").data["name"] == "one"
    assert "NAMESPACE" in dev("workload", "list", "-o", "wide").out


def test_exec_runs_next_to_a_host(dev: Xpk, tmp_path: Path) -> None:
    dev("workload", "create", "long", "--num-slices", "2", "--command", "sleep 60", "--env", "MINE=a b")
    described(dev, "long", is_running)
    echo = f"echo $MEGASCALE_SLICE_ID-$TPU_WORKER_ID $MINE > {tmp_path}/told; exit 5"
    outcome = dev("workload", "exec", "long", "--slice", "1", "--host", "1", "--", "bash", "-c", echo)
    assert outcome.code == 5 and (tmp_path / "told").read_text() == "1-1 a b\n"
    assert dev("workload", "exec", "long", "--slice", "7", "--", "true").code == 3
    assert dev("workload", "exec", "long").code == 2
    assert dev("workload", "exec", "long", "--", "no-such-program").code == 3


def test_a_long_log_is_followed_to_its_end(dev: Xpk) -> None:
    dev("workload", "create", "long", "--command", "if [ $TPU_WORKER_ID = 0 ]; then seq 200000; fi")
    dev("workload", "wait", "long", "--timeout", "60")
    assert dev("workload", "logs", "long", "--host", "0", "-f", "--no-prefix").out.count("\n") == 200_000


def test_the_users_xla_flags_are_added_to_ours(dev: Xpk) -> None:
    create = ("workload", "create", "w", "--command", "true", "--env", "XLA_FLAGS=--xla_dump_to=/tmp/d", "--dry-run")
    (manifest,) = yaml.safe_load_all(dev(*create).out)
    container = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    flags = next(entry["value"] for entry in container["env"] if entry["name"] == "XLA_FLAGS")
    assert flags.endswith(" --xla_dump_to=/tmp/d") and "concurrency_optimized_scheduler=false" in flags


@pytest.mark.parametrize(
    "words", [("--chips-per-host", "4"), ("--num-slices", "3"), ("--settings-only",), ("--conf", "1b")]
)
def test_options_that_training_does_not_have_are_refused(dev: Xpk, words: tuple[str, ...]) -> None:
    outcome = dev("workload", "create", "lm", "--dry-run", "--", "--config", "tiny", *words)
    assert outcome.code == 2 and f"unrecognized arguments: {' '.join(words)}" in outcome.err


def test_a_dry_run_for_an_unknown_cluster_names_the_others(dev: Xpk) -> None:
    outcome = dev("workload", "create", "lm", "--cluster", "nope", "--command", "true", "--dry-run")
    assert outcome.code == 3 and "dev" in outcome.err.partition("hint:")[2] and "--tpu-type" in outcome.err


def test_a_workload_deleted_at_its_end_still_reports_its_outcome(dev: Xpk) -> None:
    create = ("workload", "create", "brief", "--ttl-seconds-after-finished", "0", "--wait")
    assert dev(*create, "--command", "exit 3").code == 8


def test_followed_logs_of_a_workload_deleted_at_its_end_report_its_outcome(dev: Xpk, tmp_path: Path) -> None:
    go = tmp_path / "go"
    create = ("workload", "create", "brief", "--ttl-seconds-after-finished", "0", "--max-restarts", "0")
    assert dev(*create, "--command", f"echo runs; while [ ! -e {go} ]; do sleep 0.05; done; exit 3").code == 0
    argv = [sys.executable, "-m", "xpk", "workload", "logs", "-f", "brief", "--cluster", "dev"]
    until(lambda: dev("workload", "status", "brief", "-o", "json").data["phase"] == "Running")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as following:
        assert following.stdout and "runs" in following.stdout.readline()
        go.touch()
        _, err = following.communicate(timeout=60)
    assert following.returncode == 8 and "workload 'brief' failed" in err


def test_a_model_larger_than_the_chips_memory_is_rejected(dev: Xpk) -> None:
    large = ("--", "--config", "16b", "--set", "data.path=stdlib", "--set", "data.batch_per_chip=1")
    refused = dev("workload", "create", "large", *large)
    assert (refused.code, refused.out) == (5, "")
    assert "16b needs about" in refused.err
    assert "v5litepod-8 has 15.75 GiB" in refused.err
    assert "--no-estimate" in refused.err
    assert dev("workload", "list", "-o", "json").data == []
    assert dev("workload", "create", "large", "--no-estimate", "--dry-run", *large).code == 0
    assert dev("workload", "create", "large", "--command", "true", "--dry-run").code == 0
    assert not dev("workload", "estimate", "-o", "json", *large).data["fits"]


def test_the_memory_of_elastic_slices_is_estimated_as_that_of_one_slice_each(dev: Xpk) -> None:
    """Together, the slices would share the optimizer's state."""
    settings = ("mesh.dp=2", "optim.update_axes=dp", "model.embed=4096", "model.mlp=286720", "model.vocab=64")
    words = [word for setting in settings for word in ("--set", setting)]
    large = ("--num-slices", "2", "--dry-run", "--", "--config", "tiny", "--set", "data.path=stdlib", *words)
    assert dev("workload", "create", "joined", *large).code == 0
    refused = dev("workload", "create", "elastic", "--min-slices", "1", *large)
    assert (refused.code, refused.out) == (5, "")
    assert "tiny needs about" in refused.err


def test_an_estimate_needs_no_cluster(xpk: Xpk) -> None:
    asked = ("workload", "estimate", "--tpu-type", "v5e-256", "--num-slices", "199")
    found = xpk(*asked, "--config", "128b", "--set", "data.batch_per_chip=1", "-o", "json").data
    assert (found["chips"], found["fits"], found["tpu_type"]) == (50_944, True, "v5litepod-256")
    assert "fits:              yes\n" in xpk(*asked, "--", "--config", "128b").out
    unknown = xpk(*asked, "--config", "128bb")
    assert (unknown.code, unknown.out) == (2, "")
    assert "Did you mean '128b'?" in unknown.err
    assert xpk("workload", "estimate", "--tpu-type", "l4-4").code == 2


def test_a_former_setting_name_gives_a_warning(dev: Xpk) -> None:
    former = ("--", "--set", "checkpoint.keep=2")
    created = dev("workload", "create", "w", "--dry-run=client", *former)
    assert (created.code, created.err.count("warning: setting 'checkpoint.keep' is deprecated")) == (0, 1), created.err
    estimated = dev("workload", "estimate", "-o", "json", *former)
    assert estimated.data["tpu_type"] == "v5litepod-8"
    assert estimated.err == "warning: setting 'checkpoint.keep' is deprecated; use 'checkpoint.max_to_keep'\n"


def test_a_warning_of_the_trainer_is_not_a_problem_of_an_estimate(xpk: Xpk) -> None:
    settings = ("--set", "checkpoint.keep=2", "--set", "optim.learning_rat=1")
    refused = xpk("workload", "estimate", "--tpu-type", "v5e-256", *settings)
    assert refused.code == 2 and "learning_rat" in refused.err
    assert "error: warning" not in refused.err and refused.err.count("error: ") == 1


def test_a_port_of_a_host_is_reached_at_the_address_that_is_printed(dev: Xpk) -> None:
    serve = "all=(${TPU_WORKER_HOSTNAMES//,/ }); exec python -m http.server 8265 --bind ${all[$TPU_WORKER_ID]}"
    assert dev("workload", "create", "web", "--num-slices", "2", "--command", serve).code == 0
    described(dev, "web", is_running)
    for host in ("0", "1"):  # the first one listens at the address that outlives its node
        forward = partial(dev, "workload", "port-forward", "web", "--host", host)
        until(lambda: forward().code != 4)  # noqa: B023  # it is starting; the loop waits for it
        forwarded = forward()
        with urllib.request.urlopen(f"http://{forwarded.out.strip()}/", timeout=10) as answer:
            assert answer.status == 200
    refused = dev("workload", "port-forward", "web", "9")
    assert (refused.code, refused.out) == (4, "") and "port 9 of pod 'web-slice-job-0-0" in refused.err


def test_options_of_ray_need_ray(dev: Xpk) -> None:
    outcome = dev("workload", "create", "w", "--command", "true", "--ray-dashboard")
    assert outcome.code == 2 and "add --launcher ray" in outcome.err


def test_a_dry_run_can_be_printed_as_json(dev: Xpk) -> None:
    command = ("workload", "create", "run", "--command", "true", "--dry-run")
    shown = dev(*command, "-o", "json").data
    assert shown["kind"] == "List" and [item["kind"] for item in shown["items"]] == ["JobSet"]
    assert dev(*command, "-o", "name").out == "jobset/run\n"


def test_a_server_side_dry_run_rejects_what_create_would(dev: Xpk) -> None:
    refused = dev("workload", "create", "run", "--num-slices", "3", "--command", "true", "--dry-run=server")
    assert refused.code == 5 and refused.out == "" and "--num-slices 2" in refused.err


def test_a_dry_run_predicts_the_refusals_of_create(dev: Xpk, state: Path) -> None:
    create = ("workload", "create", "run", "--command", "true")
    assert dev(*create, "--wait").code == 0
    output = state / "clusters" / "dev" / "output" / "run"
    output.mkdir(exist_ok=True, parents=True)
    (output / "metrics.jsonl").write_text("{}\n")
    printed = dev(*create, "--num-slices", "3", "--dry-run")
    assert (printed.code, printed.out.count("kind: JobSet")) == (0, 1)
    for refusal in ("3 slices of v5litepod-8 need", "workload 'run' already exists with other settings"):
        assert f"warning: without --dry-run, this command would fail: {refusal}" in printed.err
    taken = dev(*create, "--dry-run=server")
    assert (taken.code, taken.out) == (4, "") and "workload 'run' already exists" in taken.err
    assert dev("workload", "delete", "run").code == 0
    assert "would fail: output of an earlier workload" in dev(*create, "--dry-run").err
    left = dev(*create, "--dry-run=server")
    assert left.code == dev(*create).code == 4 and "earlier" in left.err
    assert "would fail" not in dev(*create, "--fresh", "--dry-run").err
    assert output.exists(), "a dry run moves nothing aside"


def test_a_time_limit_without_a_wait_is_refused(dev: Xpk) -> None:
    refused = dev("workload", "create", "run", "--command", "true", "--timeout", "5m")
    assert refused.code == 2 and "--timeout requires --wait" in refused.err
    assert dev("workload", "list", "-o", "name").out == ""
