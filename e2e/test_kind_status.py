"""`xpk workload status` shows why, on a real cluster: queued, without an image, without a node, restarted.

eval "$(e2e/environment/up)" && .venv/bin/python -m pytest e2e/test_kind_status.py --timeout 900
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from e2e.kind_cluster import SLICES, XPK, Place, docker
from tests import waiting

SECONDS = 180.0
FOREVER = 'trap "exit 143" TERM; sleep 900 & wait'
FAILS_ONCE = (
    'if [ "$XPK_RESTART_ATTEMPT" = 0 ] && [ "$MEGASCALE_SLICE_ID$TPU_WORKER_ID" = 10 ]; then sleep 3; exit 3; fi; '
    + FOREVER
)
NO_IMAGE = "registry.invalid/team/nope:1"
POD = """
          spec:
            restartPolicy: Never
            nodeSelector:
              cloud.google.com/gke-tpu-accelerator: tpu-v5-lite-podslice
              cloud.google.com/gke-tpu-topology: 2x4
            tolerations: [{key: google.com/tpu, operator: Exists}]
            containers:
              - {name: jax-tpu, image: registry.invalid/team/theirs, resources: {limits: {google.com/tpu: 4}}}
"""
GOOGLES = f"""
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: theirs
  labels: {{kueue.x-k8s.io/queue-name: multislice-queue, xpk.google.com/workload: theirs}}
  annotations: {{alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool}}
spec:
  failurePolicy: {{maxRestarts: 0, rules: [{{action: FailJobSet, onJobFailureReasons: [PodFailurePolicy]}}]}}
  replicatedJobs:
  - name: slice-job
    replicas: 1
    template:
      spec:
        parallelism: 2
        completions: 2
        backoffLimit: 0
        template:
          metadata: {{labels: {{xpk.google.com/workload: theirs}}}}{POD}
"""
PLAIN = f"""
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {{name: plain}}
spec:
  replicatedJobs:
  - name: workers
    template:
      spec:
        template:{POD}
"""


def create(place: Place, name: str, *options: str) -> None:
    """Create a workload."""
    place.xpk("workload", "create", name, "--cluster", place.cluster, *options)


def status(place: Place, name: str) -> dict[str, Any]:
    """Return a workload's status as fields."""
    asked = ("workload", "status", name, "--cluster", place.cluster, "-o", "json")
    run: dict[str, Any] = json.loads(place.xpk(*asked).stdout)
    return run


def text(place: Place, name: str) -> str:
    """A workload's status, as people read it."""
    return place.xpk("workload", "status", name, "--cluster", place.cluster).stdout


