"""Errors for an API server that does not answer, or for another server that answers in its place."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator

import urllib3.exceptions as gone

from xpk.model.errors import UnavailableError, XpkError
from xpk.model.terminal import printable

_TITLE = re.compile(r"<title[^>]*>(.*?)</title>|<h1[^>]*>(.*?)</h1>", re.IGNORECASE | re.DOTALL)
_LONGEST_TEXT = 100_000
_IS_IT_UP = "check that the cluster is up: `xpk cluster list`, or `kubectl cluster-info`"


def unreachable_server(host: str, error: BaseException, *, sent: bool = False) -> UnavailableError:
    """Return the error for a server that does not answer; `sent`: the request may have been carried out."""
    why, hint = _reason(host, error)
    doubt = "; the request may have been carried out" if sent else ""
    return UnavailableError(f"no answer from {host}: {why}{doubt}", hint=hint)


def is_final(error: BaseException) -> bool:
    """Return whether a retry cannot help: TLS and encoding errors are permanent, except for a closed connection."""
    chain = list(_chain(error))
    kinds = (gone.SSLError, ssl.SSLError, gone.DecodeError)
    return any(isinstance(cause, kinds) for cause in chain) and not _is_closed_in_handshake(chain)


def is_unsent(error: BaseException) -> bool:
    """Return whether a request certainly did not reach the server."""
    kinds = (gone.NewConnectionError, gone.ConnectTimeoutError, gone.SSLError, gone.ProxyError)
    return any(isinstance(cause, kinds) for cause in _chain(error))


def timed_out_request(host: str, why: str, *, sent: bool = False) -> UnavailableError:
    """Return the error for a request that is given up; `sent`: it may have been carried out."""
    doubt = "; the request may have been carried out" if sent else ""
    return UnavailableError(f"no answer from {host}: {why}{doubt}", hint=_IS_IT_UP)


def oversized_response(host: str, max_bytes: int) -> XpkError:
    """Return the error for a response that exceeds the size limit."""
    return XpkError(
        f"the answer from {host} is larger than {max_bytes >> 20} MiB",
        hint="check the kubeconfig's server and HTTPS_PROXY",
    )


def malformed_response(host: str, content: str) -> XpkError:
    """Return the error for JSON that no API server sends."""
    return XpkError(
        f"{host} is not a Kubernetes API server: it sent {content}",
        hint="check the kubeconfig's server and HTTPS_PROXY; `kubectl get --raw /version` shows the response",
    )


def looks_like_a_page(body: object) -> bool:
    """Return whether a response is a web page, which no API server sends."""
    text = _text(body)
    return text.lstrip().startswith("<")


def foreign_server(host: str, body: object) -> XpkError:
    """Return the error for a response that does not come from an API server."""
    text = readable(body)
    match = _TITLE.search(text)
    title = re.sub(r"<[^>]+>|\s+", " ", next(filter(None, match.groups()), "") if match else text[:1000]).strip()
    content = "a web page" if looks_like_a_page(body) else "something that is not JSON"
    return XpkError(
        f"{host} is not a Kubernetes API server: it sent {content}"
        + (f", '{printable(title, limit=80)}'" if title else ""),
        hint="check HTTPS_PROXY, NO_PROXY and the kubeconfig's server: a proxy may be in between",
    )


def _reason(host: str, error: BaseException) -> tuple[str, str]:
    chain = list(_chain(error))
    for cause in chain:
        if isinstance(cause, gone.NameResolutionError):
            return "its name does not resolve", "check the name in the kubeconfig, your DNS and your VPN"
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {cause.verify_message}", (
                "certificate-authority-data in the kubeconfig must match this cluster: fetch a new kubeconfig"
            )
        if isinstance(cause, gone.DecodeError):
            return "its response does not have the encoding that its headers name", "check HTTPS_PROXY and NO_PROXY"
        if isinstance(cause, gone.ProxyError):
            return "the proxy refuses the connection", "check HTTPS_PROXY and NO_PROXY"
    if any(isinstance(cause, gone.SSLError | ssl.SSLError) for cause in chain):
        if _is_closed_in_handshake(chain):
            return "it closed the connection", _IS_IT_UP
        text = str(chain[-1])
        plain = "WRONG_VERSION_NUMBER" in text
        return (
            "it does not use TLS" if plain else f"TLS fails: {printable(text, limit=200)}",
            "check the server's port and scheme (https) and the certificates in the kubeconfig",
        )
    if any(isinstance(cause, ConnectionRefusedError) or "Connection refused" in str(cause) for cause in chain):
        return "connection refused", _IS_IT_UP
    if any(isinstance(cause, gone.TimeoutError) for cause in chain):
        return "timed out", _IS_IT_UP
    return printable(str(chain[-1]), limit=200), _IS_IT_UP


def readable(body: object) -> str:
    """Return a response as text, "" if it is binary."""
    text = _text(body)
    return "" if "\ufffd" in text or "\0" in text else text


def _text(body: object) -> str:
    return body[:_LONGEST_TEXT].decode(errors="replace") if isinstance(body, bytes) else str(body or "")[:_LONGEST_TEXT]


def _is_closed_in_handshake(chain: list[BaseException]) -> bool:
    """Return whether the connection was closed during the TLS handshake, as a proxy does whose server is down."""
    return any(isinstance(cause, ssl.SSLEOFError) for cause in chain)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes; urllib3 keeps them in three places."""
    causes: list[BaseException] = []
    queue: list[object] = [error]
    while queue:
        cause = queue.pop(0)
        if isinstance(cause, BaseException) and not any(cause is other for other in causes):
            causes.append(cause)
            queue += [getattr(cause, "reason", None), cause.__cause__, cause.__context__, *cause.args]
    yield from causes
