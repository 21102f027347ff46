"""Requests to one API server, through the official client: retried, and limited in time and size.

Reads and idempotent writes are retried while the server is busy or unavailable, with back-off and as Retry-After asks;
other writes only if they were certainly not carried out.
No request outlasts the limit of `time_limit`, nor half a minute of its own.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, TypeVar

import urllib3
from kubernetes.client import ApiClient
from kubernetes.client.exceptions import ApiException
from kubernetes.client.rest import RESTResponse
from urllib3.exceptions import HTTPError

from xpk.api import connection
from xpk.api.answers import parsed
from xpk.api.base import Obj
from xpk.api.limits import Limits
from xpk.api.server_errors import budget_of, explain, is_unanswered_webhook, other_version
from xpk.api.timing import Backoff, Pause, seconds_left, within
from xpk.model.errors import MissingToolError, TimedOutError, UnavailableError, XpkError

JSON = "application/json"
_BUSY = (408, 429, 500, 502, 503, 504)
_TRIES, _FIRST_PAUSE = 6, 0.3  # seconds
_CONNECT_SECONDS = 5.0
_NOTICE_TRIES = 2  # then the user is told that the server does not answer
_MAX_ERROR_BYTES, _MAX_LINE_BYTES = 1 << 20, 32 << 20
_SLOW_BYTES = 1024  # a slower log is given up, unless it is followed
_CHUNK = 1 << 16

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Transport:
    """Requests to the API server that a client is configured for."""

    def __init__(self, client: ApiClient, pause: Pause, limits: Limits) -> None:
        self.host = str(client.configuration.host)
        self._client, self._pause, self._limits = client, pause, limits
        self._not_before = 0.0  # end of the Retry-After delay, a time of time.monotonic
        self._is_reported = False

    def call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Obj | None = None,
        *,
        content: str = JSON,
        about: Obj | None = None,
    ) -> Obj:
        """Send a request, retry it while the server is busy or unavailable, and return its response."""
        ends = time.monotonic() + min(self._limits.total_seconds, seconds_left())
        backoff = Backoff(_FIRST_PAUSE)
        cause: Exception
        for tries_left in reversed(range(_TRIES)):
            try:
                answer = parsed(self.host, self._read(method, path, query, body, content, ends))
                self._is_reported = False
                return answer
            except ApiException as error:
                if error.status == 404 and method == "DELETE" and tries_left < _TRIES - 1:
                    return {}  # an earlier try succeeded, but its response was lost
                final = not _is_retried(error, method, is_dry_run="dryRun" in (query or {}))
                failure, cause = self._explained(error, method, path, about), error
            except HTTPError as error:
                sent = method == "POST" and not connection.is_unsent(error)
                final = sent or connection.is_final(error)
                failure, cause = connection.unreachable_server(self.host, error, sent=sent), error
            if final or not tries_left:
                raise failure from cause
            self._back_off(backoff, ends, _TRIES - tries_left, failure, cause)
        raise AssertionError("the last try returns or raises")

    def stream(
        self,
        path: str,
        query: Mapping[str, str],
        *,
        quiet: float,
        ends: float | None = None,
        last_line: bool = False,
        must_flow: bool = False,
        max_bytes: int = _MAX_LINE_BYTES,
    ) -> Iterator[str]:
        """Yield the lines of a response as they arrive; an unterminated last line counts only with `last_line`.

        It ends at `ends`, a time of time.monotonic. A line of more than `max_bytes` bytes is cut. Raises urllib3's
        HTTPError if nothing arrives for `quiet` seconds, and UnavailableError for a server that is too slow with its
        headers or, with `must_flow`, with its body.
        """
        begins = time.monotonic() + min(self._limits.total_seconds, seconds_left())
        send = self._prepared("GET", path, query, None, {"Content-Type": JSON}, quiet)
        try:
            answer = self._within(begins, send, "GET")
        except ApiException as error:
            raise self._explained(error, "GET", path, None) from error
        response: urllib3.HTTPResponse = answer.response
        with _closing(response, ends):
            chunks = _flowing(self.host, response, self._limits.slow_seconds) if must_flow else _chunks(response)
            yield from _lines(chunks, max_bytes, last_line)

    def _read(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Obj | None, content: str, ends: float
    ) -> bytes:
        """Send a request once, and return the body of the response."""
        # Compressed, a page of hundreds of pods arrives in time over a slow line; the inflated size is limited below.
        headers = {"Content-Type": content, "Accept-Encoding": "gzip"}
        send = self._prepared(method, path, query, body, headers, max(0.01, ends - time.monotonic()))

        def work() -> bytes:
            answer = send()
            with _closing(answer.response, None):
                return _whole(self.host, answer.response, self._limits.max_bytes)

        return self._within(ends, work, method)

    def _prepared(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Obj | None,
        headers: Mapping[str, str],
        quiet: float,
    ) -> Callable[[], RESTResponse]:
        """Return a function that sends a request and returns the response, or raises ApiException if it is refused."""
        self._obey_retry_after()
        serialized = self._client.param_serialize(
            method, path, query_params=list((query or {}).items()),
            header_params={"Accept": JSON, **headers}, body=body, auth_settings=["BearerToken"],
        )  # fmt: skip
        return partial(self._send, serialized, (_CONNECT_SECONDS, quiet))

    def _send(self, serialized: tuple[Any, Any, Any, Any, Any], timeout: tuple[float, float]) -> RESTResponse:
        answer: RESTResponse = self._client.call_api(*serialized, timeout)
        if 200 <= answer.status <= 299:
            return answer
        with _closing(answer.response, None):
            body = _whole(self.host, answer.response, _MAX_ERROR_BYTES)
        if not budget_of(body):
            self._note_retry_after(answer.status, answer.headers.get("Retry-After"))
        raise ApiException(status=answer.status, reason=answer.reason, body=body.decode(errors="replace"))

    def _within(self, ends: float, work: Callable[[], T], method: str) -> T:
        """Return the result of `work`. Raises UnavailableError or TimedOutError if it is not done at `ends`."""
        seconds = max(0.01, ends - time.monotonic())
        quiet = self._limits.notice_seconds
        notice = partial(self._tell, f"the API server at {self.host} has not answered for {quiet:g} s; waiting", ends)
        try:
            return within(seconds, work, notice_after=quiet, notice=notice)
        except TimeoutError as error:
            raise self._too_late("timed out", method == "POST") from error

    def _too_late(self, why: str, sent: bool) -> XpkError:
        return self._in_time(connection.timed_out_request(self.host, why, sent=sent), 0.05)

    def _in_time(self, error: XpkError, pause: float) -> XpkError:
        """Return an error as TimedOutError if less than `pause` is left of the user's time limit."""
        return TimedOutError(error.message, hint=error.hint) if seconds_left() <= pause else error

    def _back_off(self, backoff: Backoff, ends: float, tries: int, error: XpkError, cause: Exception) -> None:
        """Pause before the next try. Raises `found` if no time is left for one."""
        pause = max(backoff.next(), self._not_before - time.monotonic())
        if time.monotonic() + pause >= ends:
            raise self._in_time(error, pause) from cause
        if tries >= _NOTICE_TRIES:
            self._tell(f"the API server at {self.host}: {error.message}; retrying", ends)
        self._pause(pause)

    def _tell(self, trouble: str, ends: float) -> None:
        """Warn the user once that the server is in trouble; reset when it answers."""
        if not self._is_reported:
            self._is_reported = True
            seconds = max(1.0, ends - time.monotonic())
            _log.warning("warning: %s for up to %.0f s", trouble, seconds)

    def _note_retry_after(self, status: int, header: str | None) -> None:
        if status in (429, 503) and header:
            self._not_before = time.monotonic() + _retry_seconds(header)

    def _obey_retry_after(self) -> None:
        """Pause as long as the server asks. Raises UnavailableError if that exceeds the time limit."""
        pause = self._not_before - time.monotonic()
        if pause > min(self._limits.total_seconds, seconds_left()):
            late = connection.timed_out_request(self.host, f"it asks to wait {pause:.0f} s before a retry")
            raise self._in_time(late, pause)
        if pause > 0:
            self._pause(pause)

    def _explained(self, error: ApiException, method: str, path: str, about: Obj | None) -> XpkError:
        """Return the error for a refusal; ask the server whether a kind is missing or only its version."""
        if not error.status:  # the client's status for a TLS failure
            return connection.unreachable_server(self.host, error)
        if connection.looks_like_a_page(error.body):
            page = connection.foreign_server(self.host, error.body)
            return UnavailableError(page.message, hint=page.hint) if error.status in _BUSY else page
        explained = explain(error.status, error.body, method, path, about)
        parts = path.split("/")
        if error.status == 404 and isinstance(explained, MissingToolError):
            with suppress(ApiException, HTTPError, XpkError, TypeError, KeyError):
                ends = time.monotonic() + min(self._limits.total_seconds, seconds_left())
                group = parsed(self.host, self._read("GET", f"/apis/{parts[2]}", None, None, JSON, ends))
                served = [str(item["version"]) for item in group.get("versions") or []]
                if served and parts[3] not in served:
                    return other_version(parts[2], parts[3], served)
        return explained


