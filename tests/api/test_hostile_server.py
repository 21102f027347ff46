"""Servers with invalid, missing or too large responses: a clear error in time, and few requests."""

from __future__ import annotations

import gzip
import json
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from tests.api import hostile
from tests.api.hostile import JOBSET, POD, event, has, jobset, listed, logs, sends, serving, status, watches
from tests.api.scripted_server import kubeconfig
from xpk.api.kubernetes import KubernetesApi
from xpk.api.limits import Limits
from xpk.api.timing import time_limit
from xpk.jobs.lifecycle import wait
from xpk.jobs.status.reader import find, find_all
from xpk.jobs.termination import await_end
from xpk.model.errors import (
    AuthorizationError,
    ConflictError,
    MissingToolError,
    TimedOutError,
    UnavailableError,
    XpkError,
)
from xpk.model.status import Phase
from xpk.model.terminal import printable

Mode = Callable[[hostile.Request], None]
UNANSWERED = (
    'failed calling webhook "mjobset.kb.io": failed to call webhook: Post '
    '"https://jobset-webhook-service.jobset-system.svc:443/mutate?timeout=10s": dial tcp: connection refused'
)
MANY = 60.0  # seconds of pauses after which a test ends


class Enough(Exception):
    """The client has paused for longer than the test allows."""


class Pauses:
    """A `pause` that only counts the seconds."""

    def __init__(self, most: float = MANY) -> None:
        self.total, self.most = 0.0, most

    def __call__(self, seconds: float) -> None:
        self.total += seconds
        if self.total > self.most:
            raise Enough


def api(
    folder: Path, server: str, pause: Callable[[float], None] = lambda seconds: None, **limits: Any
) -> KubernetesApi:
    config = kubeconfig(folder, server, token="SECRET")
    return KubernetesApi(kubeconfig=config, pause=pause, limits=Limits(**limits))


ANYWHERE: dict[str, tuple[Mode, str]] = {
    "cut": (hostile.cut, "IncompleteRead"),
    "cut-unnoticed": (hostile.cut_unnoticed, "not JSON"),
    "429": (sends(429, status(429, "slow down")), "slow down"),
    "429-page": (sends(429, b"<html>no</html>"), "a web page"),
    "429-retry-after": (sends(429, status(429, "slow down"), Retry_After="2"), "slow down"),
    "500": (sends(500, status(500)), "boom"),
    "500-empty": (sends(500, b""), "HTTP 500"),
    "500-odd": (sends(500, {"message": ["x"], "details": "x"}), "x"),
    "409-odd": (sends(409, {"message": "x", "details": {"causes": ["y", {"reason": {}}]}}), "x"),
    # Random bytes may begin with "<", as a web page does.
    "503-noise": (sends(503, b"#" + hostile.noise()), "HTTP 503"),
    "redirect": (sends(302, b"", Location="/other"), "HTTP 302"),
    "redirect-elsewhere": (sends(302, b"", Location="http://127.0.0.1:1/steal"), "HTTP 302"),
    "redirect-loop": (sends(307, b"", Location="/"), "HTTP 307"),
    "noise": (sends(200, b"#" + hostile.noise()), "not JSON"),
    "not-an-object": (sends(200, b"[1,2,3]"), "not JSON"),
    "not-a-number": (sends(200, b'{"metadata": NaN}'), "not JSON"),
    "deep": (sends(200, b"[" * 100_000), "not JSON"),
    "page": (sends(200, b"<html><title>Log \x1b[31min\x1b]0;x\x07</title></html>"), r"a web page, 'Log in\x1b]0;x"),
    "empty-object": (sends(200, b"{}"), "without"),
    "empty": (sends(200, b""), "without"),
    "nulls": (sends(200, {"metadata": None, "spec": None, "status": None, "items": None}), "without"),
    "gzip-that-is-none": (sends(200, JOBSET, Content_Encoding="gzip"), "does not have the encoding"),
    "no-status": (hostile.raw(b"HTTP/1.1 abc\r\n\r\n"), "no answer from"),
    "no-http": (hostile.raw(b"SSH-2.0-OpenSSH_9\r\n"), "no answer from"),
    "reset": (hostile.reset, "no answer from"),
    "huge-header": (hostile.raw(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000 + b"\r\n\r\n"), "no answer from"),
    "401": (sends(401, status(401, "Unauthorized \x1b[31m\u202e")), "invalid credentials"),
    "huge-message": (sends(500, status(500, "x" * 100_000)), "100000 characters"),
}  # fmt: skip


