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
from xpk_shared.event_files import masked
from xpk_shared.protocol_buffers import read_fields, read_varint

IMAGE, LABEL = "image/encoded", "image/class/label"  # features that are read
_NAME = re.compile(r"\.tfrecords?$|-\d{5}-of-\d{5}$")
_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_INTEGER_BITS = 64


class Example(NamedTuple):
    """An image of a file, as it is stored."""

    number: int  # of its record, from 0
    image: bytes
    label: int  # from 1; 0 is the background, which has no images


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
        features = _features(content)
    except ValueError as error:
        raise FatalError(Problem(f"{where} is not a tf.train.Example: {error}", "Write the file again")) from error
    values = {key: features.get(key, []) for key in (IMAGE, LABEL)}
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
            if expected is not None and masked(checksum(header[:8])) != expected:
                message = f"{where} is damaged: the checksum of its length is wrong"
                raise FatalError(Problem(message, "Copy the file again; compressed TFRecords are not read"))
            at += _HEADER.size + length + _CHECKSUM.size
            if expected is None or at > size:
                message = f"{where} is truncated: the file ends {at - size} bytes before its end"
                raise FatalError(Problem(message, "Copy the file again"))
            content = stream.read(length)
            if masked(checksum(content)) != _CHECKSUM.unpack(stream.read(_CHECKSUM.size))[0]:
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


def _features(content: bytes) -> dict[str, list[bytes] | list[int]]:
    """Return the features of a tf.train.Example by name, without floats. Raises ValueError if it is damaged."""
    features: dict[str, list[bytes] | list[int]] = {}
    for message in _messages(content, 1):
        for entry in _messages(message, 1):
            (name, *_), (feature, *_) = list(_messages(entry, 1)) or [b""], list(_messages(entry, 2)) or [b""]
            texts = [value for values in _messages(feature, 1) for value in _messages(values, 1)]
            numbers = [number for values in _messages(feature, 3) for number in _integers(values)]
            features[name.decode(errors="replace")] = texts or numbers
    return features


def _messages(content: bytes, number: int) -> Iterator[bytes]:
    """Yield the values of a field of messages or bytes."""
    return (value for field, value in read_fields(content) if field == number and isinstance(value, bytes))


def _integers(content: bytes) -> Iterator[int]:
    """Yield the values of an Int64List, packed or not."""
    for field, value in read_fields(content):
        if field == 1 and isinstance(value, int):
            yield _signed(value)
        elif field == 1 and isinstance(value, bytes):
            at = 0
            while at < len(value):
                number, at = read_varint(value, at)
                yield _signed(number)


def _signed(number: int) -> int:
    return number - (1 << _INTEGER_BITS) if number >> (_INTEGER_BITS - 1) else number
