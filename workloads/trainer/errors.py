"""What a user can be told, and the exit codes a host ends with.

Problem        one thing that is wrong, and what to do about it
FatalError     problems that no retry can cure; the host ends with 42
SaveError      the last state could not be saved, as all hosts know; they end with 1
StorageError   this host could not write what the others need; it ends with 1
Unreachable    a bucket does not answer now; a retry may cure it
PeerAbsent     a host never came; this one ends with 75
ChipsError     the slices have not the chips that they should; the host ends with 1, for another machine may have them
CorruptError   copies of the state differ; hosts that may be wrong end with 77, the others with 75
AddressError   process 0 cannot listen where it must; it ends with 1, for another job may end
"""

import dataclasses
import enum
from collections.abc import Sequence


class ExitCode(enum.IntEnum):
    """Exit codes of a host; the JobSet's failure policy acts on them."""

    DONE = 0
    CRASH = 1
    FATAL = 42
    PEER_LOST = 75
    HUNG = 76
    CORRUPT = 77
    INTERRUPTED = 130
    PREEMPTED = 143


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong (`message`) and how to put it right (`hint`)."""

    message: str
    hint: str

    def __str__(self) -> str:
        return f"error: {self.message}. {self.hint}"


class FatalError(Exception):
    """The run cannot work however often it is tried."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("; ".join(problem.message for problem in problems))
        self.problems = problems


class SaveError(Exception):
    """The last state could not be saved, so the work since the last checkpoint would be lost."""


class StorageError(Exception):
    """This host could not write something that the run needs."""


class Unreachable(ConnectionError):
    """A bucket does not answer, or not as it should."""


class PeerAbsent(Exception):
    """Another host did not come in time; `missing` has the process ids, where they are known."""

    def __init__(self, message: str, missing: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.missing = tuple(missing)


class ChipsError(Exception):
    """The job's chips are not those of equal slices."""


class CorruptError(Exception):
    """Copies of the state on several chips differ; `suspects` are the processes whose copy may be wrong."""

    def __init__(self, message: str, suspects: Sequence[int]) -> None:
        super().__init__(message)
        self.suspects = tuple(suspects)


class AddressError(Exception):
    """This host cannot listen at an address of its own."""


def reason(error: BaseException) -> str:
    """Return an error as one short line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split()) or type(error).__name__
    for word in ("No space left on device", "File too large", "Disk quota exceeded"):
        if word in text:
            return word
    return text[:300]
