"""Compatibility with the flags and commands of Google's xpk: supported, or rejected with an alternative."""

from __future__ import annotations

import pytest
import yaml

from tests.cli.conftest import Xpk

SHARED = ("--project-number=1", "--skip-validation", "--sandbox-kubeconfig", "--dependency-auto-download", "--dry-run")
LISTS = ("--filter-by-status=RUNNING", "--filter-by-job=a")
FLAGS = {
    ("cluster", "create"): (
        *("--enable-mtc", "--mtc-ramdisk-size=1Gi", "--mtc-gcs-bucket=b", "--mtc-toleration-key=k"),
        *("--namespace=ml", "--cpu-limit=1", "--enable-pathways", "--num-cubes=1"),
    ),
    ("cluster", "adapt"): ("--namespace=ml", "--mtc-gcs-bucket=b"),
    ("cluster", "delete"): ("--namespace=ml", "--force"),
    ("cluster", "describe"): ("--namespace=ml",),
    ("cluster", "list"): ("--namespace=ml",),
    ("cluster", "cacheimage"): ("--docker-image=i", "--cache-key=k", "--namespace=ml"),
    ("workload", "create"): ("--headless", "--scheduler=s", "--storage=s", "--namespace=ml"),
    ("workload", "delete"): (*LISTS, "--force", "--namespace=ml"),
    ("workload", "list"): (*LISTS, "--wait-for-job-completion=a", "--timeout=1", "--namespace=ml"),
}


@pytest.mark.parametrize(
    ("path", "flag"), [(path, flag) for path, flags in FLAGS.items() for flag in (*flags, *SHARED, "--quiet")]
)
def test_no_flag_is_unknown(xpk: Xpk, path: tuple[str, str], flag: str) -> None:
    done = xpk(*path, flag, "--no-such-flag")
    assert done.code == 2
    if "--no-such-flag" not in done.err:  # then the Google flag was reported first
        assert path[0] == "workload" and f"{flag.partition('=')[0]} is not supported: " in done.err


def test_googles_names_of_settings_are_accepted(xpk: Xpk) -> None:
    assert xpk("config", "set", "project-id", "my-project", "cluster-name", "dev", "zone", "us-central1-a").code == 0
    assert xpk("config", "get", "project-id").out == xpk("config", "get", "project").out == "my-project\n"
    assert xpk("config", "get", "cluster").out == "dev\n"
    done = xpk("config", "set", "send-telemetry", "true")
    assert done.code == 0 and "warning: send-telemetry has no effect: xpk has no telemetry\n" in done.err
    assert xpk("config", "get", "send-telemetry").code == 2, "it is not kept"


def test_cacheimage_is_cache_image(dev: Xpk) -> None:
    theirs, ours = (dev("cluster", name, "--cluster", "dev", "--image", "i") for name in ("cacheimage", "cache-image"))
    assert theirs == ours and "No such command" not in ours.err


def test_quiet_is_accepted_after_the_command(dev: Xpk) -> None:
    assert dev("workload", "list").err
    for words in (("--quiet", "workload", "list"), ("workload", "list", "--quiet")):
        assert dev(*words).err == ""
    dev("workload", "create", "one", "--command", "true")
    asked = dev("workload", "delete", "--all", "--quiet")
    assert asked.code == 2 and "--yes" in asked.err  # less output, but no confirmation


def test_delete_accepts_the_filters_of_list(dev: Xpk) -> None:
    for name, command in (("good-1", "true"), ("good-2", "true"), ("bad-1", "exit 3")):
        assert dev("workload", "create", name, "--command", command).code == 0
        dev("workload", "wait", name, "--timeout", "30")

    def names() -> set[str]:
        return set(dev("workload", "list", "-o", "name").out.split())

    asked = dev("workload", "delete", "--filter-by-job", "good", "--filter-by-status", "FINISHED")
    assert asked.code == 2 and "good-1, good-2" in asked.err and "--yes" in asked.err and len(names()) == 3
    both = dev("workload", "delete", "good-1", "--filter-by-job", "good")
    assert both.code == 2 and "not both" in both.err
    for flags in (("--filter-by-status", "QUEUED"), ("--filter-by-job", "else"), ("--all", "--filter-by-job", "else")):
        none = dev("workload", "delete", *flags)
        assert none.code == 0 and "no workloads on 'dev'" in none.err and len(names()) == 3
    assert dev("workload", "delete", "--filter-by-status", "failed", "--yes").code == 0
    assert names() == {"good-1", "good-2"}
    assert dev("workload", "delete", "--filter-by-job", "d-2", "--force").code == 0
    assert names() == {"good-1"}


