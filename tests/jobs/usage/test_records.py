"""Files of the ledger: any content is read as records or refused with a reason."""

from __future__ import annotations

import json
from contextlib import suppress
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpk.model.usage import (
    Capacity,
    Causes,
    DamagedError,
    Hold,
    Piece,
    Record,
    State,
    decode,
    encode,
    file_name,
    team_of,
)

RECORDS: list[Record] = [
    Hold(
        uid="u", workload="w", namespace="n", queue="q", team="t", user="", accelerator_type="v5p-8", chips=4,
        state=State.STOP, created=1, reason="preempted", output_dir="/out", begin=5, end=9,
    ),
    Capacity(chips={"v5p-8": 8}, slices={"v5p-8": 2}, quotas={"q": 8}, out_of_service=4, begin=0, end=9),
    Causes(uid="u", end=9, pieces=(Piece(1, 4, {"steps": 2, "save": 1}), Piece(4, 5, {"down": 1}))),
]  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def sealed(records: Any) -> bytes:
    """Return a file with a valid checksum around any records."""
    whole = json.loads(encode([]))
    text = json.dumps(records, sort_keys=True, separators=(",", ":"))
    return json.dumps({**whole, "sha256": sha256(text.encode()).hexdigest(), "records": records}).encode()


def test_records_are_read_as_they_were_written() -> None:
    assert decode(encode(RECORDS)) == RECORDS
    assert file_name(1_795_666_284_378_263, "id") == "2026-11/1795666284378263-id.json"


@given(st.integers(0, 700), st.binary(max_size=3))
def test_a_changed_file_is_refused(place: int, text: bytes) -> None:
    content = encode(RECORDS)
    changed = content[:place] + text + content[place + len(text) :]
    if changed.strip() != content.strip():
        with suppress(DamagedError):
            assert decode(changed) == RECORDS


@given(
    st.integers(0, 2), st.sampled_from(["uid", "chips", "begin", "end", "state", "pieces", "quotas", "kind"]), VALUES
)
def test_a_field_of_any_value_is_read_or_refused(number: int, field: str, value: Any) -> None:
    records = json.loads(encode(RECORDS))["records"]
    records[number][field] = value
    with suppress(DamagedError):
        for record in decode(sealed(records)):
            assert isinstance(record, Hold | Capacity | Causes)


@given(VALUES)
def test_any_json_is_read_or_refused(value: Any) -> None:
    for content in (json.dumps(value).encode(), sealed(value)):
        with suppress(DamagedError):
            assert isinstance(decode(content), list)


@pytest.mark.parametrize(
    "pieces", [[[0, 5, {"steps": 4}]], [[5, 0, {}]], [[0, 5, {"steps": 5}], [4, 5, {"steps": 1}]], [[0, 5]], "x"]
)
def test_causes_that_do_not_sum_to_their_time_are_refused(pieces: Any) -> None:
    with pytest.raises(DamagedError):
        decode(sealed([{"kind": "causes", "uid": "u", "end": 9, "pieces": pieces}]))


def test_the_team_is_the_queue_or_the_only_queue_of_the_namespace_or_the_namespace() -> None:
    shared = "multislice-queue"
    assert team_of("red", "anything", [], shared) == "red"
    assert team_of(shared, "team-red", [shared, "red"], shared) == "red"
    assert team_of(shared, "team-red", [shared], shared) == "team-red"
    assert team_of(shared, "both", ["red", "blue"], shared) == "both"
    assert team_of(shared, "default", [shared, "red"], shared) == "default"
    assert team_of("", "default", [], shared) == "default"
