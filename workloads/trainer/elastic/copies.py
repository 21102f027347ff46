"""Comparison of the states of elastic slices, which all compute the same one from the same sums.

Each slice sends the checksum of every array (checkpoint/replica_check.py). A slice whose state differs from that of
most slices ends, and receives theirs when it joins again. If there is no majority, all of them end: it is unknown which
state is right.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from trainer.checkpoint.replica_check import majority
from trainer.checkpoint.shards import names
from trainer.errors import CorruptError
from trainer.setup import Run

_NAMED = 3  # arrays in the message

Differences = list[list[Any]]  # [number of an array, slices that differ, whether most of the others agree]


def differences(sums: Mapping[int, Sequence[int]]) -> Differences:
    """Return the arrays that differ; `sums` are the checksums of arrays by slice."""
    result = []
    for number in range(min(map(len, sums.values()), default=0)):
        suspects = majority({slice_id: values[number] for slice_id, values in sums.items()})
        if suspects is not None:
            result.append([number, list(suspects[0]), suspects[1]])
    return result


def require(run: Run, differ: Differences, step: int) -> None:
    """Raise CorruptError on a slice whose state after `step` may be wrong; every slice calls it."""
    own, arrays = run.job.host.slice_id, names(run.programs.state)
    concern = [(arrays[number], slices, is_sure) for number, slices, is_sure in differ if own in slices or not is_sure]
    if not concern:
        return
    details = [{"array": name, "slices": slices, "sure": is_sure} for name, slices, is_sure in concern]
    run.job.events.write("replicas_differ", step, arrays=details)
    lines = [
        f"{name} of slice {', '.join(map(str, slices))} differs from {'most' if is_sure else 'the'} other slices"
        for name, slices, is_sure in concern[:_NAMED]
    ]
    more = f"; and {len(concern) - _NAMED} more" if len(concern) > _NAMED else ""
    raise CorruptError(f"slices differ after step {step}: {'; '.join(lines)}{more}", range(run.job.host.processes))
