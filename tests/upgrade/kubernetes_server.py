"""An API server over HTTP that keeps objects in memory: for commands of another version, which run as processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl

from tests.http_server import http_server, url_of
from xpk.api.base import NotIn
from xpk.api.kinds import EVERY_KIND
from xpk.model.errors import ConflictError, Modified, NameTaken, NotFoundError, XpkError
from xpk.testing import FakeApi

_KINDS = {(kind.api_version, kind.plural): kind for kind in EVERY_KIND.values()}
_REASONS: dict[type[XpkError], tuple[int, str]] = {
    NotFoundError: (404, "NotFound"),
    NameTaken: (409, "AlreadyExists"),
    Modified: (409, "Conflict"),
    ConflictError: (409, "Conflict"),
}


@contextmanager
def serving(api: FakeApi) -> Iterator[str]:
    """Serve the objects of `api`; yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        wbufsize = 1 << 16  # one packet for an answer: the client would acknowledge a first one late

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path, _, query = self.path.partition("?")
            content = str(self.headers.get("Content-Type"))
            try:
                code, answer = 200, _call(api, self.command, path, dict(parse_qsl(query)), body, content)
            except XpkError as error:
                code, reason = _REASONS.get(type(error), (500, "InternalError"))
                message = _absent(path) if code == 404 else str(error)
                answer = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
            text = json.dumps(answer).encode() if answer is not None else b""
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = do_DELETE = answer

        def log_message(self, format: str, *args: object) -> None:
            """Do nothing."""

    with http_server(Handler) as server:
        yield url_of(server)


def _call(api: FakeApi, method: str, path: str, query: dict[str, str], body: bytes, content: str) -> Any:
    if path == "/version":
        return {"gitVersion": "v1.34.0"}
    group, kind_name, namespace, name = _parsed(path)
    obj, dry = json.loads(body) if body else {}, "dryRun" in query
    if kind_name == "SelfSubjectAccessReview":
        return obj | {"status": {"allowed": True}}
    if method == "POST":
        return api.create(_placed(obj, namespace), dry_run=dry)
    if method == "PATCH" and "apply" in content:
        return api.apply(_placed(obj, namespace), dry_run=dry)
    if method == "PATCH":
        return api.patch(kind_name, name, obj, namespace or "default")
    if method == "DELETE":
        _delete(api, kind_name, name, namespace or "default")
        return {"kind": "Status", "status": "Success"}
    if name:
        return api.get(kind_name, name, namespace or "default")
    if "watch" in query:
        return None
    labels, fields = (_selector(query.get(key, "")) for key in ("labelSelector", "fieldSelector"))
    items = api.list(kind_name, namespace, labels, fields=fields)
    return {"kind": f"{kind_name}List", "apiVersion": group, "metadata": {"resourceVersion": "1000"}, "items": items}


def _delete(api: FakeApi, kind: str, name: str, namespace: str) -> None:
    """Delete an object; with a JobSet its pods, as the garbage collector would."""
    api.delete(kind, name, namespace)
    if kind == "JobSet":
        for pod in api.list("Pod", namespace, {"jobset.sigs.k8s.io/jobset-name": name}):
            api.delete("Pod", pod["metadata"]["name"], namespace)


def _parsed(path: str) -> tuple[str, str, str | None, str]:
    """Return (API version, kind, namespace, name) of a path. Raises NotFoundError."""
    words = path.strip("/").split("/")
    version, rest = ("v1", words[2:]) if words[0] == "api" else ("/".join(words[1:3]), words[3:])
    namespace = None
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    kind = _KINDS.get((version, rest[0] if rest else ""))
    if kind is None:
        raise NotFoundError("the server could not find the requested resource")
    return version, kind.name, namespace, rest[1] if len(rest) > 1 else ""


def _absent(path: str) -> str:
    """Return the text of a 404: for an object of a known kind it names both."""
    words = path.strip("/").split("/")
    group = words[1] if words[0] == "apis" else ""
    return f'{words[-2]}{group and "."}{group} "{words[-1]}" not found'


def _placed(obj: Any, namespace: str | None) -> Any:
    return obj | {"metadata": {"namespace": namespace, **obj["metadata"]}} if namespace else obj


def _selector(text: str) -> dict[str, str | NotIn]:
    selector: dict[str, str | NotIn] = {}
    for term in filter(None, text.split(",")):
        key, is_not, value = term.partition("!=")
        if is_not:
            before = selector.get(key)
            selector[key] = NotIn((*(before.values if isinstance(before, NotIn) else ()), value))
        else:
            key, _, value = term.replace("==", "=").partition("=")
            selector[key] = value
    return selector
