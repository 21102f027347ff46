"""Removal of checkpoints in a bucket, and its limits."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from e2e.bucket import BucketServer, missing
from e2e.bucket import server as server
from trainer.checkpoint.stores import manifest, open_store
from trainer.errors import FatalError
from xpk_shared.storage.bucket import Bucket

pytestmark = [pytest.mark.skipif(bool(missing()), reason=missing())]


class Killed(Bucket):
    """A place whose process is killed before it removes objects."""

    def remove_each(self, names: Iterable[str]) -> None:
        """Remove nothing."""


def place(server: BucketServer, name: str, kind: type[Bucket] = Bucket) -> Bucket:
    client = storage.Client(
        project="e2e", credentials=AnonymousCredentials(), client_options={"api_endpoint": server.url}
    )  # type: ignore[no-untyped-call, unused-ignore]
    return kind(client, "drills", name)


@pytest.mark.parametrize("file", ["100/items/array", "100/_METADATA", "00000100/items/0"])
def test_checkpoints_of_another_program_end_the_run_and_are_not_removed(server: BucketServer, file: str) -> None:
    out = place(server, f"foreign/{file.replace('/', '-')}")
    (out / file).write(b"weights")
    (out / "7" / "1" / "array").write(b"a save that was cut off")
    before = out.sums()
    with pytest.raises(FatalError, match=r"/0*100 is not a checkpoint of this trainer") as refused:
        open_store(out).begin_attempt(0)
    assert "another run.output_dir" in refused.value.problems[0].hint
    assert out.sums() == before


@pytest.mark.parametrize("how", ["outdated", "damaged"])
def test_an_interrupted_removal_of_a_copied_checkpoint_is_completed(server: BucketServer, how: str) -> None:
    """In a folder arrays are next to the manifest, like those of another program without one."""
    out = place(server, f"copied/{how}")
    for step in (1, 2):
        (out / str(step) / "d" / "array").write(b"content")
        sums = (out / str(step)).sums()
        (out / str(step) / manifest.MANIFEST).write(manifest.manifest(dict(sums), {}))
    store = open_store(place(server, f"copied/{how}", Killed))
    store.begin_attempt(0)
    store.quarantine(1) if how == "damaged" else store.remove_old(1, 2)
    assert store.steps() == [2] and (out / "1" / "d" / "array").is_file()
    open_store(out).begin_attempt(1)
    assert out.folders() == ["2"]
