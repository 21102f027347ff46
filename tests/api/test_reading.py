"""Reads with several responses of an API server: paginated lists and logs of other tools' pods."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from tests.api.scripted_server import Answer, Script, Slow, kubeconfig, serving
from xpk.api.base import LogLine
from xpk.api.kubernetes import KubernetesApi
from xpk.api.limits import Limits
from xpk.api.paths import container_of
from xpk.model.errors import NotFoundError, UnavailableError, UsageError
from xpk.testing import FakeRunner

PODS = "/api/v1/namespaces/default/pods"
GONE: Answer = (410, {"kind": "Status", "message": "The provided continue parameter is too old"})


def pod(*containers: str, **annotations: str) -> dict[str, Any]:
    """Return a running pod with these containers."""
    meta = {"name": "p", "namespace": "default", "annotations": annotations}
    return {
        "metadata": meta,
        "spec": {"containers": [{"name": name} for name in containers]},
        "status": {"phase": "Running"},
    }


def page(*names: str, more: str = "") -> Answer:
    """Return a page of a list and its continue token."""
    items = [{"metadata": {"name": name, "uid": name, "resourceVersion": "1"}} for name in names]
    return 200, {"metadata": {"resourceVersion": "1", "continue": more}, "items": items}


def api(folder: Path, server: str, runner: FakeRunner | None = None) -> KubernetesApi:
    """Return a client that does not pause between attempts."""
    return KubernetesApi(kubeconfig=kubeconfig(folder, server), pause=lambda seconds: None, runner=runner)


def test_an_expired_list_is_restarted(tmp_path: Path) -> None:
    """etcd is compacted every five minutes, so slow reads of long lists expire."""
    script = Script({"*": [page("a", more="x"), GONE, page("a", more="y"), page("b")]})
    with serving(script) as server:
        assert [obj["metadata"]["name"] for obj in api(tmp_path, server).list("Pod")] == ["a", "b"]


def test_a_list_keeps_only_the_requested_fields(tmp_path: Path) -> None:
    script = Script({"*": [page("a", more="x"), page("b")]})
    with serving(script) as server:
        kept = api(tmp_path, server).list("Pod", keep=lambda pod: {"metadata": {"name": pod["metadata"]["name"]}})
    assert [(pod["metadata"]["name"], pod["metadata"]["uid"], pod["kind"]) for pod in kept] == [
        ("a", "", "Pod"),
        ("b", "", "Pod"),
    ]


def test_an_expired_list_of_a_watch_is_restarted(tmp_path: Path) -> None:
    script = Script({"*": [page("a", more="x"), GONE, page("a"), (200, {"type": "ERROR", "object": {}})]})
    with serving(script) as server:
        changes = api(tmp_path, server).watch("Pod", timeout=5)
        change, obj = next(changes)
    assert (change, obj["metadata"]["name"]) == ("ADDED", "a")


def test_a_relisted_watch_repeats_no_known_objects(tmp_path: Path) -> None:
    events = [{"type": "DELETED", "object": page("a")[1]["items"][0]}, {"type": "ERROR", "object": {"code": 410}}]
    told: Answer = (200, "".join(json.dumps(each) + "\n" for each in events))
    script = Script({"*": [page("a", "b"), told, page("b", "c")]})
    with serving(script) as server:
        changes = api(tmp_path, server).watch("Pod", timeout=5)
        seen = [(change, obj["metadata"]["name"]) for change, obj in (next(changes) for _ in range(4))]
    assert seen == [("ADDED", "a"), ("ADDED", "b"), ("DELETED", "a"), ("ADDED", "c")]


def test_a_list_that_expires_repeatedly_fails(tmp_path: Path) -> None:
    script = Script({"*": [answer for _ in range(20) for answer in (page("a", more="x"), GONE)]})
    with serving(script) as server, pytest.raises(UnavailableError, match="the list of pods expired") as error:
        api(tmp_path, server).list("Pod")
    assert error.value.hint and len(script.asked) < 20


@pytest.mark.parametrize(
    ("made", "container"),
    [
        (pod("sidecar", "host"), "host"),
        (pod("jax-tpu"), "jax-tpu"),
        (pod("proxy", "main", **{"kubectl.kubernetes.io/default-container": "main"}), "main"),
        (pod("proxy", "main", **{"kubectl.kubernetes.io/default-container": "gone"}), "proxy"),
        ({"metadata": {}}, "host"),
    ],
)
def test_the_container_of_a_pod(made: dict[str, Any], container: str) -> None:
    assert container_of(made) == container


def test_a_deletion_whose_response_was_lost_counts_as_done(tmp_path: Path) -> None:
    gone: Answer = (404, {"kind": "Status", "message": 'pods "p" not found'})
    with serving(Script({"*": [None, gone]})) as server:
        api(tmp_path, server).delete("Pod", "p")
    with serving(Script({"*": [gone]})) as server, pytest.raises(NotFoundError):
        api(tmp_path, server).delete("Pod", "p")


def test_logs_and_exec_use_the_only_container(tmp_path: Path) -> None:
    script = Script({"*": [(200, "2026-01-01T00:00:00.1Z hello\n")]})
    runner = FakeRunner({"kubectl": 0})
    with serving(script) as server:
        client = api(tmp_path, server, runner)
        assert [line.text for line in client.logs(pod("jax-tpu"))] == ["hello"]
        assert client.exec(pod("jax-tpu"), ["ls"]) == 0
    assert "container=jax-tpu" in script.queries[0]
    assert "--container=jax-tpu" in runner.calls[0]


def test_a_followed_log_waits_for_its_container_to_start(tmp_path: Path) -> None:
    """A host of a workload that is evicted before it starts must not end the logs of all others."""
    waits = 'container "host" in pod "p" is waiting to start: ContainerCreating'
    script = Script(
        {
            f"GET {PODS}/p/log": [
                (400, {"kind": "Status", "message": waits}),
                (200, "2026-01-01T00:00:00.1Z hello\n"),
            ],
            f"GET {PODS}/p": [(200, pod("host")), (200, {**pod("host"), "status": {"phase": "Succeeded"}})],
        }
    )
    with serving(script) as server:
        client = KubernetesApi(kubeconfig=kubeconfig(tmp_path, server), limits=Limits(quiet_seconds=0.2))
        assert [line.text for line in client.logs(pod("host"), follow=True)] == ["hello"]


def test_followed_logs_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """Hundreds of logs start at the same time, and are requested again after an outage of a server or a node."""
    ended = {**pod("host"), "status": {"phase": "Succeeded"}}
    script = Script({f"GET {PODS}/p/log": [(200, "2026-01-01T00:00:00.1Z hello\n")], f"GET {PODS}/p": [(200, ended)]})
    pauses: list[float] = []
    with serving(script) as server:
        client = KubernetesApi(kubeconfig=kubeconfig(tmp_path, server), pause=pauses.append)
        for _ in range(128):
            assert [line.text for line in client.logs(pod("host"), follow=True)] == ["hello"]
    assert len(script.asked) == 3 * 128 and max(pauses) < 1.0


def test_a_message_of_the_kubelet_does_not_end_a_log(tmp_path: Path) -> None:
    """The kubelet writes messages between the container's lines, without a timestamp, on every request."""
    words = "failed to create fsnotify watcher: too many open files"
    first, second = "2026-01-01T00:00:00.1Z one\n", "2026-01-01T00:00:01.1Z two\n"
    script = Script(
        {
            f"GET {PODS}/p/log": [(200, first + words), (200, f"{first}{words}\n"), (200, f"{first}{words}\n{second}")],
            f"GET {PODS}/p": [(200, pod("host")), (200, {**pod("host"), "status": {"phase": "Succeeded"}})],
        }
    )
    with serving(script) as server:
        assert [line.text for line in api(tmp_path, server).logs(pod("host"), follow=True)] == ["one", words, "two"]


