"""Encoding of protocol buffers, of which a few fields are written and read without a schema."""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_MAX_VARINT = 10  # bytes


def read_fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of a protocol buffer. Raises ValueError if it is damaged."""
    at = 0
    while at < len(content):
        key, at = read_varint(content, at)
        kind = key & 7
        if kind == _VARINT:
            number, at = read_varint(content, at)
            yield key >> 3, number
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(kind)
        if kind == _BYTES:
            size, at = read_varint(content, at)
        if size is None:
            raise ValueError(f"unknown wire type {kind}")
        if size > len(content) - at:
            raise ValueError("a field is longer than the record")
        yield key >> 3, content[at : at + size]
        at += size


def read_varint(content: bytes, at: int) -> tuple[int, int]:
    """Return an integer of a variable number of bytes, and the position after it. Raises ValueError without an end."""
    number = 0
    for index in range(_MAX_VARINT):
        if at + index >= len(content):
            break
        byte = content[at + index]
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return number, at + index + 1
    raise ValueError("an integer has no end")


def encode_bytes(field: int, content: bytes) -> bytes:
    """Return a field of bytes, or of an encoded message."""
    return bytes([field << 3 | 2]) + encode_varint(len(content)) + content


def encode_varint(number: int) -> bytes:
    """Return an integer in a variable number of bytes."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