def until(place: Place, name: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return a workload's status as text."""

    def fulfilled() -> dict[str, Any]:
        return run if holds(run := status(place, name)) else {}

    return waiting.until(
        fulfilled, seconds=SECONDS, every=2.0, report=lambda: f"{status(place, name)}\n{place.what_is_there()}"
    )


@contextmanager
def ending(place: Place, *workloads: str) -> Iterator[None]:
    """Delete these workloads afterwards."""
    try:
        yield
    finally:
        for name in workloads:
            gone = ("--ignore-not-found", "--yes", "--grace-period", "0")
            place.xpk("workload", "delete", name, "--cluster", place.cluster, *gone)


def test_status_names_what_a_pending_workload_waits_for(place: Place) -> None:
    with ending(place, "small", "urgent", "big"):
        create(place, "big", "--num-slices", str(SLICES), "--priority", "very-high", "--command", FOREVER)
        until(place, "big", lambda run: run["phase"] == "Running")
        create(place, "small", "--num-slices", str(SLICES), "--command", FOREVER)
        create(place, "urgent", "--priority", "high", "--command", FOREVER)
        until(place, "urgent", lambda run: run["position"] == 1)
        run = until(place, "small", lambda run: run["position"] == 2 and run["conditions"])
        assert run["phase"] == "Queued" and run["ahead"] == ["urgent"]
        (quota,) = run["quota"]
        assert (quota["flavor"], quota["quota"], quota["used"], quota["needed"]) == ("v5litepod-8", 16, 16, 16)
        assert quota["holders"] == [{"workload": "big", "amount": 16}]
        reserved = next(item for item in run["conditions"] if item["type"] == "QuotaReserved")
        assert (reserved["status"], reserved["reason"]) == ("False", "Pending")
        shown = text(place, "small")
        assert "behind urgent" in shown
        assert "v5litepod-8: 16 of 16 google.com/tpu in use; 16 needed, 0 free; held by big (16)" in shown
        assert shown.splitlines()[-1] == f"  next       xpk workload list --cluster {place.cluster}"


def test_an_image_that_cannot_be_pulled_is_named(place: Place) -> None:
    with ending(place, "imageless"):
        create(place, "imageless", "--image", NO_IMAGE, "--command", "true")
        run = until(place, "imageless", lambda run: run["troubles"] and len(run["troubles"][0]["hosts"]) == 2)
        (trouble,) = run["troubles"]
        assert (run["phase"], trouble["reason"], trouble["image"]) == ("Starting", "ErrImagePull", NO_IMAGE)
        assert "s0/h0 and 1 more cannot start: ErrImagePull: registry.invalid/team/nope:1" in run["reason"]
        assert run["next"] == f"xpk workload delete imageless --cluster {place.cluster}"


def test_unschedulable_hosts_are_explained(place: Place) -> None:
    nodes = place.kubectl("get", "nodes", "-l", "cloud.google.com/gke-nodepool", "-o", "name").split()
    with ending(place, "homeless"):
        place.kubectl("cordon", *nodes)
        try:
            create(place, "homeless", "--command", "true")
            run = until(place, "homeless", lambda run: bool(run["troubles"]))
            assert run["troubles"][0]["reason"] == "Unschedulable"
            assert "node(s) were unschedulable" in run["reason"] and "preemption" not in run["reason"]
            assert run["next"] == f"xpk cluster describe {place.cluster}"
        finally:
            place.kubectl("uncordon", *nodes)


def test_a_restart_names_its_host_and_exit_code_after_the_pod_is_deleted(place: Place) -> None:
    with ending(place, "phoenix"):
        options = ("--num-slices", "2", "--max-restarts", "2", "--no-restart-in-place")
        create(place, "phoenix", *options, "--command", FAILS_ONCE)
        run = until(place, "phoenix", lambda run: run["restarts"] == 1 and run["phase"] == "Running")
        (restart,) = run["restart_history"]
        assert (restart["slice"], restart["host"], restart["exit_code"], restart["attempt"]) == (1, 0, 3, 0)
        assert restart["cause"] == "host s1/h0 ended with exit code 3"
        assert run["restarts_counted"] == 1 and "host s1/h0 ended with exit code 3" in text(place, "phoenix")


@pytest.mark.extended
def test_a_host_on_an_unreachable_node_is_lost(place: Place) -> None:
    with ending(place, "nodeless"):
        create(place, "nodeless", "--max-restarts", "1", "--command", FOREVER)
        running = until(place, "nodeless", lambda run: run["phase"] == "Running")
        node = running["hosts"][0]["node"]
        docker("pause", node)
        try:
            run = until(place, "nodeless", lambda run: bool(run["troubles"]))
            assert run["troubles"][0]["reason"] == "NodeLost" and run["phase"] == "Restarting"
            assert f"node {node} does not answer" in run["reason"]
        finally:
            docker("unpause", node)


def test_jobsets_of_other_tools_are_shown_but_not_changed(place: Place, tmp_path: Path) -> None:
    files = {"theirs": GOOGLES, "plain": PLAIN}
    for name, manifest in files.items():
        (tmp_path / f"{name}.yaml").write_text(manifest)
    try:
        place.kubectl("apply", "-f", str(tmp_path))
        image = "registry.invalid/team/theirs"
        run = until(place, "theirs", lambda run: any(item["image"] == image for item in run["troubles"]))
        assert (run["accelerator_type"], run["maker"], run["num_hosts"]) == ("v5litepod-8", "xpk", 2)
        plain = until(place, "plain", lambda run: run["phase"] == "Starting")
        assert (plain["maker"], plain["queue"], plain["num_hosts"]) == ("kubectl", None, 1)
        at = ("--cluster", place.cluster)
        listed = json.loads(place.xpk("workload", "list", *at, "-o", "json").stdout)
        assert {item["name"] for item in listed} >= set(files)
        for name in files:
            assert f"{name}: " in place.xpk("workload", "describe", name, *at).stdout
        assert "created by kubectl" in place.xpk("workload", "create", "plain", *at, "--command", "true", code=4).stderr
        assert "created by kubectl" in place.xpk("workload", "delete", "plain", *at, code=4).stderr
    finally:
        place.kubectl("delete", "jobset", *files, "--ignore-not-found")


def test_interrupting_wait_keeps_the_workload(place: Place) -> None:
    with ending(place, "waited"):
        words = ("workload", "create", "waited", "--cluster", place.cluster, "--command", FOREVER, "--wait")
        code, words_printed = interrupted(place, words, "waited: Running")
        assert (
            code == 130
            and "stopped waiting" in words_printed
            and "xpk workload wait waited" in words_printed
            and "Traceback" not in words_printed
        )
        assert status(place, "waited")["phase"] == "Running"


@pytest.mark.extended
def test_interrupting_create_cluster_leaves_nothing(place: Place) -> None:
    name = f"{place.cluster}-cut"
    words = ("cluster", "create", name, "--provider", "kind", "--tpu-type", "v5litepod-8")
    code, words_printed = interrupted(place, words, f"cluster '{name}'", seconds=8)
    assert code == 130 and "Traceback" not in words_printed
    label = f"label=io.x-k8s.kind.cluster={name}"
    assert docker("ps", "--all", "--quiet", "--filter", label) == ""
    assert f"xpk-{name}" not in docker("network", "ls", "--format", "{{.Name}}").split()
    assert name not in place.xpk("cluster", "list").stdout


def interrupted(place: Place, words: tuple[str, ...], when: str, *, seconds: float = 0) -> tuple[int, str]:
    """Run a command on a terminal and press Ctrl-C some time after an output; return its outcome and output."""
    with subprocess.Popen(
        [*XPK, *words],
        env=place.lab.environ,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore it
    ) as running:
        assert running.stderr
        words_printed = ""
        for line in running.stderr:
            words_printed += line
            if when in line:
                break
        time.sleep(seconds)
        # A terminal sends it to all processes in its foreground.
        os.killpg(running.pid, signal.SIGINT)
        try:
            return running.wait(timeout=SECONDS), words_printed + running.stderr.read()
        except subprocess.TimeoutExpired:
            running.kill()
            pytest.fail(f"{words} did not end")
