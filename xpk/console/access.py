"""Access to the console: a one-time token that becomes a cookie, trusted names of the host, and strict headers."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Callable
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_TOKEN_BYTES = 32
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Access:
    """The secrets of one server: a token that works once, and the session of all browsers that had one.

    `tell` gets each new token: the first one, and another one after each use.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._token, self._session = "", secrets.token_urlsafe(_TOKEN_BYTES)
        self._renew()

    def exchange(self, token: str) -> str | None:
        """Return the session for the token, which is then replaced; None for another one."""
        if not secrets.compare_digest(token.encode(), self._token.encode()):
            return None
        self._renew()
        return self._session

    def admits(self, session: str) -> bool:
        """Return whether a session is that of this server."""
        return secrets.compare_digest(session.encode(), self._session.encode())

    def _renew(self) -> None:
        self._token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._tell(self._token)


def is_trusted(host: str, own_name: str = "") -> bool:
    """Return whether a Host header names this server.

    An address or `localhost` cannot be the name of another site that leads its visitors here (DNS rebinding).
    `own_name`: the name that the server was started with.
    """
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if name.lower() in ("localhost", own_name.lower()) and name:
        return True
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


class Guard:
    """Answers requests that are not allowed, each with an empty body, and passes the others on.

    `cookie`: name of the session's cookie; browsers send cookies to every port of a host.
    """

    def __init__(self, app: ASGIApp, access: Access, *, cookie: str, own_name: str = "") -> None:
        self._app, self._access, self._cookie, self._own_name = app, access, cookie, own_name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the interface ASGI."""
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        answer = self._refuse(scope)
        await (answer or self._app)(scope, receive, send_guarded)

    def _refuse(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if not is_trusted(headers.get("host", ""), self._own_name):
            return Response(status_code=421)
        if scope["method"] != "GET":
            return Response(status_code=405)
        tokens = parse_qs(scope["query_string"].decode("latin-1")).get("token")
        if scope["path"] == "/" and tokens:
            return self._admit(tokens[0])
        session = cookie_parser(headers.get("cookie", "")).get(self._cookie, "")
        return None if self._access.admits(session) else Response(status_code=401)

    def _admit(self, token: str) -> Response:
        """Return the answer to a token: the page without it, or a refusal."""
        session = self._access.exchange(token)
        if session is None:
            return Response(status_code=401)
        answer = Response(status_code=303, headers={"Location": "/"})
        answer.set_cookie(self._cookie, session, httponly=True, samesite="strict", path="/")
        return answer