def test_list_can_wait_like_the_wait_command(dev: Xpk) -> None:
    dev("workload", "create", "good", "--command", "true")
    assert dev("workload", "list", "--wait-for-job-completion", "good", "--timeout", "30").code == 0
    dev("workload", "create", "bad", "--command", "exit 3")
    assert dev("workload", "list", "--wait-for-job-completion=bad", "--timeout=30").code == 8
    dev("workload", "create", "slow", "--command", "sleep 60")
    assert dev("workload", "list", "--wait-for-job-completion", "slow", "--timeout", "0.3").code == 124
    assert dev("workload", "list", "--wait-for-job-completion", "none").code == 3
    alone = dev("workload", "list", "--timeout", "3")
    assert alone.code == 2 and "--wait-for-job-completion" in alone.err


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--spot",), "--spot is supported on GKE only"),
        (("--reservation=r",), "--reservation=r is supported on GKE only"),
        (("--spot", "--flex"), "--spot and --flex exclude each other"),
        (("--reservation=a,b",), "--reservation 'a,b' is neither a name nor projects/P/reservations/R"),
    ],
)
def test_capacity_options_are_rejected_where_there_is_no_choice(dev: Xpk, flags: tuple[str, ...], why: str) -> None:
    done = dev("workload", "create", "w", "--cluster", "dev", "--command", "true", *flags)
    assert done.code == 2 and why in done.err
    assert "w" not in dev("workload", "list", "--cluster", "dev", "-o", "name").out.split()


def test_supported_google_flags_take_effect(dev: Xpk) -> None:
    flags = ("--restart-on-exit-codes", "1-3,7", "--enable-debug-logs", "--label", "team=red", "--label", "a.b/c=")
    done = dev("workload", "create", "w", "--command", "true", *flags, "--scheduler", "s", "--num-nodes=4", "--dry-run")
    (jobset,) = yaml.safe_load_all(done.out)
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    rules = [rule.get("onExitCodes", {}) for rule in job["podFailurePolicy"]["rules"]]
    fatal = {code for code in range(1, 256) if code not in {1, 2, 3, 7, 42, 75, 76} and code < 127}
    assert set(rules[2]["values"]) == fatal
    for labels in (jobset["metadata"]["labels"], job["template"]["metadata"]["labels"]):
        assert {"team": "red", "a.b/c": ""}.items() <= labels.items()
    environment = {item["name"]: item.get("value") for item in job["template"]["spec"]["containers"][0]["env"]}
    assert environment["TF_CPP_MIN_LOG_LEVEL"] == environment["TPU_STDERR_LOG_LEVEL"] == "0"
    assert "schedulerName" not in job["template"]["spec"]
    assert [line.split(":")[1].strip() for line in done.err.splitlines()] == [
        "--scheduler has no effect",
        "--num-nodes has no effect",
    ]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--fatal-exit-codes", "3", "--restart-on-exit-codes", "4"), "exclude each other"),
        (("--restart-on-exit-codes", "0-3"), "--restart-on-exit-codes '0-3' is not a list of codes"),
        (("--docker-image", "a", "--base-docker-image", "b"), "--base-docker-image and --docker-image exclude"),
        (("--storage", "data"), "--storage is not supported: hosts are processes of this machine"),
        (("--label", "team"), "--label 'team' has no '='"),
        (("--service-account", "Train"), "--service-account 'Train' is not the name of a Kubernetes service account"),
        (("--label", "-x=1"), "invalid label name '-x'"),
        (("--label", "team=a b"), "invalid value 'a b' of label team"),
        (("--label", "kueue.x-k8s.io/queue-name=q"), "label kueue.x-k8s.io/queue-name is reserved"),
    ],
)
def test_flags_are_checked(dev: Xpk, flags: tuple[str, ...], says: str) -> None:
    done = dev("workload", "create", "w", "--command", "true", *flags)
    assert done.code == 2 and says in done.err


def test_a_program_after_dashes_gets_a_hint_to_use_command(dev: Xpk) -> None:
    done = dev("workload", "create", "w", "--", "python", "train.py", "--lr", "1")
    assert done.code == 2 and "--command 'python train.py --lr 1'" in done.err


def test_a_dry_run_warns_about_problems_that_reject_a_run(dev: Xpk) -> None:
    create = ("workload", "create", "w", "--command", "true", "--num-slices", "3")
    assert dev(*create).code == 5
    done = dev(*create, "--dry-run")
    assert (
        done.code == 0
        and "warning: without --dry-run, this command would fail: 3 slices" in done.err
        and "kind: JobSet" in done.out
    )


def test_delete_shows_what_it_would_delete(dev: Xpk) -> None:
    assert dev("workload", "create", "w", "--command", "true", "--wait").code == 0
    assert dev("workload", "delete", "w", "--dry-run").out == "workload 'w' would be deleted\n"
    assert dev("workload", "delete", "--all", "--dry-run").out == "workload 'w' would be deleted\n"
    none = dev("workload", "delete", "v", "--dry-run")
    assert none.code == 0 and none.out == "" and "workload 'v' not found" in none.err
    assert dev("workload", "list", "-o", "name").out == "w\n"
