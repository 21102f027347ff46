"""The records of known clusters in the state folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from xpk.capacity.gke.api_access import ClusterLocation, KnownClusters
from xpk.model.errors import XpkError
from xpk.testing import FakeApi

LOCATION = ClusterLocation(project="p", location="us-central1", zone="us-central1-a")


def known(folder: Path) -> KnownClusters:
    return KnownClusters(folder, lambda kubeconfig: FakeApi(), emulated=False)


def test_a_location_is_read_as_written(tmp_path: Path) -> None:
    known(tmp_path).remember("dev", LOCATION)
    assert known(tmp_path).place("dev") == LOCATION


def test_a_location_of_a_newer_version_is_not_called_damaged(tmp_path: Path) -> None:
    """Its removal, which the hint of a damaged one suggests, would lose the cluster."""
    known(tmp_path).remember("dev", LOCATION)
    file = tmp_path / "dev" / "cluster.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "fleet": "f"}))
    with pytest.raises(
        XpkError, match=r"cluster\.json was written by a newer version of xpk \(it has 'fleet'\)"
    ) as caught:
        known(tmp_path).place("dev")
    assert caught.value.hint == "upgrade xpk"


def test_a_damaged_location_is_reported(tmp_path: Path) -> None:
    known(tmp_path).remember("dev", LOCATION)
    for content in ("{", "[]", "{}"):
        (tmp_path / "dev" / "cluster.json").write_text(content)
        with pytest.raises(XpkError, match=r"cluster\.json is damaged") as caught:
            known(tmp_path).place("dev")
        assert caught.value.hint == "remove it"
