"""Manifests keep their format, and name what is wrong with a checkpoint."""

import hashlib
import json
import zlib
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from trainer.checkpoint.stores import manifest

MIB = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a committed folder with a file of three blocks, the last one short."""
    (tmp_path / "w").write_bytes(b"a" * 65536 + b"b" * 65536 + b"c")
    commit(tmp_path, manifest.sums(tmp_path))
    return tmp_path


def commit(folder: Path, files: manifest.Sums, **notes: Any) -> None:
    (folder / manifest.MANIFEST).write_bytes(manifest.manifest(files, notes))


def inside(name: str, begin: int, end: int) -> str:
    return f"bytes {begin} to {end}"


@pytest.mark.parametrize(
    ("size", "block", "blocks"),
    [
        (0, 65536, 0),
        (1, 65536, 1),
        (65536, 65536, 1),
        (65537, 65536, 2),
        (4 * MIB, 65536, 64),
        (4 * MIB + 1, 131072, 33),
    ],
)
def test_block_sizes_stay_those_of_older_checkpoints(tmp_path: Path, size: int, block: int, blocks: int) -> None:
    content = bytes(n % 251 for n in range(1000)) * (size // 1000 + 1)
    (tmp_path / "w").write_bytes(content[:size])
    crcs = [f"{zlib.crc32(content[at : min(at + block, size)]):08x}" for at in range(0, size, block)]
    assert len(crcs) == blocks
    assert manifest.sums(tmp_path) == {"w": (size, f"blocks:{block}:{','.join(crcs)}")}


def test_an_undamaged_folder_has_no_defect(folder: Path) -> None:
    assert manifest.damage(folder) == "" and manifest.has_sizes(folder)


@pytest.mark.parametrize(
    ("at", "changed"),
    [([0], "bytes 0 to 65536"), ([65536], "bytes 65536 to 131072"), ([131072], "bytes 131072 to 131073"),
     ([3, 70000], "bytes 0 to 131072")],
)  # fmt: skip
def test_the_changed_blocks_are_named(folder: Path, at: list[int], changed: str) -> None:
    content = bytearray((folder / "w").read_bytes())
    for byte in at:
        content[byte] ^= 1
    (folder / "w").write_bytes(content)
    assert manifest.has_sizes(folder)
    assert manifest.damage(folder) == "w has changed since it was written"
    assert manifest.damage(folder, inside) == f"w has changed since it was written ({changed})"


@pytest.mark.parametrize("kind", ["crc32", "md5"])
def test_a_checksum_of_the_whole_file_names_the_whole_file(tmp_path: Path, kind: str) -> None:
    content = b"weights" * MIB
    whole: manifest.Sum = zlib.crc32(content)
    if kind == "md5":
        whole = "md5:" + b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()
    commit(tmp_path, {"w": (len(content), whole)})
    (tmp_path / "w").write_bytes(content)
    assert manifest.damage(tmp_path) == ""
    (tmp_path / "w").write_bytes(b"W" + content[1:])
    assert manifest.damage(tmp_path, inside) == f"w has changed since it was written (bytes 0 to {len(content)})"


def test_a_manifest_with_too_few_checksums_names_the_whole_file(folder: Path) -> None:
    commit(folder, {"w": (131073, f"blocks:65536:{zlib.crc32(b'a' * 65536):08x}")})
    assert manifest.damage(folder, inside) == "w has changed since it was written (bytes 0 to 131073)"


def test_a_checksum_that_only_buckets_compute_is_not_compared(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"weights")
    commit(tmp_path, {"w": (7, "crc32c:AAAAAA==")})
    assert manifest.damage(tmp_path) == ""


def test_missing_files_and_wrong_sizes_are_named(folder: Path) -> None:
    (folder / "w").write_bytes(b"short")
    assert manifest.damage(folder) == "w has 5 bytes, should have 131073" and not manifest.has_sizes(folder)
    (folder / "w").unlink()
    assert manifest.damage(folder) == "w is missing" and not manifest.has_sizes(folder)
    (folder / manifest.MANIFEST).write_bytes(b"{}")
    assert manifest.damage(folder) == "manifest.json is damaged" and not manifest.has_sizes(folder)
    (folder / manifest.MANIFEST).unlink()
    assert manifest.damage(folder) == "manifest.json is missing" and not manifest.has_sizes(folder)


def test_a_file_in_place_of_a_checkpoint_is_damage(tmp_path: Path) -> None:
    (tmp_path / "7").write_bytes(b"")
    assert manifest.damage(tmp_path / "7") == f"{tmp_path / '7' / 'manifest.json'} is not a file"
    assert not manifest.has_sizes(tmp_path / "7")


@pytest.mark.parametrize(
    ("notes", "files"),
    [
        ({"data": 5}, {}),
        ({"model": {"seq_len": "x"}}, {}),
        ({"inside": "../.."}, {}),
        ({}, {"/etc/passwd": (1, 0)}),
        ({}, {"a" * 256: (1, 0)}),
        ({}, {"a\0b": (1, 0)}),
        ({}, {"a/" * 511 + "aaa": (1, 0)}),
        ({}, {"w": (1, "sha1:AAAA")}),
    ],
)
def test_a_manifest_that_no_trainer_wrote_is_damaged(notes: dict[str, Any], files: manifest.Sums) -> None:
    assert manifest.read_manifest(manifest.manifest(files, notes)) is None


def test_the_longest_names_can_be_paths() -> None:
    files: manifest.Sums = {"a" * 255: (1, 0), "a/" * 511 + "a": (1, 0)}
    assert manifest.read_manifest(manifest.manifest(files, {"inside": "1"})) == files


def test_a_manifest_without_its_checksum_is_read_and_one_with_a_wrong_checksum_is_not() -> None:
    """Older versions wrote none."""
    content = json.loads(manifest.manifest({"w": (1, 5)}, {"data": "d"}))
    checksum = content.pop("crc32")
    assert manifest.read_manifest(json.dumps(content).encode()) == {"w": (1, 5)}
    assert manifest.read_manifest(json.dumps(content | {"crc32": checksum + 1}).encode()) is None
    assert manifest.read_manifest(json.dumps(content | {"more": 1, "crc32": checksum}).encode()) is None


@pytest.mark.parametrize(
    ("name", "step"), [("0", 0), ("7", 7), ("9" * 18, 10**18 - 1), ("9" * 19, None), ("07", None), (".7", None)]
)
def test_only_numbers_without_leading_zeros_are_steps(name: str, step: int | None) -> None:
    assert manifest.read_step(name) == step
