"""`ObjectApi`, the interface to an API server for the jobs and capacity packages.

Objects are plain dicts in Kubernetes' shape. There are two implementations, Kubernetes' own and the embedded one of
`xpk.local`; a conformance test runs the same cases on both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, runtime_checkable

Obj = dict[str, Any]
Objs = list[Obj]  # an alias, since inside the protocol `list` is a method
MANAGER = "xpk"  # the field manager of server-side apply
Change = Literal["ADDED", "MODIFIED", "DELETED"]
Keep = Callable[[Obj], Obj]


class Connection(Protocol):
    """Connection to a port of a host: a socket, or one through the API server, which has no `with`."""

    def recv(self, size: int, /) -> bytes:
        """Receive at most `size` bytes, b"" at the end."""

    def sendall(self, data: bytes, /) -> None:
        """Send data."""

    def shutdown(self, how: int, /) -> None:
        """End one direction or both."""

    def getpeername(self) -> Any:
        """Return the address of the other end."""

    def close(self) -> None:
        """End the connection."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One log line of a host, and its time."""

    time: datetime
    text: str

    @classmethod
    def parse(cls, line: str) -> LogLine:
        """Parse a timestamped log line, with a time in the node's time zone. Raises ValueError for another line."""
        stamp, _, text = line.partition(" ")
        time = datetime.fromisoformat(stamp)  # of nanoseconds, it keeps six digits
        if time.tzinfo is None:
            raise ValueError(f"{stamp} has no time zone")
        try:
            return cls(time.astimezone(UTC), text)
        except OverflowError as error:
            raise ValueError(f"{stamp} is not a time in UTC") from error


@dataclass(frozen=True, slots=True)
class NotIn:
    """In a selector: any value but these, and no value."""

    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class In:
    """In a selector of labels: one of these values."""

    values: tuple[str, ...]


Selector = Mapping[str, str | In | NotIn]


def is_selected(obj: Obj, labels: Selector | None, fields: Selector | None = None) -> bool:
    """Return whether an object has these labels and these values at the field paths."""
    present_labels = obj["metadata"].get("labels") or {}
    return all(_matches(present_labels.get(key), value) for key, value in (labels or {}).items()) and all(
        _matches(_at(obj, path), value) for path, value in (fields or {}).items()
    )


def _matches(value: Any, selected: str | In | NotIn) -> bool:
    if isinstance(selected, In):
        return value in selected.values
    return value not in selected.values if isinstance(selected, NotIn) else value == selected


def _at(obj: Any, path: str) -> Any:
    for key in path.split("."):
        obj = obj.get(key) if isinstance(obj, dict) else None
    return obj


@runtime_checkable
class Versioned(Protocol):
    """An API server that reports its version."""

    def server_version(self) -> str:
        """Return the version as the server reports it, such as v1.34.3."""
        ...


class ObjectApi(Protocol):
    """An API server of JSON objects.

    Every method may raise `NotFoundError`, `ConflictError`, `UsageError` (the server refuses the object),
    `AuthorizationError`, `MissingToolError` (the kind is not installed) and `XpkError`.
    `selector` is equality of labels, `In` or `NotIn`; `namespace` is ignored for kinds that have none.
    """

    def create(self, obj: Obj, *, dry_run: bool = False) -> Obj:
        """Create an object that must not exist yet; return it as stored."""
        ...

    def apply(self, obj: Obj, *, dry_run: bool = False, force: bool = False) -> Obj:
        """Set the given fields, leave fields that others own; return the object as stored.

        `force` takes over fields that another manager has set to other values.
        """
        ...

    def get(self, kind: str, name: str, namespace: str = "default") -> Obj:
        """Return one object."""
        ...

    def list(
        self,
        kind: str,
        namespace: str | None = "default",
        selector: Selector | None = None,
        *,
        fields: Selector | None = None,
        keep: Keep | None = None,
    ) -> Objs:
        """Return the objects of a kind, sorted by name; `namespace=None` means all namespaces.

        `fields`: field selectors by path; servers support only a few of them, such as `reason` of events.
        `keep`: returns the fields of an object that the caller reads, so that long lists take little time and memory.
        It must accept fields of any type, because objects are checked afterwards.
        """
        ...

    def patch(self, kind: str, name: str, patch: Obj, namespace: str = "default") -> Obj:
        """Merge a JSON merge patch (RFC 7386) into an object; return the result."""
        ...

    def delete(self, kind: str, name: str, namespace: str = "default", *, grace_seconds: int | None = None) -> None:
        """Delete an object and everything that it owns. Returns before the deletion is complete."""
        ...

    def evict(self, name: str, namespace: str = "default") -> None:
        """Evict a pod as a drain does: it gets SIGTERM and its own grace period, and is recreated elsewhere.

        Raises ProtectedError while a PodDisruptionBudget forbids it.
        """
        ...

    def watch(
        self,
        kind: str,
        namespace: str | None = "default",
        selector: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
    ) -> Iterator[tuple[Change, Obj]]:
        """Yield existing objects (as ADDED), then every change, until `timeout` seconds have passed."""
        ...

    def logs(
        self, pod: Obj, *, follow: bool = False, since: datetime | None = None, tail: int | None = None
    ) -> Iterator[LogLine]:
        """Yield a pod's log lines; with `follow`, until the pod has ended."""
        ...

    def exec(self, pod: Obj, argv: Sequence[str], *, interactive: bool = False) -> int:
        """Run a program next to a running host, on this process's stdin and stdout; return its exit code.

        `interactive` gives it a terminal. Raises ConflictError if the host is not running.
        """
        ...

    def connect(self, pod: Obj, port: int) -> Connection:
        """Return a connection to a port of a running host. Raises ConflictError if nothing listens on it."""
        ...

    def former_pods(self, namespace: str, selector: Mapping[str, str]) -> Objs:
        """Return deleted pods whose logs are kept. Kubernetes keeps none."""
        ...
