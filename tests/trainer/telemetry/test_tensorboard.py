"""TensorBoard's event files, and profiles at the paths of its profiler."""

import gzip
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.small import arguments, run_alone
from trainer import config
from trainer.parallel import layout
from xpk_shared.event_files import crc32c


def test_the_checksum_follows_the_standard() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, appendix B.4


@pytest.mark.slow
def test_event_files_have_the_metrics_and_profiles_have_the_steps(tmp_path: Path) -> None:
    length = ["run.steps=5", "run.log_every=2", "data.max_bytes=50000", f"run.output_dir={tmp_path}"]
    watched = ["observe.tensorboard=true", "observe.profile_start=3", "observe.profile_steps=2"]
    ran = run_alone(*arguments([*length, *watched]))
    assert ran.returncode == 0, ran.stderr
    (file,) = (tmp_path / "tensorboard").glob("events.out.tfevents.*")
    version, *events = map(message, records(file.read_bytes()))
    assert version[3] == [b"brain.Event:2"]
    result = {
        (event[2][0], tag.decode()): struct.unpack("<f", value)[0]
        for event in events
        for tag, value in (
            (message(one)[1][0], message(one)[2][0]) for summary in event[5] for one in message(summary)[1]
        )
    }
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        key = "loss" if "loss" in line else "eval_loss"
        assert result[line["step"], key] == pytest.approx(line[key])
    assert result[4, "window/p90"] == pytest.approx(lines[3]["window"]["p90"])
    folder = tmp_path / "tensorboard" / "plugins" / "profile" / "step-3-attempt-0"
    assert (folder / "s0-h0.xplane.pb").stat().st_size > 1000
    trace = json.loads(gzip.decompress((folder / "s0-h0.trace.json.gz").read_bytes()))
    marked = {int(e["args"]["step_num"]) for e in trace["traceEvents"] if e.get("name") == "train"}
    assert marked == {3, 4}
    assert "slice 0 host 0: profile from step 3 is in" in ran.stdout


def records(content: bytes) -> list[bytes]:
    """Return the contents of TFRecords, after verifying their checksums."""
    result = []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        data, content, header = content[12 : 12 + length], content[16 + length :], content[: 16 + length]
        for part, at in ((header[:8], 8), (data, 12 + length)):
            crc = crc32c(part)
            assert struct.unpack("<I", header[at : at + 4])[0] == ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32
        result.append(data)
    return result


def message(content: bytes) -> dict[int, list[Any]]:
    """Return the fields of a protocol buffer by number, as numbers and bytes."""
    fields: dict[int, list[Any]] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        number = shift = 0
        while True:
            byte = content[at]
            at, number, shift = at + 1, number | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return number

    while at < len(content):
        key = varint()
        kind = key & 7
        size = {0: 0, 1: 8, 5: 4}.get(kind)
        value: Any = varint() if kind == 0 else None
        if kind != 0:
            size = varint() if size is None else size
            value, at = content[at : at + size], at + size
        fields.setdefault(key >> 3, []).append(value)
    return fields


def test_only_the_configured_hosts_profile() -> None:
    named = config.load("tiny", ["observe.profile_start=3", "observe.profile_hosts=1, 4"]).observe
    assert [process for process in range(6) if named.profiles(process)] == [1, 4]
    assert config.load("tiny", ["observe.profile_start=3", "observe.profile_hosts=all"]).observe.profiles(7)
    assert not config.load("tiny", []).observe.profiles(0)
    (problem,) = layout.check(config.load("tiny", ["observe.profile_hosts=first"]), layout.Chips(1, 1, 1))
    assert problem.message == "observe.profile_hosts = 'first' is not a list of process ids"
