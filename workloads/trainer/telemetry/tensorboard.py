"""TensorBoard scalars in event files, appended to the run's output folder or bucket."""

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from trainer.telemetry import metrics
from xpk_shared.event_files import VERSION, encode_event, frame_record
from xpk_shared.storage import Place

FOLDER = "tensorboard"
_OMITTED = {"time", "attempt", "step", "total_steps", "loss_hex"}


class EventFile:
    """One attempt's event file; failed writes are not reported, because those of metrics.jsonl are."""

    def __init__(self, out: Place, attempt: int) -> None:
        # TensorBoard sorts files of a folder by name: the time keeps attempts in order.
        self._lines = (out / FOLDER / f"events.out.tfevents.{time.time():.0f}.{attempt}").lines()
        metrics.register(self)
        self._append(encode_event(0, {}, version=VERSION), at_once=True)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append the values of a line of metrics.jsonl; values in a group are named like window/p50."""
        numbers = _numbers(record)
        if numbers:
            self._append(encode_event(record["step"], numbers, at=record["time"]))

    def flush(self, seconds: float) -> None:
        """Wait until everything is written. Raises OSError if it is not after `seconds`."""
        self._lines.flush(seconds)

    def _append(self, event: bytes, *, at_once: bool = False) -> None:
        with contextlib.suppress(OSError):
            self._lines.write(frame_record(event), at_once=at_once)


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    flat = {key: value for key, value in record.items() if key not in _OMITTED}
    for group in ("window", "memory"):
        flat |= {f"{group}/{key}": value for key, value in flat.pop(group, {}).items()}
    return {key: float(value) for key, value in flat.items() if isinstance(value, int | float)}
