"""Errors shown to users, and the exit codes of a host.

Problem        one problem and its hint
FatalError     problems that no retry can fix; the host exits with 42
MovedError     the run continues on another cluster; exits with 80
SaveError      the final state could not be saved, as all hosts know; they exit with 1
StorageError   this host could not write data that others need; it exits with 1
PeerAbsent     a host did not connect in time; this one exits with 75
ChipsError     slices do not have equal numbers of chips; exits with 1, as another machine may have them
CorruptError   replicas of the state differ; suspects exit with 77, the others with 75
AddressError   process 0 cannot listen on its port; it exits with 1, as the job that uses the port may end

Errors of storage are those of `xpk_shared.storage.errors`.
"""

import dataclasses
import enum
from collections.abc import Sequence

from xpk_shared.links.errors import AddressError as AddressError
from xpk_shared.links.errors import PeerAbsent as PeerAbsent


class ExitCode(enum.IntEnum):
    """Exit codes of a host; the JobSet's failure policy acts on them."""

    DONE = 0
    CRASH = 1
    FATAL = 42
    PEER_LOST = 75
    HUNG = 76
    CORRUPT = 77
    UNFIT = 79  # failed a preflight check; 78 is the supervisor's
    MOVED = 80  # the run continues on another cluster
    INTERRUPTED = 130
    PREEMPTED = 143


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """One problem (`message`) and the remedy (`hint`)."""

    message: str
    hint: str

    def __str__(self) -> str:
        return f"error: {self.message}. {self.hint}"


class FatalError(Exception):
    """The run cannot work, however often it is retried."""

    exit_code = ExitCode.FATAL

    def __init__(self, *problems: Problem) -> None:
        super().__init__("; ".join(problem.message for problem in problems))
        self.problems = problems


class MovedError(FatalError):
    """The run continues on another of the clusters of its workload."""

    exit_code = ExitCode.MOVED


class SaveError(Exception):
    """The final state could not be saved; the work since the last checkpoint would be lost."""


class StorageError(Exception):
    """This host could not write data that the run needs."""


class ChipsError(Exception):
    """The job's chips do not form equal slices."""


class CorruptError(Exception):
    """Replicas of the state differ; `suspects` are the processes whose copy may be wrong."""

    def __init__(self, message: str, suspects: Sequence[int]) -> None:
        super().__init__(message)
        self.suspects = tuple(suspects)


def reason(error: BaseException) -> str:
    """Return an error as one short line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split()) or type(error).__name__
    for word in ("No space left on device", "File too large", "Disk quota exceeded"):
        if word in text:
            return word
    return text[:300]
