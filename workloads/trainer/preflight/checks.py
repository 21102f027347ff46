"""Results of preflight checks, which hosts send to process 0, and the names of the checks."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Check(StrEnum):
    """Name of a check."""

    DNS = "dns"  # the coordinator's name resolves
    DISK = "disk"  # a folder or bucket returns what was written
    CHIPS = "chips"  # the chips can be opened
    CLOCK = "clock"  # difference to the clock of slice 0 host 0
    BF16 = "bf16"  # matrix products in bfloat16
    INT8 = "int8"  # matrix products in int8
    MEMORY = "memory"  # a pattern in the chips' memory
    ICI = "ici"  # exchange with other hosts of the slice
    DCN = "dcn"  # exchange with the same host of other slices


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of one check on one host. It passed if `problem` is empty."""

    check: Check
    problem: str = ""  # what is wrong, in words
    value: float | None = None  # the measurement
    unit: str = ""  # s, or GB/s in one direction
    detail: str = ""  # what was measured, in words

    @property
    def passed(self) -> bool:
        """Return whether nothing is wrong."""
        return not self.problem

    def __str__(self) -> str:
        """Return the line of a log."""
        figure = "" if self.value is None else f"{self.value:.4g} {self.unit}"
        words = self.problem or ", ".join(filter(None, [figure, self.detail]))
        return f"preflight  {self.check:7}{'ok    ' if self.passed else 'FAILED'}  {words}"

    def to_json(self) -> dict[str, Any]:
        """Return the result as a row of JSON."""
        return asdict(self)


def from_json(row: Mapping[str, Any]) -> Result:
    """Return the result that `to_json` has written."""
    return Result(**{**row, "check": Check(row["check"])})
