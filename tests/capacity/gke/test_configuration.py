"""gcloud's configuration, and the token for kubectl."""

from __future__ import annotations

from pathlib import Path

import pytest

from xpk.capacity.gke.cloud.configuration import gcloud_place
from xpk.capacity.gke.token import main
from xpk.model.errors import AuthorizationError


@pytest.fixture
def gcloud(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a gcloud with two configurations, the first of which is active."""
    folder = tmp_path / "configurations"
    folder.mkdir()
    (tmp_path / "active_config").write_text("default\n")
    (folder / "config_default").write_text("[core]\nproject = home\n[compute]\nzone = us-east5-b\n")
    (folder / "config_work").write_text("[core]\nproject = work%1\n")
    return {"CLOUDSDK_CONFIG": str(tmp_path)}


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({}, {"project": "home", "zone": "us-east5-b"}),
        ({"CLOUDSDK_ACTIVE_CONFIG_NAME": "work"}, {"project": "work%1"}),
        ({"CLOUDSDK_CORE_PROJECT": "other"}, {"project": "other", "zone": "us-east5-b"}),
        ({"CLOUDSDK_ACTIVE_CONFIG_NAME": "none", "CLOUDSDK_COMPUTE_ZONE": "us-west4-a"}, {"zone": "us-west4-a"}),
    ],
)
def test_the_place_is_the_one_that_gcloud_uses(
    gcloud: dict[str, str], variables: dict[str, str], place: dict[str, str]
) -> None:
    assert gcloud_place(gcloud | variables) == place


def test_a_damaged_configuration_is_none(gcloud: dict[str, str], tmp_path: Path) -> None:
    for content in (b"\xff\xfe", b"no section"):
        (tmp_path / "configurations" / "config_default").write_bytes(content)
        assert gcloud_place(gcloud) == {}


def test_kubectl_shows_why_there_is_no_token(capsys: pytest.CaptureFixture[str]) -> None:
    def refused() -> str:
        raise AuthorizationError("no credentials found for Google Cloud", hint="`gcloud auth login`")

    assert main(refused) == AuthorizationError("").exit_code
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == (
        "error: no credentials found for Google Cloud\nhint: `gcloud auth login`\n"
    )
    assert main(lambda: "{}") == 0
