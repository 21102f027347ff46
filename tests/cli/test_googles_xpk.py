"""Fingers that know Google's xpk: its flags and commands work, or are refused by name with what to use instead."""

from __future__ import annotations

import pytest

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
    if "--no-such-flag" not in done.err:  # then the one of theirs was told of first
        assert path[0] == "workload" and f"{flag.partition('=')[0]} is not supported: " in done.err


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (("storage", "attach", "data"), "xpk workload create --mount source="),
        (("inspector", "--cluster", "c"), "xpk workload status"),
        (("info", "--cluster", "c"), "xpk queue list"),
        (("version",), "xpk --version"),
        (("workload", "create-pathways", "--headless"), "xpk workload create"),
    ],
)
def test_no_command_is_unknown(xpk: Xpk, words: tuple[str, ...], instead: str) -> None:
    done = xpk(*words)
    (line, _) = done.err.splitlines()
    assert done.code == 2 and line.startswith("error: `xpk ") and "` is not supported: " in line and instead in line


def test_their_names_of_settings_are_taken(xpk: Xpk) -> None:
    assert xpk("config", "set", "project-id", "my-project", "cluster-name", "dev", "zone", "us-central1-a").code == 0
    assert xpk("config", "get", "project-id").out == xpk("config", "get", "project").out == "my-project\n"
    assert xpk("config", "get", "cluster").out == "dev\n"
    refused = xpk("config", "set", "send-telemetry", "true")
    assert refused.code == 2 and "no telemetry" in refused.err


def test_cacheimage_is_cache_image(dev: Xpk) -> None:
    theirs, ours = (dev("cluster", name, "--cluster", "dev", "--image", "i") for name in ("cacheimage", "cache-image"))
    assert theirs == ours and "No such command" not in ours.err


def test_quiet_after_the_command_is_quiet_before_it(dev: Xpk) -> None:
    assert dev("workload", "list").err
    for words in (("--quiet", "workload", "list"), ("workload", "list", "--quiet")):
        assert dev(*words).err == ""
    dev("workload", "create", "one", "--command", "true")
    asked = dev("workload", "delete", "--all", "--quiet")
    assert asked.code == 2 and "--yes" in asked.err  # less is printed, but nothing is agreed to


def test_delete_takes_the_filters_of_list(dev: Xpk) -> None:
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


def test_list_waits_as_wait_does(dev: Xpk) -> None:
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
        (("--spot",), "--spot: the capacity of slices is known of GKE; others have none to choose"),
        (("--reservation=r",), "--reservation=r: the capacity of slices is known of GKE"),
        (("--spot", "--flex"), "--spot and --flex exclude each other"),
        (("--reservation=a,b",), "--reservation 'a,b' is neither a name nor projects/P/reservations/R"),
    ],
)
def test_a_workloads_capacity_is_refused_where_there_is_none_to_choose(
    dev: Xpk, flags: tuple[str, ...], why: str
) -> None:
    done = dev("workload", "create", "w", "--cluster", "dev", "--command", "true", *flags)
    assert done.code == 2 and why in done.err
    assert "w" not in dev("workload", "list", "--cluster", "dev", "-o", "name").out.split()
