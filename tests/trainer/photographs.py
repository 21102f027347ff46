"""A small set of photographs: crops of scikit-learn's two, in class folders, archives or TFRecord files.

`python -m tests.trainer.photographs FOLDER` writes it in a second.
"""

import io
import sys
import tarfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("china", "flower")
TRAINED, EVALUATED = 24, 8  # images of each class


def photograph(name: str) -> Image.Image:
    """Return one of scikit-learn's photographs, 640 x 427 pixels."""
    spec = find_spec("sklearn.datasets")
    assert spec is not None and spec.submodule_search_locations
    return Image.open(Path(spec.submodule_search_locations[0], "images", f"{name}.jpg"))


def jpeg(image: Image.Image) -> bytes:
    content = io.BytesIO()
    image.save(content, "JPEG", quality=90)
    return content.getvalue()


def images(seed: int = 0) -> dict[str, bytes]:
    """Return JPEG files of crops of different sizes, by path below the folder of the set."""
    random, files = np.random.default_rng(seed), {}
    for name in CLASSES:
        whole = photograph(name)
        for number in range(TRAINED + EVALUATED):
            width, height = random.integers(120, 280, 2).tolist()
            left, upper = random.integers(0, 640 - width), random.integers(0, 427 - height)
            part = whole.crop((left, upper, left + width, upper + height))
            folder = "train" if number < TRAINED else "val"
            files[f"{folder}/{name}/{number:03}.JPEG"] = jpeg(part)
    return files


def write_folders(folder: Path) -> None:
    """Write the set as class folders."""
    for name, content in images().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def write_archives(folder: Path) -> None:
    """Write the set as two WebDataset archives."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "val"):
        with tarfile.open(folder / f"set-{part}-000.tar", "w") as archive:
            for name, content in images().items():
                if not name.startswith(part):
                    continue
                _, label, file = name.split("/")
                key = f"{label}-{file.removesuffix('.JPEG')}"
                add(archive, f"{key}.jpg", content)
                add(archive, f"{key}.cls", str(CLASSES.index(label)).encode())


def write_records(folder: Path) -> None:
    """Write the set as three TFRecord files, named as those of ImageNet."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, shards in (("train", 2), ("validation", 1)):
        files = [item for item in images().items() if item[0].startswith(part[:3])]
        for shard in range(shards):
            some = files[shard * len(files) // shards : (shard + 1) * len(files) // shards]
            records = [example(content, 1 + CLASSES.index(name.split("/")[1])) for name, content in some]
            (folder / f"{part}-{shard:05}-of-{shards:05}").write_bytes(b"".join(map(tf_record, records)))


def tf_record(content: bytes) -> bytes:
    """Return a record of a TFRecord file."""
    length = len(content).to_bytes(8, "little")
    return length + masked_crc(length) + content + masked_crc(content)


def masked_crc(content: bytes) -> bytes:
    """Return TFRecord's checksum: CRC-32C (Castagnoli), rotated right by 15 bits, plus a constant."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _CASTAGNOLI[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((((crc >> 15) | (crc << 17)) + 0xA282EAD8) % 2**32).to_bytes(4, "little")


def example(content: bytes, label: int, **features: bytes) -> bytes:
    """Return a tf.train.Example of an image, with a few of the other features that ImageNet's have."""
    others = {"image/format": _bytes(1, _bytes(1, b"JPEG")), "image/object/bbox/xmin": _bytes(2, _bytes(1, b"\0" * 8))}
    known = {"image/encoded": _bytes(1, _bytes(1, content)), "image/class/label": _bytes(3, _bytes(1, _varint(label)))}
    entries = others | known | features
    return _bytes(1, b"".join(_bytes(1, _bytes(1, key.encode()) + _bytes(2, value)) for key, value in entries.items()))


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    number, content = number % 2**64, b""
    while number > 0x7F:
        number, content = number >> 7, content + bytes([number & 0x7F | 0x80])
    return content + bytes([number])


def _castagnoli(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_CASTAGNOLI = [_castagnoli(byte) for byte in range(256)]


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


if __name__ == "__main__":
    write_folders(Path(sys.argv[1]))
