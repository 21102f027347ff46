"""From a user's options to a spec: options without effect are rejected."""

from __future__ import annotations

import pytest

from xpk.jobs.create.options import check_local_path, check_preflight, choose_image, with_preflight
from xpk.model.accelerators import find_shape
from xpk.model.errors import UsageError
from xpk.model.specs import Target, WorkloadSpec

LOCAL_PATH = ("--set", "checkpoint.local_every=5", "--set", "checkpoint.local_path=/dev/shm/run")


def on(target: Target, node_folder: str | None = None) -> WorkloadSpec:
    shape = find_shape("v5litepod-8")
    return WorkloadSpec(
        name="w", shape=shape, num_slices=1, command=("true",), target=target, image="i", node_folder=node_folder
    )


def test_local_checkpoints_in_pod_storage_are_rejected() -> None:
    kind = Target(emulated=True, sets_slice_environment=True, output_root="/shared", shared_folder="/shared")
    with pytest.raises(UsageError) as refused:
        check_local_path(LOCAL_PATH, on(kind))
    assert "is deleted with them" in str(refused.value) and "--node-folder /dev/shm/run" in str(refused.value.hint)
    with pytest.raises(UsageError):
        check_local_path(("--set=checkpoint.local_path=/dev/shmem",), on(kind, "/dev/shm"))
    check_local_path(LOCAL_PATH, on(kind, "/dev/shm"))
    check_local_path(("--set=checkpoint.local_path=/dev/shm/run",), on(kind, "/dev/shm"))
    check_local_path(("--set", "checkpoint.local_path=/shared/own"), on(kind))
    check_local_path(("--config", "tiny"), on(kind))
    check_local_path(
        LOCAL_PATH, on(Target(emulated=True, sets_slice_environment=True, output_root="/o", on_this_machine=True))
    )


def test_checks_of_the_hosts_come_before_the_command() -> None:
    command = with_preflight(("bash", "-c", "x"), None)
    assert command == ("python3", "-P", "-m", "trainer", "preflight", "--", "bash", "-c", "x")
    assert with_preflight(("x",), "/dev/shm")[5:] == ("--disk", "/dev/shm", "--", "x")
    check_preflight(preflight=True, launcher="plain")
    with pytest.raises(UsageError, match="--preflight and --launcher ray exclude each other"):
        check_preflight(preflight=True, launcher="ray")


def test_the_image_is_known_before_anything_is_created() -> None:
    pods = Target(emulated=False, sets_slice_environment=False, output_root="gs://b/p")
    trained = Target(emulated=False, sets_slice_environment=False, output_root="gs://b/p", trainer_image="r/trainer:1")
    for target, asked, needs_trainer, image in (
        (pods, "gcr.io/p/mine:v1", True, "gcr.io/p/mine:v1"),
        (pods, None, False, "python:3.11-slim"),
        (trained, None, True, "r/trainer:1"),
        (trained, None, False, "r/trainer:1"),
    ):
        assert choose_image(asked, target, cluster="c", needs_trainer=needs_trainer) == image
    with pytest.raises(UsageError, match="cluster 'c' has no trainer image") as unknown:
        choose_image(None, pods, cluster="c", needs_trainer=True)
    assert "`xpk image build REGISTRY/xpk-trainer --tpu --push`" in str(unknown.value.hint), (
        "JAX for CPUs does not see a TPU"
    )
    with pytest.raises(UsageError, match="'Not An Image' is not a valid image name"):
        choose_image("Not An Image", pods, cluster="c", needs_trainer=False)
