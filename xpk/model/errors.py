"""User-facing errors and their exit codes.

* XpkError (1)                something failed
  + UsageError (2)            the request is invalid; several problems are reported together
  + NotFoundError (3)         the cluster, workload or object does not exist
  + ConflictError (4)         it already exists, or was modified concurrently
  + CapacityError (5)         not enough quota, or it can never fit
  + AuthorizationError (6)    the API server denies this user access
  + MissingToolError (7)      a program, package or controller is not installed
  + WorkloadFailedError (8)   the workload itself failed
  + UnavailableError (1)      the API server does not answer
  + TimedOutError (124)       the time limit was exceeded

Ctrl-C exits with 130. Every message states what failed and why; `hint` is the next command to run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class XpkError(Exception):
    """A failed operation; `message` states what failed and why, `hint` the next step."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "", resource: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.resource = resource  # the object that the error is about, such as "JobSet 'w'"; "" if there is none


class UsageError(XpkError):
    """An invalid request. `problems` lists every problem found, one line each."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "", problems: Sequence[str] = ()) -> None:
        super().__init__(message, hint=hint)
        self.problems = tuple(problems) or (message,)


class Problems:
    """Collected problems of a request, reported together."""

    def __init__(self) -> None:
        self._found: list[UsageError] = []

    def __bool__(self) -> bool:
        """Return True if there are problems."""
        return bool(self._found)

    def read(self, otherwise: _T, parse: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Return the result of `parse`; record a UsageError and return `otherwise`, so that other parts are checked."""
        try:
            return parse(*args, **kwargs)
        except UsageError as error:
            self._record(error)
            return otherwise

    def add(self, problem: str, *, hint: str = "") -> None:
        """Record a problem."""
        self._record(UsageError(problem, hint=hint))

    def check(self, message: str, *, hint: str) -> None:
        """Raise UsageError if there are problems: a single one unchanged, several under `message` with their hints."""
        if len(self._found) == 1:
            raise self._found[0]
        if self._found:
            raise self._combined(self._found, message, hint)

    def joined(self, error: XpkError, message: str, *, hint: str) -> XpkError:
        """Return `error`: as it is if nothing else was wrong, otherwise a UsageError of all problems, it last."""
        last = error if isinstance(error, UsageError) else UsageError(error.message, hint=error.hint)
        others = [other for other in self._found if other.problems != last.problems]
        return self._combined([*others, last], message, hint) if others else error

    def _record(self, error: UsageError) -> None:
        """Record an error, unless an earlier check of the same fields has found it."""
        if all(error.problems != other.problems for other in self._found):
            self._found.append(error)

    @staticmethod
    def _combined(errors: Sequence[UsageError], message: str, hint: str) -> UsageError:
        problems: list[str] = []
        for error in errors:
            *others, last = error.problems
            problems += [*others, last if error.hint in ("", hint) else f"{last} ({error.hint})"]
        return UsageError(message, problems=problems, hint=hint)


class NotFoundError(XpkError):
    """A cluster, workload or object that does not exist."""

    exit_code = 3


class ConflictError(XpkError):
    """An object that already exists in another shape, or that was modified concurrently."""

    exit_code = 4


class ProtectedError(ConflictError):
    """An eviction that a PodDisruptionBudget does not allow at present."""


class CapacityError(XpkError):
    """Insufficient quota, or a workload that can never fit on the cluster."""

    exit_code = 5


class AuthorizationError(XpkError):
    """A request that the API server does not allow this user."""

    exit_code = 6


class MissingToolError(XpkError):
    """A required program, Python package or controller that is not installed."""

    exit_code = 7


class WorkloadFailedError(XpkError):
    """A workload that ran and failed."""

    exit_code = 8


class UnavailableError(XpkError):
    """An API server that does not answer at present."""


class TimedOutError(XpkError):
    """An operation that exceeded its time limit."""

    exit_code = 124


class NameTaken(ConflictError):
    """A name that an object of the same kind already has; `resource` is that object."""


class Modified(ConflictError):
    """An object that was modified concurrently; `resource` is that object."""


class OutputExists(ConflictError):
    """An output folder that an earlier workload has left; `resource` is its URL."""


class QuotaExceeded(CapacityError):
    """More than a quota holds; `resource` is the queue, or the object that its namespace refuses."""


class NotAuthorized(AuthorizationError):
    """A request that the API server denies this user; `resource` is the kind of objects."""