def _is_retried(error: ApiException, method: str, *, is_dry_run: bool) -> bool:
    """Return whether a refused request may be repeated: a POST only if it was certainly not carried out.

    A dry run asks what the cluster would do now, so it does not wait for a webhook.
    """
    if not error.status:  # the TLS handshake failed
        return not connection.is_final(error)
    if method == "POST" and error.status == 500:
        return not is_dry_run and is_unanswered_webhook(error.body)
    return error.status in ((429, 503) if method == "POST" else _BUSY) and not budget_of(error.body)


def _retry_seconds(header: str) -> float:
    """Return the delay in a Retry-After header, in seconds; 0 without one. The header holds seconds or a date."""
    with suppress(ValueError, OverflowError):
        return max(0.0, float(int(header)))
    with suppress(ValueError, TypeError, OverflowError):
        when = parsedate_to_datetime(header)
        return max(0.0, ((when if when.tzinfo else when.replace(tzinfo=UTC)) - datetime.now(UTC)).total_seconds())
    return 0.0


@contextmanager
def _closing(response: urllib3.HTTPResponse, ends: float | None) -> Iterator[None]:
    """Close a response after the block, and abort it at `ends`, a time of time.monotonic."""
    try:
        if ends is None or response.closed:
            yield
            return
        # `HTTPResponse.shutdown` removes TLS from the connection, and the rest would be read encrypted
        # (python/cpython#124618). This ends the same connection without its knowledge.
        with socket.socket(fileno=os.dup(response.fileno())) as connected:
            timer = threading.Timer(max(0.0, ends - time.monotonic()), _stop_reading, [connected])
            timer.daemon = True
            timer.start()
            try:
                yield
            finally:
                timer.cancel()
                timer.join()  # another file may get the descriptor afterwards
    finally:
        response.close()