@pytest.mark.parametrize("name", ANYWHERE)
@pytest.mark.parametrize("asks", ["status", "list"])
def test_every_command_handles_invalid_responses(tmp_path: Path, name: str, asks: str) -> None:
    mode, tells = ANYWHERE[name]
    pauses = Pauses()
    begun = time.monotonic()
    with serving(mode) as (server, seen):
        client = api(tmp_path, server, pauses)
        with pytest.raises(XpkError) as error:
            if asks == "status":
                find(client, "w")
            else:
                find_all(client)
    assert tells in error.value.message and error.value.hint, error.value.message
    assert printable(error.value.message) == error.value.message and len(error.value.message) < 3000
    assert "SECRET" not in error.value.message
    assert len(seen) <= 6 and time.monotonic() - begun < 10


LISTS: dict[str, tuple[Mode, str]] = {
    "no-metadata": (sends(200, {"items": []}), "a list of jobsets without metadata"),
    "no-items": (sends(200, {"metadata": {}}), "a list of jobsets without items"),
    "items-are-text": (sends(200, {"metadata": {}, "items": "x"}), "a list of jobsets without items"),
    "the-same-page-again": (sends(200, listed(more="same")), "whose next page is the same again"),
}


@pytest.mark.parametrize("name", LISTS)
def test_an_invalid_list_is_reported(tmp_path: Path, name: str) -> None:
    mode, tells = LISTS[name]
    with serving(mode) as (server, seen), pytest.raises(XpkError, match=tells) as error:
        find_all(api(tmp_path, server))
    assert server in error.value.message and error.value.hint and len(seen) <= 2


def test_an_endless_list_is_aborted(tmp_path: Path) -> None:
    pages = iter(range(10**9))

    def mode(request: hostile.Request) -> None:
        request.send(200, listed(more=str(next(pages))))

    with serving(mode) as (server, seen), pytest.raises(Enough):
        api(tmp_path, server, Pauses(10), read_burst=10).list("Pod")
    assert len(seen) < 10 + 2 * 10 + 5, "at most two per second after the first ten"


