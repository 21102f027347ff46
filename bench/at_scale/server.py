"""Requests to the API server that `ObjectApi` does not have: tables, metrics and subresources."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import urllib3
import yaml

from xpk.api.base import Obj

_THREADS = 12
_QUIET_SECONDS = 3600.0  # of a watch
_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
Item = TypeVar("Item")
Row = list[Any]


class RequestError(Exception):
    """A request that the server refuses. `status`: HTTP's."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text[:300]}")
        self.status = status


class Server:
    """The API server of a kubeconfig of `e2e.api_server`."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._url = cluster["server"]
        self._headers = {"Authorization": f"Bearer {user['token']}"}
        self._pool = urllib3.PoolManager(
            maxsize=_THREADS + 8, ca_certs=cluster["certificate-authority"], retries=False, timeout=120.0
        )

    def call(self, method: str, path: str, body: Obj | None = None, content: str = "application/json") -> Obj:
        """Send a request and return the answer's JSON. Raises RequestError."""
        headers = self._headers | {"Content-Type": content}
        data = None if body is None else json.dumps(body).encode()
        answer = self._pool.request(method, self._url + path, body=data, headers=headers)
        if answer.status >= 300:
            raise RequestError(answer.status, answer.data.decode(errors="replace"))
        parsed: Obj = json.loads(answer.data)
        return parsed

    def text(self, path: str) -> str:
        """Return an answer's text, such as that of `/metrics`."""
        return self.data(path).decode()

    def data(self, path: str) -> bytes:
        """Return an answer's content."""
        return self._pool.request("GET", self._url + path, headers=self._headers).data

    def rows(self, path: str) -> tuple[list[Row], str]:
        """Return a list as the rows that `kubectl get -o wide` prints, and its resource version."""
        answer = self._pool.request("GET", self._url + path, headers=self._headers | {"Accept": _TABLE})
        table = json.loads(answer.data)
        return [row["cells"] for row in table["rows"]], table["metadata"]["resourceVersion"]

    def watch_rows(self, path: str, version: str) -> Iterator[tuple[str, Row]]:
        """Yield changes as rows, until the server ends the watch. `path` has a query."""
        url = f"{self._url}{path}&watch=1&resourceVersion={version}"
        timeout = urllib3.Timeout(connect=30.0, read=_QUIET_SECONDS)
        headers = self._headers | {"Accept": _TABLE}
        answer = self._pool.request("GET", url, headers=headers, preload_content=False, timeout=timeout)
        try:
            for line in _lines(answer):
                event = json.loads(line)
                for row in event["object"].get("rows") or ():
                    yield event["type"], row["cells"]
        finally:
            answer.close()


def each(action: Callable[[Item], object], items: Iterable[Item]) -> None:
    """Do the same for all items, several at once. Raises the first error."""
    with ThreadPoolExecutor(_THREADS) as pool:
        for done in [pool.submit(action, item) for item in items]:
            done.result()


def query(path: str, **parameters: str) -> str:
    """Return a path with parameters."""
    return f"{path}?{urlencode(parameters)}"


def selecting(labels: Mapping[str, str]) -> str:
    """Return a label selector."""
    return ",".join(f"{key}={value}" for key, value in labels.items())


def _lines(answer: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    rest = b""
    while chunk := answer.read1(1 << 16):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
