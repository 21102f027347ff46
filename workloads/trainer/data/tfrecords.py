"""TFRecord files of images, as TensorFlow's scripts for ImageNet write them, read without TensorFlow.

A record is its length (8 bytes), the checksum of these, its content, and the checksum of that, all little-endian. The
content is a protocol buffer of the type tf.train.Example: a map from names to lists of bytes, floats or integers.
"""

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from trainer.errors import FatalError, Problem

IMAGE, LABEL = "image/encoded", "image/class/label"  # features that are read
_NAME = re.compile(r"\.tfrecords?$|-\d{5}-of-\d{5}$")
_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_MASK = 0xA282EAD8  # added to checksums, which would otherwise be weak for content that contains checksums
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types of protocol buffers
_MAX_VARINT_BITS = 64


class Example(NamedTuple):
    """An image of a file, as it is stored."""

    number: int  # of its record, from 0
    image: bytes
    label: int  # from 1; 0 is the background, which has no images


class _MalformedError(Exception):
    """A record is not a protocol buffer of the type tf.train.Example."""


def is_named(name: str) -> bool:
    """Return whether a name is that of a TFRecord file: NAME.tfrecord, or NAME-00000-of-00128."""
    return bool(_NAME.search(name.lower()))


def examples(file: Path, name: str) -> Iterator[Example]:
    """Yield the images of a file. Raises FatalError, with this name of the file, for the first bad record."""
    for number, content in enumerate(_records(file, name)):
        yield _example(f"record {number} of {name!r}", number, content)


def _example(where: str, number: int, content: bytes) -> Example:
    """Return the image of a record. Raises FatalError if a feature is missing."""
    try:
        found = _features(content)
    except _MalformedError as error:
        raise FatalError(Problem(f"{where} is not a tf.train.Example: {error}", "Write the file again")) from error
    values = {key: found.get(key, []) for key in (IMAGE, LABEL)}
    missing = [key for key, value in values.items() if len(value) != 1]
    if missing:
        count = len(values[missing[0]])
        problem = "has no feature" if not count else f"has {count} values in the feature"
        raise FatalError(Problem(f"{where} {problem} {missing[0]!r}", f"Files need {IMAGE} and {LABEL} in each record"))
    (image,), (label,) = values[IMAGE], values[LABEL]
    if not isinstance(image, bytes) or not isinstance(label, int):
        key, kind = (IMAGE, "bytes") if not isinstance(image, bytes) else (LABEL, "an integer")
        raise FatalError(Problem(f"{where} has a feature {key!r} that is not {kind}", "Write the file again"))
    if label < 1:
        raise FatalError(Problem(f"{where} has label {label}", f"Number the classes in {LABEL} from 1"))
    return Example(number, image, label)


def _records(file: Path, name: str) -> Iterator[bytes]:
    """Yield the contents of a file's records. Raises FatalError if it is truncated or a checksum is wrong."""
    checksum, size = _crc32c(), file.stat().st_size
    with file.open("rb") as stream:
        number = at = 0
        while at < size:
            where = f"record {number} of {name!r}"
            header = stream.read(_HEADER.size)
            length, expected = _HEADER.unpack(header) if len(header) == _HEADER.size else (0, None)
            if expected is not None and _masked(checksum(header[:8])) != expected:
                message = f"{where} is damaged: the checksum of its length is wrong"
                raise FatalError(Problem(message, "Copy the file again; compressed TFRecords are not read"))
            at += _HEADER.size + length + _CHECKSUM.size
            if expected is None or at > size:
                message = f"{where} is truncated: the file ends {at - size} bytes before its end"
                raise FatalError(Problem(message, "Copy the file again"))
            content = stream.read(length)
            if _masked(checksum(content)) != _CHECKSUM.unpack(stream.read(_CHECKSUM.size))[0]:
                message = f"{where} is damaged: the checksum of its content is wrong"
                raise FatalError(Problem(message, "Copy the file again"))
            yield content
            number += 1


def _crc32c() -> Any:
    """Return the function that computes CRC-32C. Raises FatalError if its library is not installed."""
    try:
        from google_crc32c import value
    except ImportError as error:
        message = "TFRecord files require google-crc32c, which is not installed"
        raise FatalError(Problem(message, "pip install 'xpk-multislice[images]'")) from error
    return value


def _masked(checksum: int) -> int:
    return ((checksum >> 15 | checksum << 17) + _MASK) & 0xFFFFFFFF


def _features(content: bytes) -> dict[str, list[bytes] | list[int]]:
    """Return the features of a tf.train.Example by name, without floats. Raises _MalformedError."""
    found: dict[str, list[bytes] | list[int]] = {}
    for features in _messages(content, 1):
        for entry in _messages(features, 1):
            (name, *_), (feature, *_) = list(_messages(entry, 1)) or [b""], list(_messages(entry, 2)) or [b""]
            texts = [value for values in _messages(feature, 1) for value in _messages(values, 1)]
            numbers = [number for values in _messages(feature, 3) for number in _integers(values)]
            found[name.decode(errors="replace")] = texts or numbers
    return found


def _integers(content: bytes) -> Iterator[int]:
    """Yield the values of an Int64List, packed or not."""
    for field, wire, value in _fields(content):
        if field == 1 and wire == _VARINT:
            yield _signed(value)
        elif field == 1 and wire == _BYTES:
            at = 0
            while at < len(value):
                number, at = _varint(value, at)
                yield _signed(number)


def _signed(number: int) -> int:
    return number - (1 << _MAX_VARINT_BITS) if number >> (_MAX_VARINT_BITS - 1) else number


def _messages(content: bytes, number: int) -> Iterator[bytes]:
    """Yield the values of a field of messages or bytes."""
    return (value for field, wire, value in _fields(content) if field == number and wire == _BYTES)


def _fields(content: bytes) -> Iterator[tuple[int, int, Any]]:
    """Yield (number, wire type, value) of the fields of a message: integers, or bytes."""
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        wire = tag & 7
        if wire == _VARINT:
            value, at = _varint(content, at)
            yield tag >> 3, wire, value
            continue
        if wire == _BYTES:
            size, at = _varint(content, at)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise _MalformedError(f"unknown wire type {wire}")
        if at + size > len(content):
            raise _MalformedError("a field is longer than the record")
        yield tag >> 3, wire, content[at : at + size]
        at += size


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """Return an integer of a variable number of bytes, and the position after it."""
    value = shift = 0
    while at < len(content) and shift < _MAX_VARINT_BITS:
        byte = content[at]
        value, at, shift = value | (byte & 0x7F) << shift, at + 1, shift + 7
        if byte < 0x80:
            return value & ((1 << _MAX_VARINT_BITS) - 1), at
    raise _MalformedError("an integer has no end")