ODD: dict[str, Mode] = {
    "null-items": has(workloads=[None]),
    "text-items": has(pods=["x", POD], events=[7], clusterqueues=[[]]),
    "null-metadata": has(pods=[{"metadata": None}, POD], workloads=[{"metadata": {}}]),
    "odd-labels": has(pods=[{**POD, "metadata": {**POD["metadata"], "uid": "p2", "labels": ["x"]}}, POD]),
    "odd-conditions": has(workloads=[{"metadata": {"name": "x"}, "status": {"conditions": "x"}}]),
    "odd-owners": has(workloads=[{"metadata": {"name": "x", "ownerReferences": [7, {"kind": 1}]}}]),
    "odd-containers": has(pods=[{**POD, "status": {"phase": "Running", "containerStatuses": {"a": 1}}}]),
    "odd-events": has(events=[{"metadata": {"name": "e"}, "involvedObject": "x", "count": "many", "series": 1}]),
    "odd-queues": has(localqueues=[{"metadata": {"name": "q"}, "spec": 5}]),
    "empty-queues": has(clusterqueues=[{"metadata": {"name": "q"}}]),
    "odd-quantity": has(clusterqueues=[{"metadata": {"name": "q"}, "spec": {"resourceGroups": [{"flavors": [None]}]}}]),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_an_invalid_object_of_another_tool_does_not_hide_a_workload(tmp_path: Path, name: str) -> None:
    with serving(ODD[name]) as (server, _):
        client = api(tmp_path, server)
        assert find(client, "w").phase is Phase.RUNNING
        assert [item.name for item in find_all(client)] == ["w"]


@pytest.mark.parametrize(
    ("odd", "phase"),
    [
        (jobset(spec__replicatedJobs="x", status={"restarts": "many"}), Phase.UNKNOWN),
        (jobset(spec={}, status={}), Phase.UNKNOWN),
        (jobset(spec=None, status=None), Phase.UNKNOWN),
        (jobset(remove="spec"), Phase.UNKNOWN),
        (jobset(spec__replicatedJobs=[{"name": "slice-job"}]), Phase.UNKNOWN),
        (jobset(spec__replicatedJobs=[None, 3]), Phase.UNKNOWN),
        (jobset(metadata__creationTimestamp="yesterday"), Phase.RUNNING),
        (jobset(metadata__labels={"a": 1}, metadata__annotations="x"), Phase.RUNNING),
        (jobset(status__conditions=[{"type": "Failed", "status": "True", "message": {}}, "x"]), Phase.FAILED),
        (jobset(status__restarts=10**400), Phase.RUNNING),
        (jobset(status__restarts=2**31), Phase.RUNNING),
    ],
)
def test_an_invalid_workload_is_listed_with_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, odd: dict[str, Any], phase: Phase
) -> None:
    other = jobset(metadata__name="good", metadata__uid="u2")
    with serving(has(jobset=odd, jobsets=[odd, other])) as (server, _):
        client = api(tmp_path, server)
        assert find(client, "w").phase is phase
        assert {item.name: item.phase for item in find_all(client)} == {"w": phase, "good": Phase.STARTING}
    assert all(record.levelno == logging.WARNING for record in caplog.records)


def test_an_invalid_field_is_reported_and_omitted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    odd = [jobset(metadata__name=f"w{index}", status={"restarts": "\x1b[31m"}) for index in range(9)]
    with serving(has(jobsets=odd)) as (server, _):
        assert len(api(tmp_path, server).list("JobSet")) == 9
    first, *_, last = [record.getMessage() for record in caplog.records]
    assert "JobSet 'w0': status.restarts" in first and server in first and "\x1b" not in first
    assert "6 more malformed objects" in last and len(caplog.records) == 4


WATCHES: dict[str, tuple[Mode, str]] = {
    "ends-at-once": (watches(b""), ""),
    "error-500": (watches(event("ERROR", status(500))), ""),
    "error-410": (watches(event("ERROR", status(410, "too old"))), ""),
    "error-odd": (watches(event("ERROR", "x")), ""),
    "410": (watches(b'{"message": "too old"}', 410), ""),
    "503": (watches(b'{"message": "busy"}', 503), ""),
    "changes-that-end-at-once": (watches(event("MODIFIED", JOBSET)), ""),
    "cut": (hostile.cut_watch, ""),
    "garbage": (watches(b"this is not json\n"), "not JSON"),
    "not-utf-8": (watches(event("MODIFIED", JOBSET)[:-2] + b"\xff\x17\n"), "not JSON"),
    "no-metadata": (watches(b'{"type":"MODIFIED","object":{}}\n'), "an event of jobsets without an object"),
    "no-type": (watches(b'{"object":{}}\n'), "an event of jobsets without an object"),
    "a-list": (watches(b"[1,2]\n"), "not JSON"),
    "null": (watches(b"null\n"), "not JSON"),
    "page": (watches(b"<html><title>Proxy login</title></html>\n"), "a web page, 'Proxy login'"),
    "403": (watches(b'{"message": "forbidden"}', 403), "permission denied"),
}


@pytest.mark.parametrize("name", WATCHES)
def test_a_failed_watch_is_restarted_with_backoff_or_ends_with_an_error(tmp_path: Path, name: str) -> None:
    mode, tells = WATCHES[name]
    pauses = Pauses()
    with serving(mode) as (server, seen):
        client = api(tmp_path, server, pauses)
        with pytest.raises(XpkError if tells else Enough) as error:
            for _ in client.watch("JobSet"):
                pass
    assert len(seen) <= 20, "few requests per minute"
    assert not tells or (isinstance(error.value, XpkError) and tells in error.value.message and error.value.hint)


