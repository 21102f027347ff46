"""Google Cloud APIs, plain dicts in and out: GKE by its client library, a few Compute Engine calls over HTTP.

The only module that imports google.*; `Endpoints` name an emulator, which is called without credentials.
"""

from __future__ import annotations

import importlib
import random
import re
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from xpk.capacity.gke.cloud.configuration import Endpoints
from xpk.capacity.gke.cloud.failure import blocker, explained, is_operation_limit, is_passing
from xpk.model.errors import AuthorizationError, MissingToolError, NotFoundError, XpkError

Dict = dict[str, Any]
Pause = Callable[[float], None]

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_TRIES, _FIRST_PAUSE, _LONGEST_PAUSE = 8, 1.0, 30.0  # seconds
_TIMEOUT = 60.0  # seconds for one call
_HTTP_CODES = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 409: "ALREADY_EXISTS",
    429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 502: "UNAVAILABLE", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip
_NOT_YET = re.compile(r"is not ready|is already being used by")


class RefusedError(Exception):
    """A call that the server rejected, with its canonical code and message."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code, self.text = code, text


class Google:
    """The APIs with one user's credentials. `unit`: seconds of the shortest pause between two tries."""

    def __init__(self, endpoints: Endpoints, *, pause: Pause, unit: float = _FIRST_PAUSE) -> None:
        self._endpoints, self._pause, self._unit = endpoints, pause, unit
        self._random = random.Random()  # noqa: S311  # no secret depends on it
        self._lock = threading.Lock()
        self._managers: dict[str, Any] = {}
        self._http: Any = None
        self._credentials: Any = None

    def check(self) -> None:
        """Raise MissingToolError without the client's package, AuthorizationError without credentials."""
        self._connect()

    def call(self, method: str, request: Dict, *, beta: bool = False) -> Dict:
        """Call a method of ClusterManager; retry while the server is busy. Raises XpkError.

        `beta`: use v1beta1, which has fields that v1 lacks. The caller waits for blocking operations: see `blocked`.
        """
        return self._tried(lambda: self._grpc("container_v1beta1" if beta else "container_v1", method, request))

    def compute(self, path: str, body: Dict | None = None, *, delete: bool = False) -> Dict:
        """GET, POST or DELETE a Compute Engine resource. Raises XpkError."""
        base = self._endpoints.compute or "https://compute.googleapis.com"
        verb = "DELETE" if delete else "GET" if body is None else "POST"
        return self._tried(lambda: self._rest(verb, f"{base.rstrip('/')}/compute/v1/{path}", body))

    def matching(self, path: str, names: str) -> list[Dict]:
        """Return a collection's Compute Engine resources whose names match a pattern. Raises XpkError."""
        resources: list[Dict] = []
        query = {"filter": f"name eq {names}"}
        while True:
            answer = self.compute(f"{path}?{urlencode(query)}")
            resources += answer.get("items", [])
            if not answer.get("nextPageToken"):  # an empty page may be followed by others
                return resources
            query["pageToken"] = answer["nextPageToken"]

    def quota_info(self, project: str, quota: str) -> Dict:
        """GET a quota with dimensions, such as TPUs per family. Raises XpkError."""
        base = self._endpoints.compute or "https://cloudquotas.googleapis.com"
        path = f"projects/{project}/locations/global/services/compute.googleapis.com/quotaInfos/{quota}"
        return self._tried(lambda: self._rest("GET", f"{base.rstrip('/')}/v1/{path}", None))

    def token(self) -> tuple[str, str]:
        """Return an access token and its expiry (RFC 3339). Raises AuthorizationError."""
        from google.auth.transport.requests import Request

        credentials = self._default_credentials()
        try:
            credentials.refresh(Request())
        except Exception as error:
            raise AuthorizationError(
                f"cannot get a token from Google Cloud: {error}", hint="`gcloud auth application-default login`"
            ) from error
        return str(credentials.token), f"{credentials.expiry.isoformat(timespec='seconds')}Z"

    def _tried(self, ask: Callable[[], Dict]) -> Dict:
        self._connect()
        for attempt in range(_TRIES):
            try:
                return ask()
            except RefusedError as error:
                if not is_passing(error.code, error.text) or attempt == _TRIES - 1:
                    failure = explained(error.code, error.text)
                    failure.__cause__ = error
                    raise failure from error
            # Jitter: many steps that were rejected at once must not retry at once.
            self._pause(min(self._unit * 2**attempt, _LONGEST_PAUSE) * self._random.uniform(0.5, 1.0))
        raise AssertionError("unreachable")

    def _grpc(self, version: str, method: str, request: Dict) -> Dict:
        from google.api_core import exceptions
        from google.protobuf import json_format

        client, types = self._manager(version)
        kind = getattr(types, "".join(word.title() for word in method.split("_")) + "Request")
        try:
            message = kind.wrap(json_format.ParseDict(request, kind.pb()()))
        except json_format.ParseError as error:
            raise RefusedError("INVALID_ARGUMENT", str(error)) from error
        try:
            answer = getattr(client, method)(request=message, retry=None, timeout=_TIMEOUT)
        except exceptions.GoogleAPICallError as error:
            code = error.grpc_status_code.name if error.grpc_status_code else "UNKNOWN"
            raise RefusedError(code, error.message or code) from error
        except exceptions.RetryError as error:
            raise RefusedError("DEADLINE_EXCEEDED", str(error)) from error
        result: Dict = json_format.MessageToDict(type(answer).pb(answer), preserving_proto_field_name=True)
        return result

    def _rest(self, verb: str, url: str, body: Dict | None) -> Dict:
        import requests

        try:
            answer = self._http.request(verb, url, json=body, timeout=_TIMEOUT)
            result: Dict = answer.json() if answer.content else {}
        except (requests.RequestException, ValueError) as error:
            raise RefusedError("UNAVAILABLE", str(error)) from error
        if answer.status_code >= 400:
            text = str((result.get("error") or {}).get("message") or answer.reason)
            raise RefusedError(_HTTP_CODES.get(answer.status_code, "UNKNOWN"), text)
        return result

    def _connect(self) -> None:
        with self._lock:
            if self._http is not None:
                return
            try:
                importlib.import_module("google.cloud.container_v1")
            except ModuleNotFoundError as error:
                raise MissingToolError(
                    "the Python package `google-cloud-container` is not installed",
                    hint="pip install 'xpk-multislice[gke]'",
                ) from error
            if not self._endpoints.gke:
                self._default_credentials()
            self._http = self._session()

    def _manager(self, version: str) -> tuple[Any, Any]:
        """Return a client of one version of ClusterManager, and its module of types."""
        types: Any = importlib.import_module(f"google.cloud.{version}")
        with self._lock:
            if version not in self._managers:
                self._managers[version] = self._new_manager(types)
            return self._managers[version], types

    def _new_manager(self, types: Any) -> Any:
        endpoint = self._endpoints.gke
        if not endpoint:
            return types.ClusterManagerClient(credentials=self._default_credentials())
        import grpc

        transport = types.ClusterManagerClient.get_transport_class("grpc")
        return types.ClusterManagerClient(transport=transport(channel=grpc.insecure_channel(endpoint)))

    def _session(self) -> Any:
        if self._endpoints.compute or self._endpoints.gke:
            import requests

            return requests.Session()
        from google.auth.transport.requests import AuthorizedSession

        return AuthorizedSession(self._default_credentials())

    def _default_credentials(self) -> Any:
        if self._credentials is None:
            import google.auth
            from google.auth.exceptions import DefaultCredentialsError

            try:
                self._credentials, _ = google.auth.default(scopes=[_SCOPE])
            except DefaultCredentialsError as error:
                raise AuthorizationError(
                    "no credentials found for Google Cloud",
                    hint="`gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to a key file",
                ) from error
        return self._credentials


def blocked(error: XpkError) -> str | None:
    """Return the operation that has to end before a rejected call can be retried."""
    cause = error.__cause__
    return blocker(cause.text) if isinstance(cause, RefusedError) else None


def is_crowded(error: XpkError) -> bool:
    """Return whether a call was rejected because too many operations run on the cluster."""
    cause = error.__cause__
    return isinstance(cause, RefusedError) and is_operation_limit(cause.text)


def is_existing(error: XpkError) -> bool:
    """Return whether a create call failed because the resource exists."""
    return isinstance(error.__cause__, RefusedError) and error.__cause__.code == "ALREADY_EXISTS"


def is_not_ready(error: XpkError) -> bool:
    """Return whether Compute Engine rejected a call because a resource is not ready or still in use."""
    cause = error.__cause__
    return isinstance(cause, RefusedError) and bool(_NOT_YET.search(cause.text))


def maybe(ask: Callable[[], Dict]) -> Dict | None:
    """Return the result of a call, None for a 404."""
    try:
        return ask()
    except NotFoundError:
        return None