def _stop_reading(connected: socket.socket) -> None:
    with suppress(OSError):  # it has just ended on its own
        connected.shutdown(socket.SHUT_RD)


def _chunks(response: urllib3.HTTPResponse) -> Iterator[bytes]:
    yield from response.stream(_CHUNK, decode_content=True)


def _whole(host: str, response: urllib3.HTTPResponse, max_bytes: int) -> bytes:
    """Return the body of a response. Raises XpkError if it is larger than `max_bytes` bytes."""
    parts: list[bytes] = []
    size = 0
    for chunk in _chunks(response):
        size += len(chunk)
        if size > max_bytes:
            raise connection.oversized_response(host, max_bytes)
        parts.append(chunk)
    return b"".join(parts)


def _flowing(host: str, response: urllib3.HTTPResponse, seconds: float) -> Iterator[bytes]:
    """Yield the chunks of a response. Raises UnavailableError if fewer than 1 KiB arrive in `seconds`."""
    start, size = time.monotonic(), 0
    while chunk := response.read1(_CHUNK, decode_content=True):
        yield chunk
        size += len(chunk)
        if time.monotonic() - start > seconds:
            if size < _SLOW_BYTES:
                raise connection.timed_out_request(host, "its response is too slow", sent=False)
            start, size = time.monotonic(), 0


def _lines(chunks: Iterator[bytes], max_bytes: int, last_line: bool) -> Iterator[str]:
    """Yield the lines that chunks contain, each of at most `max_bytes` bytes."""
    rest, skipping = b"", False
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        if not skipping:
            rest += first
            if len(rest) > max_bytes:
                yield f"{rest[:max_bytes].decode(errors='replace')} ... (the line is longer than {max_bytes} bytes)"
                rest, skipping = b"", True
        if others:
            if rest and not skipping:
                yield rest.decode(errors="surrogateescape")
            skipping, rest = False, others.pop()
            yield from (line.decode(errors="surrogateescape") for line in others if line)
    if rest and last_line:
        yield rest.decode(errors="surrogateescape")