def test_watches_that_end_early_do_not_reset_the_backoff(tmp_path: Path) -> None:
    """A waiting command starts a watch every few seconds."""
    pauses = Pauses()
    with serving(watches(b"")) as (server, seen):
        client = api(tmp_path, server, pauses)
        with pytest.raises(Enough):
            while True:
                changes = client.watch("JobSet", timeout=5)
                for _ in range(3):
                    next(changes, None)
    assert len(seen) <= 30


@pytest.mark.parametrize("name", ["ends-at-once", "error-500", "error-410"])
@pytest.mark.parametrize("command", ["wait", "delete"])
def test_waiting_commands_poll_rarely_and_end_in_time(tmp_path: Path, name: str, command: str) -> None:
    begun = time.monotonic()
    with serving(WATCHES[name][0]) as (server, seen):
        client = api(tmp_path, server, time.sleep)
        with pytest.raises(
            TimedOutError,
            match="timed out after 1 s: workload 'w' is Running" if command == "wait" else "1 host of 'w'",
        ):
            if command == "wait":
                wait(client, "w", "default", timeout=1.0)
            else:
                await_end(client, "w", "default", timeout=1.0)
    assert len(seen) < 30 and time.monotonic() - begun < 5


SLOW = {"silent": hostile.silent, "drip": hostile.drip, "drip-headers": hostile.drip_headers}


@pytest.mark.parametrize(
    ("asks", "name"),
    [(asks, name) for asks in ("get", "wait", "watch", "log") for name in SLOW if (asks, name) != ("log", "drip")],
)
def test_a_slow_server_is_limited_by_the_users_timeout(tmp_path: Path, name: str, asks: str) -> None:
    begun = time.monotonic()
    with serving(SLOW[name]) as (server, _), pytest.raises(TimedOutError, match="no answer from") as error:
        client = api(tmp_path, server)
        if asks == "wait":
            wait(client, "w", "default", timeout=0.3)
        with time_limit(0.3):
            if asks == "get":
                client.get("JobSet", "w")
            elif asks == "watch":
                list(client.watch("JobSet"))
            else:
                list(client.logs(POD))
    assert error.value.exit_code == 124 and error.value.hint
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("asks", ["get", "create"])
def test_without_a_users_timeout_a_default_applies(tmp_path: Path, caplog: pytest.LogCaptureFixture, asks: str) -> None:
    with serving(hostile.drip_headers) as (server, seen), pytest.raises(UnavailableError) as error:
        client = api(tmp_path, server, total_seconds=0.4, notice_seconds=0.1)
        client.get("JobSet", "w") if asks == "get" else client.create(JOBSET)
    assert ("the request may have been carried out" in error.value.message) is (asks == "create")
    assert len(seen) == 1 and "has not answered for" in caplog.text


@pytest.mark.parametrize("mode", [hostile.bookmarks, hostile.drip_watch])
def test_time_spent_in_a_busy_watch_counts_toward_the_timeout(tmp_path: Path, mode: Mode) -> None:
    begun = time.monotonic()
    with serving(mode) as (server, _):
        changes = list(api(tmp_path, server).watch("JobSet", timeout=0.5))
    assert [change for change, _ in changes] == ["ADDED"] and time.monotonic() - begun < 10


def test_a_watch_resumes_from_its_last_bookmark(tmp_path: Path) -> None:
    """Without bookmarks, every expired watch would require a complete list from a server that compacts often."""
    bookmark = event("BOOKMARK", {"kind": "JobSet", "metadata": {"resourceVersion": "4711"}})
    with serving(watches(bookmark)) as (server, seen), pytest.raises(Enough):
        list(api(tmp_path, server, Pauses()).watch("JobSet"))
    watched = [path for _, path in seen if "watch=1" in path]
    assert "resourceVersion=10&" in watched[0] and "resourceVersion=4711&" in watched[1]
    assert len(seen) - len(watched) == 1, "the list is not repeated"


