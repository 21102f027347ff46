"""The log of one pod on a real API server, resumed after interruptions of the connection, the server or the node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import urllib3

from xpk.api.base import LogLine
from xpk.api.server_errors import NotStartedError
from xpk.api.timing import Backoff
from xpk.model.errors import AuthorizationError, NotFoundError, UnavailableError

AWAY = (UnavailableError, AuthorizationError)  # a restarting server first has to load its RBAC rules
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0  # seconds between two requests; grows while nothing new arrives
_LATER = 5.0  # after the server, the node or kubelet was in trouble

Stream = Callable[[dict[str, str], bool], Iterator[str]]


def read_log(
    stream: Stream,
    has_ended: Callable[[], bool],
    pause: Callable[[float], None],
    *,
    follow: bool,
    since: datetime | None,
    tail: int | None,
) -> Iterator[LogLine]:
    """Yield the lines of a log, each once. `has_ended` returns whether the pod will write no more.

    `stream` sends a query and returns whether a last line without a line end belongs to the log. Raises its errors,
    and UnavailableError where a log that is not followed breaks off.
    """
    last: datetime | None = None
    final, connected = not follow, False
    hashes = set[int]()
    backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
    while True:
        printed, own_words = last, False
        try:
            for line in stream(_query(last or since, follow, None if last else tail), final):
                parsed = _parsed(line)
                if parsed is None:
                    own_words = True
                    if hash(line) not in hashes:
                        yield LogLine(last or datetime.now(UTC), line)
                    hashes.add(hash(line))
                elif printed is None or parsed.time > printed:  # sinceTime has whole seconds: some lines are repeated
                    yield parsed
                    last = parsed.time
        except urllib3.exceptions.HTTPError as error:
            if not follow:
                raise UnavailableError("the connection was lost while it was read", hint="try again") from error
        except AWAY as error:  # also if the node with the log does not answer
            if not follow or (isinstance(error, AuthorizationError) and not connected):
                raise
            pause(_LATER)
        except NotStartedError:
            if not follow:
                raise
        except NotFoundError:
            if last is None:
                raise
            return
        connected = True
        if final:
            return
        # Read once more after its end: it may have written since the connection was cut off.
        final = has_ended()
        if last != printed:
            backoff.reset()
        pause(backoff.next() if not own_words or final else max(_LATER, backoff.next()))


def _query(begin: datetime | None, follow: bool, tail: int | None) -> dict[str, str]:
    query = {"timestamps": "true", "follow": str(follow).lower()}
    if begin:
        query["sinceTime"] = begin.isoformat()
    if tail is not None:
        query["tailLines"] = str(tail)
    return query


def _parsed(line: str) -> LogLine | None:
    """Return a line of the container; None for the kubelet's own messages, such as that it cannot watch the file."""
    try:
        return LogLine.parse(line)
    except ValueError:
        return None
