"""The server of the console: one page, its style and scripts, and server-sent events. It changes nothing."""

from __future__ import annotations

import errno
import json
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from xpk.api.text import short
from xpk.console.access import Access, Guard
from xpk.console.feed import Feed, Parts, Selection
from xpk.console.run_reader import RunKey
from xpk.jobs.report.comparison import MAX_RUNS
from xpk.jobs.report.page import templates
from xpk.model.errors import UsageError
from xpk.model.terminal import printable

PAGE = Path(__file__).parent / "page"
_REPORT = Path(__file__).parents[1] / "jobs" / "report"
_MAX_LISTENERS = 64
_OF_PORTS = (errno.EADDRINUSE, errno.EACCES)
_OWN_HOSTS = "--host 127.0.0.1, or 0.0.0.0 for all addresses of this machine"


def application(feed: Feed, access: Access, *, cookie: str, own_name: str = "") -> ASGIApp:
    """Return the server's application; `cookie` and `own_name` as in `Guard`."""

    async def events(request: Request) -> Response:
        if feed.num_listeners >= _MAX_LISTENERS:
            return Response(status_code=503)
        return StreamingResponse(_stream(feed, _selection(request)), media_type="text/event-stream")

    style = templates().get_template("style.css.j2").render() + (PAGE / "console.css").read_text(encoding="utf-8")
    files = {
        "/": ((PAGE / "index.html").read_text(encoding="utf-8"), "text/html"),
        "/style.css": (style, "text/css"),
        "/console.js": ((PAGE / "console.js").read_text(encoding="utf-8"), "text/javascript"),
        "/charts.js": ((_REPORT / "charts.js").read_text(encoding="utf-8"), "text/javascript"),
    }
    routes = [Route(path, _file(text, media_type)) for path, (text, media_type) in files.items()]
    app = Starlette(routes=[*routes, Route("/events", events)])
    return Guard(app, access, cookie=cookie, own_name=own_name)


def open_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises UsageError if the address is not one of this machine's, or in use."""
    if not host:  # stands for all addresses, which nobody should choose by an empty variable
        raise UsageError("--host is empty", hint=_OWN_HOSTS)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError, ValueError) as error:
        why = getattr(error, "strerror", None) or short(error)
        is_port = isinstance(error, OSError) and error.errno in _OF_PORTS
        hint = "choose another --port, or 0 for a free one" if is_port else _OWN_HOSTS
        raise UsageError(f"cannot listen on {printable(host, limit=100)}:{port}: {why}", hint=hint) from error


def make_server(app: ASGIApp) -> uvicorn.Server:
    """Return the server of an application, which logs nothing. Its `run` returns after Ctrl-C or SIGTERM."""
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        date_header=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=16384,
    )
    return uvicorn.Server(config)


def _file(text: str, media_type: str) -> Callable[[Request], Response]:
    return lambda request: Response(text, media_type=media_type)


def _selection(request: Request) -> Selection:
    keys = filter(None, map(RunKey.parse, request.query_params.getlist("run")))
    return Selection(tuple(dict.fromkeys(keys))[:MAX_RUNS], request.query_params.get("screen") == "narrow")


async def _stream(feed: Feed, selection: Selection) -> AsyncIterator[str]:
    """Yield server-sent events: an event `parts` for changed parts, a comment as a sign of life."""
    async for parts in feed.listen(selection):
        yield _event(parts)


def _event(parts: Parts) -> str:
    return f"event: parts\ndata: {json.dumps(parts, ensure_ascii=False)}\n\n" if parts else ": alive\n\n"