@pytest.mark.parametrize("code", [500, 502, 504, 408])
def test_a_post_that_may_have_succeeded_is_not_repeated(tmp_path: Path, code: int) -> None:
    with serving(sends(code, status(code))) as (server, seen), pytest.raises(UnavailableError):
        api(tmp_path, server).create(JOBSET)
    assert [method for method, _ in seen] == ["POST"]


@pytest.mark.parametrize(("code", "method"), [(429, "POST"), (503, "POST"), (500, "GET"), (502, "GET"), (504, "GET")])
def test_failed_writes_and_reads_are_repeated(tmp_path: Path, code: int, method: str) -> None:
    with serving(sends(code, status(code))) as (server, seen), pytest.raises(UnavailableError):
        client = api(tmp_path, server)
        client.create(JOBSET) if method == "POST" else client.get("JobSet", "w")
    assert len(seen) == 6


def test_a_create_waits_for_a_webhook_whose_controller_restarts(tmp_path: Path) -> None:
    """The API server stores nothing before all webhooks have answered, so the request may be repeated."""
    answers = iter([(500, status(500, f"Internal error occurred: {UNANSWERED}"))] * 2)

    def restarting(request: hostile.Request) -> None:
        request.send(*next(answers, (201, JOBSET)))

    with serving(restarting) as (server, seen):
        assert api(tmp_path, server).create(JOBSET)["kind"] == "JobSet"
    assert [method for method, _ in seen] == 3 * ["POST"]


def test_a_dry_run_does_not_wait_for_a_webhook(tmp_path: Path) -> None:
    failure = status(500, f"Internal error occurred: {UNANSWERED}")
    with (
        serving(sends(500, failure)) as (server, seen),
        pytest.raises(MissingToolError, match="JobSet does not answer"),
    ):
        api(tmp_path, server).create(JOBSET, dry_run=True)
    assert len(seen) == 1


@pytest.mark.parametrize("name", ["nulls", "empty-object", "cut", "429", "gzip-that-is-none"])
def test_an_invalid_response_to_a_create_is_reported(tmp_path: Path, name: str) -> None:
    with serving(ANYWHERE[name][0]) as (server, seen), pytest.raises(XpkError) as error:
        api(tmp_path, server).create(JOBSET)
    assert error.value.hint and len(seen) <= 6


def test_retry_after_is_obeyed(tmp_path: Path) -> None:
    pauses = Pauses(1000)
    with serving(sends(429, status(429), Retry_After="9")) as (server, seen), pytest.raises(UnavailableError):
        api(tmp_path, server, pauses).get("JobSet", "w")
    assert len(seen) <= 6 and pauses.total > 9 * (len(seen) - 1) * 0.9


@pytest.mark.parametrize("after", ["86400", "date"])
def test_a_retry_after_of_a_day_ends_the_command(tmp_path: Path, after: str) -> None:
    header = format_datetime(datetime.now(UTC) + timedelta(days=1), usegmt=True) if after == "date" else after
    with serving(sends(503, status(503), Retry_After=header)) as (server, seen):
        client = api(tmp_path, server)
        for _ in range(3):
            with pytest.raises(UnavailableError):
                client.get("JobSet", "w")
    assert len(seen) == 1, "the next request does not repeat it either"


def test_an_invalid_retry_after_is_ignored(tmp_path: Path) -> None:
    for header in ("soon", "-5", "9" * 400, ""):
        with serving(sends(429, status(429), Retry_After=header)) as (server, seen), pytest.raises(UnavailableError):
            api(tmp_path, server).get("JobSet", "w")
        assert len(seen) <= 6


def test_an_eviction_blocked_by_a_budget_does_not_delay_other_requests(tmp_path: Path) -> None:
    refusal = status(429, details={"causes": [{"reason": "DisruptionBudget", "message": "needs 1"}]})
    with serving(sends(429, refusal, Retry_After="3600")) as (server, seen):
        client = api(tmp_path, server)
        for _ in range(2):
            with pytest.raises(ConflictError, match="cannot be evicted now"):
                client.evict("w-0")
    assert len(seen) == 2


