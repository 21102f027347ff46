"""Progress of programs that only write TensorBoard's event files."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from xpk.jobs.output.event_files import all_scalars, newest_scalars
from xpk.jobs.output.folder import latest_progress
from xpk.jobs.output.program_log import ProgramLog
from xpk.model.errors import XpkError
from xpk.storage import open_folder
from xpk_shared.event_files import VERSION, decode_event, encode_event, frame_record, read_block

START = 1_800_000_000.0
LIMIT = 1 << 20


def records(first: int, last: int, tag: str = "train/loss", at: float = START) -> bytes:
    """Return the records of steps that take a second, as SummaryWriter writes them: one for each scalar."""
    content = frame_record(encode_event(0, {}, at, VERSION))
    for step in range(first, last + 1):
        for name, value in ((tag, 10.0 / step), ("lr", 0.1)):
            content += frame_record(encode_event(step, {name: value}, at + step))
    return content


def write(folder: Path, content: bytes, name: str = "runs/one/events.out.tfevents.1800000000.host.1.0") -> Path:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return folder / name


def newest(folder: Path) -> ProgramLog:
    return newest_scalars(open_folder(str(folder)))


def everything(folder: Path) -> ProgramLog:
    return all_scalars(open_folder(str(folder)), LIMIT)


def steps_of(log: ProgramLog) -> list[list[int]]:
    return [[step.step for step in attempt.steps] for attempt in log.attempts]


def test_scalars_are_progress(tmp_path: Path) -> None:
    write(tmp_path, records(1, 50))
    result = latest_progress(str(tmp_path))
    assert result is not None and (result.step, result.step_seconds) == (50, 1.0)
    assert result.loss == pytest.approx(0.2)
    (attempt,) = everything(tmp_path).attempts
    assert [step.loss for step in attempt.steps] == pytest.approx([10 / step for step in range(1, 51)])
    assert attempt.steps[-1].numbers == {"learning_rate": pytest.approx(0.1)}


@pytest.mark.parametrize("tag", ["loss", "Loss/train", "train_loss", "learning/loss", "epoch_loss"])
def test_a_loss_has_one_of_several_names(tag: str, tmp_path: Path) -> None:
    write(tmp_path, records(1, 3, tag))
    assert newest(tmp_path).steps[-1].has_loss


def test_scalars_of_tensorflow_2_are_tensors() -> None:
    for tensor in (b"\x08\x01\x2a\x04" + struct.pack("<f", 0.5), b"\x08\x01\x22\x04" + struct.pack("<f", 0.5)):
        value = b"\x0a\x04loss\x42" + bytes([len(tensor)]) + tensor
        summary = b"\x0a" + bytes([len(value)]) + value
        event = decode_event(b"\x10\x07\x2a" + bytes([len(summary)]) + summary)
        assert event is not None and (event.step, event.values) == (7, {"loss": 0.5})


def test_each_file_is_an_attempt_but_not_one_that_is_written_beside_another(tmp_path: Path) -> None:
    write(tmp_path, records(1, 30))
    write(tmp_path, records(1, 30, at=START + 0.5), "runs/one/events.out.tfevents.1800000001.other-host.1.0")
    write(tmp_path, records(1, 30, "epoch_loss"), "validation/events.out.tfevents.1800000002.host.1.0")
    write(tmp_path, records(21, 40, at=START + 60), "runs/two/events.out.tfevents.1800000060.host.1.0")
    assert steps_of(everything(tmp_path)) == [[*range(1, 31)], [*range(21, 41)]]
    assert newest(tmp_path).steps[-1].step == 40


def test_an_empty_newest_file_does_not_hide_the_former_one(tmp_path: Path) -> None:
    write(tmp_path, records(1, 5))
    write(tmp_path, frame_record(encode_event(0, {}, version=VERSION)), "events.out.tfevents.1800000099.host")
    assert newest(tmp_path).steps[-1].step == 5


@pytest.mark.parametrize("cut", [1, 3, 8, 11, 20, 40])
def test_an_incomplete_record_at_the_end_is_not_read(cut: int, tmp_path: Path) -> None:
    write(tmp_path, records(1, 5)[:-cut])
    assert newest(tmp_path).steps[-1].step == 5, "the loss is before the rate"
    assert everything(tmp_path).ignored_lines == 0


def test_damaged_records_are_skipped_and_counted(tmp_path: Path) -> None:
    before, after = records(1, 3), records(4, 6)
    write(tmp_path, before + b"\x07" * 100 + after)
    assert steps_of(everything(tmp_path)) == [[1, 2, 3, 4, 5, 6]] and everything(tmp_path).ignored_lines == 1
    content = bytearray(before + after)
    content[len(before) - 10] ^= 1  # in the last record of step 3, its rate
    write(tmp_path, bytes(content))
    assert steps_of(everything(tmp_path)) == [[1, 2, 3, 4, 5, 6]] and everything(tmp_path).ignored_lines == 1


def test_long_records_are_not_read(tmp_path: Path) -> None:
    """A file with images has gigabytes, of which only the scalars are read."""
    image = frame_record(b"\x00" * 200_000)
    file = write(tmp_path, records(1, 3) + image)
    with file.open("r+b") as opened:
        opened.seek(0, 2)
        length = struct.pack("<Q", 1 << 32)
        opened.write(length + struct.pack("<I", masked(length)))
        opened.seek((1 << 32) + 4, 1)  # a hole: a record of 4 GiB
        opened.write(records(4, 6))
    assert steps_of(everything(tmp_path)) == [[1, 2, 3, 4, 5, 6]]
    assert newest(tmp_path).steps[-1].step == 6
    with pytest.raises(XpkError, match="too large to be read"):
        all_scalars(open_folder(str(tmp_path)), 100_000)


def masked(content: bytes) -> int:
    return int(struct.unpack("<I", frame_record(content)[-4:])[0])


def test_reading_may_begin_inside_a_record() -> None:
    content = records(1, 20)
    whole = read_block(content, LIMIT).contents
    for start in range(1, 200, 7):
        contents = read_block(content[start:], LIMIT, is_aligned=False).contents
        assert contents and contents == whole[-len(contents) :] and len(contents) >= len(whole) - 6


def test_what_is_written_is_read() -> None:
    values = {"loss": 0.5, "window/p50": 1e30, "inf": float("inf")}
    event = decode_event(encode_event(12, values, START))
    assert event is not None and (event.time, event.step) == (START, 12) and event.values == pytest.approx(values)
    assert decode_event(encode_event(0, {}, version=VERSION)) is None
