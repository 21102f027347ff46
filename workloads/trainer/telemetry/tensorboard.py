"""TensorBoard scalars in event files, appended to the run's output folder or bucket.

An event file is a sequence of records, each a TFRecord (length, its checksum, content, its checksum) that holds an
`Event` of tensorflow/core/util/event.proto. Only scalars are written, which needs five of its fields.
"""

import contextlib
import struct
import time
from collections.abc import Mapping
from typing import Any

from trainer.telemetry import metrics
from xpk_shared.storage import Place

FOLDER = "tensorboard"
_OMITTED = {"time", "attempt", "step", "total_steps", "loss_hex"}


class EventFile:
    """One attempt's event file; failed writes are not reported, because those of metrics.jsonl are."""

    def __init__(self, out: Place, attempt: int) -> None:
        # TensorBoard sorts files of a folder by name: the time keeps attempts in order.
        self._lines = (out / FOLDER / f"events.out.tfevents.{time.time():.0f}.{attempt}").lines()
        metrics.register(self)
        self._append(_event(0, version="brain.Event:2"), at_once=True)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append the values of a line of metrics.jsonl; values in a group are named like window/p50."""
        numbers = _numbers(record)
        if numbers:
            self._append(_event(record["step"], numbers, at=record["time"]))

    def flush(self, seconds: float) -> None:
        """Wait until everything is written. Raises OSError if it is not after `seconds`."""
        self._lines.flush(seconds)

    def _append(self, event: bytes, *, at_once: bool = False) -> None:
        with contextlib.suppress(OSError):
            self._lines.write(frame_record(event), at_once=at_once)


def frame_record(content: bytes) -> bytes:
    """Return a TFRecord."""
    length = struct.pack("<Q", len(content))
    return length + struct.pack("<I", _masked(length)) + content + struct.pack("<I", _masked(content))


def crc32c(content: bytes) -> int:
    """Return the CRC-32C (Castagnoli; RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    flat = {key: value for key, value in record.items() if key not in _OMITTED}
    for group in ("window", "memory"):
        flat |= {f"{group}/{key}": value for key, value in flat.pop(group, {}).items()}
    return {key: float(value) for key, value in flat.items() if isinstance(value, int | float)}


def _event(step: int, numbers: Mapping[str, float] | None = None, *, at: float = 0.0, version: str = "") -> bytes:
    """Return an Event: wall_time = 1, step = 2, file_version = 3, summary = 5 (values of tag = 1, simple_value = 2)."""
    event = b"\x09" + struct.pack("<d", at or time.time()) + b"\x10" + _varint(step)
    if version:
        event += _bytes(3, version.encode())
    values = [_bytes(1, _bytes(1, tag.encode()) + b"\x15" + _float(value)) for tag, value in (numbers or {}).items()]
    return event + (_bytes(5, b"".join(values)) if values else b"")


def _float(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", float("inf"))


def _bytes(field: int, content: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _masked(content: bytes) -> int:
    crc = crc32c(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _table_entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_TABLE = [_table_entry(byte) for byte in range(256)]
