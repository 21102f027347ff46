"""Every error that a user can meet, and the exit code of each.

* XpkError (1)                something failed
  + UsageError (2)            the request itself is wrong; several problems are reported together
  + NotFoundError (3)         no such cluster, workload or object
  + ConflictError (4)         it exists already, or was changed by somebody else meanwhile
  + CapacityError (5)         no quota, or it can never fit
  + AuthorizationError (6)    the API server refuses this user
  + MissingToolError (7)      a program, package or controller is not installed
  + WorkloadFailedError (8)   the workload itself failed
  + UnavailableError (1)      the API server does not answer now, or cannot
  + TimedOutError (124)       it did not happen in the time that was given

130 is what Ctrl-C gives. Every message says what and why; `hint` is the next command to try.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class XpkError(Exception):
    """Something failed; `message` says what and why, `hint` what to do next."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "", resource: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.resource = resource  # the object that the error is about, such as "JobSet 'w'"; "" if there is none


class UsageError(XpkError):
    """The request is wrong. `problems` holds all that was found, each one line."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "", problems: Sequence[str] = ()) -> None:
        super().__init__(message, hint=hint)
        self.problems = tuple(problems) or (message,)


class Problems:
    """What is wrong with several parts of a request, told together."""

    def __init__(self) -> None:
        self._found: list[UsageError] = []

    def read(self, otherwise: _T, parse: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Return what `parse` makes of a part; `otherwise`, to look at the rest, where it raises UsageError."""
        try:
            return parse(*args, **kwargs)
        except UsageError as error:
            self._found.append(error)
            return otherwise

    def add(self, problem: str, *, hint: str = "") -> None:
        """Take note of a problem."""
        self._found.append(UsageError(problem, hint=hint))

    def check(self, message: str, *, hint: str) -> None:
        """Raise UsageError if anything was wrong: one error as it was, several as `message`, with the hint of each."""
        if len(self._found) == 1:
            raise self._found[0]
        if self._found:
            raise self._combined(self._found, message, hint)

    def joined(self, error: XpkError, message: str, *, hint: str) -> XpkError:
        """Return `error`: as it is if nothing else was wrong, otherwise a UsageError of all problems, it last."""
        if not self._found:
            return error
        last = error if isinstance(error, UsageError) else UsageError(error.message, hint=error.hint)
        return self._combined([*self._found, last], message, hint)

    @staticmethod
    def _combined(errors: Sequence[UsageError], message: str, hint: str) -> UsageError:
        problems: list[str] = []
        for error in errors:
            *others, last = error.problems
            problems += [*others, last if error.hint in ("", hint) else f"{last} ({error.hint})"]
        return UsageError(message, problems=problems, hint=hint)


class NotFoundError(XpkError):
    """There is no such thing."""

    exit_code = 3


class ConflictError(XpkError):
    """It exists already in another shape, or somebody else changed it meanwhile."""

    exit_code = 4


class ProtectedError(ConflictError):
    """A PodDisruptionBudget does not let a pod be evicted now; it may later."""


class CapacityError(XpkError):
    """No quota for it now, or it can never fit on this cluster."""

    exit_code = 5


class AuthorizationError(XpkError):
    """The API server refuses this user."""

    exit_code = 6


class MissingToolError(XpkError):
    """A program, a Python package or a controller that this needs is not installed."""

    exit_code = 7


class WorkloadFailedError(XpkError):
    """The workload ran and failed."""

    exit_code = 8


class UnavailableError(XpkError):
    """The API server does not answer, or cannot now; it may later."""


class TimedOutError(XpkError):
    """It did not happen in the time that was given."""

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
