"""Error responses: a gRPC status with google.rpc details, and the same over HTTP."""

from __future__ import annotations

from typing import Any

import grpc
from google.cloud.container_v1 import StatusCondition
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2

DOMAIN = "container.googleapis.com"
HTTP_STATUS = {"INVALID_ARGUMENT": 400, "FAILED_PRECONDITION": 400, "UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403,
               "NOT_FOUND": 404, "ALREADY_EXISTS": 409, "ABORTED": 409, "RESOURCE_EXHAUSTED": 429, "CANCELLED": 499,
               "INTERNAL": 500, "UNKNOWN": 500, "UNIMPLEMENTED": 501, "UNAVAILABLE": 503,
               "DEADLINE_EXCEEDED": 504}  # fmt: skip


def canonical(name: str) -> int:
    """Return the number of a canonical code."""
    return int(code_pb2.Code.Value(name))


def condition(code: str, canonical_name: str, message: str) -> Any:
    """Return the condition that explains the state of a cluster or node pool."""
    number = getattr(StatusCondition.Code, code)
    return StatusCondition.pb()(code=number, canonical_code=canonical(canonical_name), message=message)


class Refusal(Exception):
    """A rejected call. `code` is the name of a canonical code; `reason` that of an ErrorInfo, if any."""

    def __init__(self, code: str, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.reason = code, message, reason

    @classmethod
    def invalid(cls, message: str) -> Refusal:
        """Return the error for an invalid value of a field."""
        return cls("INVALID_ARGUMENT", message)

    @classmethod
    def not_found(cls, path: str) -> Refusal:
        """Return GKE's error for a missing name."""
        return cls("NOT_FOUND", f"Not found: {path}.")

    @classmethod
    def exists(cls, path: str) -> Refusal:
        """Return GKE's error for an existing name."""
        return cls("ALREADY_EXISTS", f"Already exists: {path}.")

    @classmethod
    def busy(cls, operation: str) -> Refusal:
        """Return GKE's error while `operation` locks the resource."""
        message = f"Cluster is running incompatible operation {operation}."
        return cls("FAILED_PRECONDITION", message, "CLUSTER_ALREADY_HAS_OPERATION")

    @classmethod
    def precondition(cls, message: str) -> Refusal:
        """Return the error for the state of a resource."""
        return cls("FAILED_PRECONDITION", message)

    @property
    def http(self) -> int:
        """Return the status code over HTTP."""
        return HTTP_STATUS.get(self.code, 500)

    def status(self) -> Any:
        """Return this as a google.rpc.Status."""
        status = status_pb2.Status(code=canonical(self.code), message=self.message)
        if self.reason:
            detail = any_pb2.Any()
            detail.Pack(error_details_pb2.ErrorInfo(reason=self.reason, domain=DOMAIN))
            status.details.append(detail)
        return status

    def abort(self, context: grpc.ServicerContext) -> None:
        """Abort a gRPC call with this error."""
        details = (("grpc-status-details-bin", self.status().SerializeToString()),)
        context.set_trailing_metadata(details)
        context.abort(grpc.StatusCode[self.code], self.message)
