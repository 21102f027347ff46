"""Places in a bucket: addresses, folder markers, and errors."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from google.api_core import exceptions as api
from google.auth import exceptions as auth
from requests import exceptions as http

from tests.trainer import cloud_storage
from xpk_shared.storage import address_problems, errors, open_place

NO_CONNECTION = "no answer from Google Cloud Storage (ConnectTimeout)"


@pytest.mark.parametrize(
    "address", ["gs://", "gs:///x", "gs://AB", "gs://ab", "gs://runs//x", "gs://runs/../x", "gs://runs/x//"]
)
def test_invalid_addresses_have_problems(address: str) -> None:
    assert address_problems(address)
    with pytest.raises(errors.InvalidAddress):
        open_place(address)


@pytest.mark.parametrize("address", ["gs:/runs/x", "gs:runs", "GS:/runs"])
def test_a_mistyped_address_is_not_a_folder(address: str) -> None:
    assert address_problems(address) == [f"'{address}' is neither a folder nor gs://BUCKET/PREFIX"]


@pytest.mark.parametrize(
    ("failure", "kind", "says"),
    [
        (
            api.Forbidden("storage.objects.get\ndenied"),
            PermissionError,
            "permission denied: storage.objects.get denied",
        ),
        (api.Unauthorized("expired"), errors.Unauthenticated, "not accepted (expired)"),
        (auth.RefreshError("expired"), errors.RefreshFailed, "not accepted (expired)"),
        (auth.DefaultCredentialsError("no file"), errors.NoCredentials, "no credentials for Google Cloud (no file)"),
        (api.ServiceUnavailable("overloaded"), errors.Unreachable, "the server failed: overloaded"),
        (api.RetryError("gave up", http.ConnectTimeout()), errors.Unreachable, NO_CONNECTION),
        (http.ConnectTimeout(), errors.Unreachable, NO_CONNECTION),
    ],
)
def test_errors_have_one_line(
    failure: Exception, kind: type[OSError], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    client = cloud_storage.Client()

    def fail(verb: str, name: str) -> None:
        raise failure

    client.before = fail
    place = cloud_storage.place("run", client)
    calls: list[Callable[[], object]] = [place.read, place.entry, place.files, lambda: place.write(b"")]
    for call in calls:
        with pytest.raises(kind) as error:
            call()
        assert type(error.value) is kind and error.value.filename == "gs://bucket/run"
        assert str(error.value.strerror).endswith(says)


def test_a_missing_bucket_is_distinguished_from_a_missing_object() -> None:
    client = cloud_storage.Client()

    def fail(verb: str, name: str) -> None:
        raise api.NotFound("no bucket")  # type: ignore[no-untyped-call, unused-ignore]

    client.before = fail
    place = cloud_storage.place("run", client)
    with pytest.raises(errors.BucketNotFound, match="bucket 'bucket' not found"):
        place.is_empty()
    assert not place.is_folder()


def test_folder_markers_are_moved_and_removed_but_are_not_files() -> None:
    """The Cloud Console creates an empty object for a folder."""
    client = cloud_storage.Client()
    for name in ("run/", "run/events/", "run/events/file"):
        client.blob(name).upload_from_string(b"")
    place = cloud_storage.place("run", client)
    assert place.files() == [] and [entry.name for entry in place.walk(frozenset())] == ["events/file"]
    place.rename("run.1", "manifest.json")
    assert sorted(client.objects) == ["run.1/", "run.1/events/", "run.1/events/file"]
    cloud_storage.place("run.1", client).remove_tree("manifest.json")
    assert client.objects == {}


def test_an_unresponsive_server_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    began = time.monotonic()
    with pytest.raises(errors.Unreachable, match=r"no answer from the storage emulator at http://127\.0\.0\.1:9"):
        open_place("gs://runs/x", retry_seconds=1.0).read()
    assert time.monotonic() - began < 10


def test_an_invalid_emulator_is_rejected_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:9")
    with pytest.raises(errors.InvalidAddress, match="expected a URL"):
        open_place("gs://runs/x", connect=True)
    with pytest.raises(errors.InvalidAddress, match="expected a URL"):
        open_place("gs://runs/x").read()