def test_a_truncated_line_is_read_again_completely(tmp_path: Path) -> None:
    first, second = "2026-01-01T00:00:00.1Z one\n", "2026-01-01T00:00:01.1Z two"
    script = Script(
        {
            f"GET {PODS}/p/log": [(200, first + second[:-1]), (200, first + second[:9]), (200, first + second)],
            f"GET {PODS}/p": [(200, pod("host")), (200, {**pod("host"), "status": {"phase": "Succeeded"}})],
        }
    )
    with serving(script) as server:
        assert [line.text for line in api(tmp_path, server).logs(pod("host"), follow=True)] == ["one", "two"]


def test_a_silently_dropped_connection_is_reopened(tmp_path: Path) -> None:
    script = Script(
        {
            f"GET {PODS}/p/log": [(200, Slow(1.0)), (200, "2026-01-01T00:00:00.1Z hello\n")],
            f"GET {PODS}/p": [(200, pod("host")), (200, {**pod("host"), "status": {"phase": "Succeeded"}})],
        }
    )
    with serving(script) as server:
        client = KubernetesApi(kubeconfig=kubeconfig(tmp_path, server), limits=Limits(quiet_seconds=0.2))
        assert [line.text for line in client.logs(pod("host"), follow=True)] == ["hello"]


@pytest.mark.parametrize("stamp", ["2026-01-01T08:00:05.123456789+08:00", "2026-01-01T00:00:05.123456789Z"])
def test_times_of_nodes_in_any_time_zone_are_compared_in_utc(stamp: str, tmp_path: Path) -> None:
    script = Script(
        {
            f"GET {PODS}/p/log": [(200, f"{stamp} one\n"), (200, "2026-01-01T08:00:06+08:00 two\n")],
            f"GET {PODS}/p": [(200, {**pod("host"), "status": {"phase": "Succeeded"}})],
        }
    )
    with serving(script) as server:
        lines = list(api(tmp_path, server).logs(pod("host"), follow=True))
    times = [datetime(2026, 1, 1, 0, 0, 5, 123456, UTC), datetime(2026, 1, 1, 0, 0, 6, 0, UTC)]
    assert lines == [LogLine(times[0], "one"), LogLine(times[1], "two")]
    again = parse_qs(next(query for query in script.queries if "sinceTime" in query))["sinceTime"]
    assert again == ["2026-01-01T00:00:05.123456+00:00"]


@pytest.mark.parametrize("line", ["20260101 none", "0001-01-01T00:00:00+08:00 zero", "9999-12-31T23:59:59-01:00 x"])
def test_a_line_without_a_time_is_a_message_of_the_kubelet(line: str, tmp_path: Path) -> None:
    with serving(Script({"*": [(200, f"{line}\n")]})) as server:
        (only,) = api(tmp_path, server).logs(pod("host"))
    assert only.text == line


def test_other_errors_of_a_log_are_reported(tmp_path: Path) -> None:
    script = Script({"*": [(400, {"kind": "Status", "message": "container host is not valid for pod p"})]})
    with serving(script) as server, pytest.raises(UsageError, match="is not valid for pod p") as error:
        list(api(tmp_path, server).logs(pod("host"), follow=True))
    assert "--dry-run" not in error.value.hint, "nothing was sent"
