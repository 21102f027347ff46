"""Format of TensorBoard's event files: TFRecords of scalars, written by the trainer and read by the tool.

An event file is a sequence of records, each a TFRecord (length, its checksum, content, its checksum) that holds an
`Event` of tensorflow/core/util/event.proto. Of it, only the fields of scalars are written and read. What is read is
untrusted: records that are damaged or incomplete are skipped.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from xpk_shared.protocol_buffers import encode_bytes, encode_varint, read_fields

VERSION = "brain.Event:2"
_HEADER, _FOOTER = 12, 4  # bytes of length and checksum, and of the checksum of the content
_MAX_LENGTH = 1 << 40  # bytes of a record's content
_FLOAT, _DOUBLE = 1, 2  # types of tensors


@dataclass(frozen=True)
class Scalars:
    """The scalars of an event. `time`: Unix seconds."""

    time: float
    step: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class Block:
    """Contents of the complete records in a part of a file.

    `end`: position of the first byte that is not read; the next part begins there. `damaged`: skipped records.
    """

    contents: list[bytes]
    end: int
    damaged: int = 0


def frame_record(content: bytes) -> bytes:
    """Return a TFRecord."""
    length = struct.pack("<Q", len(content))
    return length + struct.pack("<I", _masked(length)) + content + struct.pack("<I", _masked(content))


def read_block(part: bytes, max_length: int, *, is_aligned: bool = True) -> Block:
    """Return the contents of records in a part of a file, except those of more than `max_length` bytes.

    The end of the block is beyond the end of the part if the last record is skipped for its length. Unless the part
    `is_aligned`, it begins inside a record; reading starts at the next one, which its checksum identifies.
    """
    contents, damaged = list[bytes](), 0
    at = 0 if is_aligned else _find_header(part, 0)
    while len(part) - at >= _HEADER:
        length = _length(part, at)
        if length is None:
            damaged, at = damaged + 1, _find_header(part, at + 1)
            continue
        begin, end = at + _HEADER, at + _HEADER + length
        if length > max_length:
            at = end + _FOOTER
        elif end + _FOOTER > len(part):
            break
        else:
            content = part[begin:end]
            if struct.unpack_from("<I", part, end)[0] == _masked(content):
                contents.append(content)
            else:
                damaged += 1
            at = end + _FOOTER
    return Block(contents, at, damaged)


def encode_event(step: int, values: Mapping[str, float], at: float = 0.0, version: str = "") -> bytes:
    """Return an Event: wall_time = 1, step = 2, file_version = 3, summary = 5 (values of tag = 1, simple_value = 2)."""
    event = b"\x09" + struct.pack("<d", at or time.time()) + b"\x10" + encode_varint(step)
    if version:
        event += encode_bytes(3, version.encode())
    encoded = [
        encode_bytes(1, encode_bytes(1, tag.encode()) + b"\x15" + _float(value)) for tag, value in values.items()
    ]
    return event + (encode_bytes(5, b"".join(encoded)) if encoded else b"")


def decode_event(content: bytes) -> Scalars | None:
    """Return the scalars of an Event, None if it has none or is damaged."""
    at, step, values = 0.0, 0, dict[str, float]()
    try:
        for number, value in read_fields(content):
            if number == 1 and isinstance(value, bytes):
                (at,) = struct.unpack("<d", value)
            elif number == 2 and isinstance(value, int):
                step = value
            elif number == 5 and isinstance(value, bytes):
                values.update(_summary(value))
    except (ValueError, struct.error):
        return None
    return Scalars(at, step, values) if values and step < 1 << 63 else None


def crc32c(content: bytes) -> int:
    """Return the CRC-32C (Castagnoli; RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def masked(checksum: int) -> int:
    """Return a checksum as TFRecords have it: that of content with checksums would otherwise be weak."""
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _length(part: bytes, at: int) -> int | None:
    """Return the length of the record's content at a position, None if no record begins there."""
    header = part[at : at + 8]
    length: int = struct.unpack("<Q", header)[0]
    if length > _MAX_LENGTH or struct.unpack_from("<I", part, at + 8)[0] != _masked(header):
        return None
    return length


def _find_header(part: bytes, start: int) -> int:
    """Return the position of the next record, or the end of the part. Its length is less than 16 MiB."""
    at = part.find(bytes(5), start + 3)  # the high bytes of a length
    while at >= 0:
        if at - 3 + _HEADER <= len(part) and _length(part, at - 3) is not None:
            return at - 3
        # A header is not all zeros, since checksums are masked: skip long runs of zeros, such as holes in files.
        zeros = _zeros(part, at - 3)
        at = part.find(bytes(5), max(at + 1, at - 3 + zeros - _HEADER + 4))
    return len(part)


def _zeros(part: bytes, start: int) -> int:
    """Return the number of zeros from a position on, 0 for less than a header."""
    if part[start : start + _HEADER].count(0) < _HEADER:
        return 0
    rest = part[start:]
    return len(rest) - len(rest.lstrip(b"\0"))


def _summary(content: bytes) -> Iterator[tuple[str, float]]:
    """Yield the scalars of a Summary: value = 1, with tag = 1, simple_value = 2 or tensor = 8."""
    for number, value in read_fields(content):
        if number != 1 or not isinstance(value, bytes):
            continue
        tag, scalar = "", None
        for inner, part in read_fields(value):
            if inner == 1 and isinstance(part, bytes):
                tag = part.decode(errors="replace")
            elif inner == 2 and isinstance(part, bytes) and len(part) == 4:
                (scalar,) = struct.unpack("<f", part)
            elif inner == 8 and isinstance(part, bytes):
                scalar = _tensor(part)
        if scalar is not None:
            yield tag, scalar


def _tensor(content: bytes) -> float | None:
    """Return the value of a TensorProto with one number: dtype = 1, tensor_content = 4, float_val = 5, double_val = 6.

    TensorFlow 2 writes scalars as tensors.
    """
    kind, values = 0, b""
    for number, value in read_fields(content):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number in (4, 5, 6) and isinstance(value, bytes):
            values = value
    form = {(_FLOAT, 4): "<f", (_DOUBLE, 8): "<d"}.get((kind, len(values)))
    return None if form is None else float(struct.unpack(form, values)[0])


def _float(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", float("inf"))


def _masked(content: bytes) -> int:
    return masked(crc32c(content))


def _table_entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_TABLE = [_table_entry(byte) for byte in range(256)]