def test_retries_are_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(sends(503, status(503, "busy \x1b]0;x\x07"))) as (server, _):
        client = api(tmp_path, server)
        for _ in range(3):
            with pytest.raises(UnavailableError):
                client.list("Pod")
    (output,) = [record.getMessage() for record in caplog.records]
    assert "retrying for up to" in output and server in output and "\x1b" not in output


def test_a_response_that_is_too_large_is_rejected(tmp_path: Path) -> None:
    with serving(sends(200, b" " * (2 << 20))) as (server, seen), pytest.raises(XpkError, match="larger than 1 MiB"):
        api(tmp_path, server, max_bytes=1 << 20).list("Pod")
    assert len(seen) == 1


@pytest.mark.parametrize("chunked", [False, True])
def test_a_response_that_is_too_large_when_decompressed_is_rejected(tmp_path: Path, chunked: bool) -> None:
    packed = gzip.compress(gzip.compress(b" " * (1 << 26)))

    def bomb(request: hostile.Request) -> None:
        request.send_response(200)
        request.send_header("Content-Encoding", "gzip, gzip")
        request.send_header(*(("Transfer-Encoding", "chunked") if chunked else ("Content-Length", str(len(packed)))))
        request.end_headers()
        request.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(packed), packed) if chunked else packed)

    with serving(bomb) as (server, seen), pytest.raises(XpkError, match="larger than 1 MiB"):
        api(tmp_path, server, max_bytes=1 << 20).list("Pod")
    assert len(seen) == 1


def test_lists_are_compressed_but_logs_and_watches_are_not(tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []

    def mode(request: hostile.Request) -> None:
        how = request.headers.get("Accept-Encoding", "")
        what = "log" if request.bare.endswith("/log") else "watch" if request.is_watch else "list"
        asked.append((what, how))
        if how == "gzip":
            request.send(200, gzip.compress(json.dumps(hostile.listed(POD)).encode()), Content_Encoding="gzip")
        else:
            request.well()

    with serving(mode) as (server, _):
        client = api(tmp_path, server)
        assert [pod["metadata"]["name"] for pod in client.list("Pod")] == ["w-0"]
        assert [change for change, _ in client.watch("Pod", timeout=0.2)] == ["ADDED"]
        assert [line.text for line in client.logs(POD)] == ["hello"]
    assert ("list", "gzip") in asked and {how for what, how in asked if what != "list"} == {"identity"}


def test_an_endless_log_line_is_truncated(tmp_path: Path) -> None:
    part = b"x" * (1 << 20)
    with serving(logs(part, part, part, b"\n" + hostile.LINE)) as (server, _):
        long, line = api(tmp_path, server).logs(POD)
    assert len(long.text) < 1.1 * len(part) and long.text.endswith("... (the line is longer than 1048576 bytes)")
    assert line.text == "hello"


def test_a_slow_log_times_out_unless_it_is_followed(
    tmp_path: Path,
) -> None:
    with serving(hostile.drip) as (server, _), pytest.raises(UnavailableError, match="too slow"):
        list(api(tmp_path, server, slow_seconds=0.2).logs(POD))


def test_a_followed_log_that_ends_early_is_requested_rarely(tmp_path: Path) -> None:
    def mode(request: hostile.Request) -> None:
        request.send(200, POD) if request.bare.endswith("/pods/w-0") else request.well()

    pauses = Pauses()
    with serving(mode) as (server, seen), pytest.raises(Enough):
        list(api(tmp_path, server, pauses).logs(POD, follow=True))
    assert len(seen) < MANY


def test_messages_with_lone_surrogates_can_be_printed(tmp_path: Path) -> None:
    body = b'{"metadata": {"name": "w", "uid": "u", "annotations": {"a": "\\ud800x"}}}'
    with serving(sends(200, body)) as (server, _):
        result = api(tmp_path, server).get("JobSet", "w")
    assert result["metadata"]["annotations"]["a"].encode() == b"?x"


def test_a_forbidden_request_fails_immediately(tmp_path: Path) -> None:
    with serving(sends(403, status(403, "forbidden"))) as (server, seen), pytest.raises(AuthorizationError):
        wait(api(tmp_path, server), "w", "default", timeout=5)
    assert len(seen) == 1
