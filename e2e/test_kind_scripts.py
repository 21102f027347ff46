"""Code that is shipped to pods of a kind cluster: as a ConfigMap, by the shared folder, through a bucket. And mounts.

eval "$(e2e/environment/up)" && .venv/bin/python -m pytest e2e/test_kind_scripts.py --timeout 900

Its hosts need nothing but Python: with XPK_TRAINER_IMAGE="$XPK_E2E_PYTHON_IMAGE" no trainer's image is built.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import bucket
from e2e.kind_cluster import Place
from tests.waiting import until

PROGRAM = """
import hashlib, os, helper
data = open("data.bin", "rb").read() if os.path.exists("data.bin") else b""
print("code", helper.VERSION, os.getcwd(), hashlib.sha256(data).hexdigest())
open("scratch", "w").write("hosts may write where they start")
"""


@pytest.fixture
def create(place: Place, script_dir: Path) -> tuple[str, ...]:
    """Return the command that runs the program below."""
    return ("workload", "create", "--cluster", place.cluster, "--script-dir", str(script_dir), "--command", "./run.sh")


@pytest.fixture
def script_dir(tmp_path: Path) -> Path:
    """Return a program of two files."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    (folder / "helper.py").write_text("VERSION = 'one'\n")
    (folder / "run.sh").write_text("#!/bin/sh\nexec python train.py\n")
    (folder / "run.sh").chmod(0o755)
    return folder


@pytest.fixture
def claim(place: Place, tmp_path: Path) -> Iterator[str]:
    """Return a claim for a folder that all nodes see; the cluster's own StorageClass is not used."""
    folder = place.state / "output" / ".claim"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    size = {"storage": "1Gi"}
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {"capacity": size, "hostPath": {"path": str(folder)}, "persistentVolumeReclaimPolicy": "Retain"}
    spec = {"volumeName": "drill", "resources": {"requests": size}}
    file = tmp_path / "claim.json"
    items = [
        {"apiVersion": "v1", "kind": kind, "metadata": {"name": "drill"}, "spec": common | own}
        for kind, own in (("PersistentVolume", volume), ("PersistentVolumeClaim", spec))
    ]
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    place.kubectl("apply", "-f", str(file))
    place.kubectl("wait", "--for=jsonpath={.status.phase}=Bound", "pvc/drill", "--timeout=120s")
    yield "drill"
    place.kubectl("delete", "pvc", "drill", "--wait=false")
    place.kubectl("delete", "pv", "drill", "--wait=false")
    shutil.rmtree(folder)


def big_file(folder: Path) -> str:
    """Add 2 MiB that cannot be compressed; return their digest."""
    content = random.Random(0).randbytes(2 << 20)
    (folder / "data.bin").write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def lines(place: Place, name: str) -> list[str]:
    """Wait for a workload and return its hosts' output."""
    place.xpk("workload", "wait", name, "--cluster", place.cluster, "--timeout", "3m")
    return place.xpk("workload", "logs", name, "--cluster", place.cluster, "--no-prefix").stdout.splitlines()


def delete(place: Place, *names: str, options: tuple[str, ...] = ()) -> None:
    """Delete workloads."""
    for name in names:
        place.xpk("workload", "delete", name, "--cluster", place.cluster, *options)


def configmaps(place: Place) -> list[str]:
    """Return the ConfigMaps of code."""
    items = json.loads(place.kubectl("get", "configmaps", "-o", "json"))["items"]
    return [item["metadata"]["name"] for item in items if item["metadata"]["name"].startswith("xpk-code-")]


def test_small_code_is_a_configmap_that_is_removed_with_the_last_workload(
    place: Place, script_dir: Path, create: tuple[str, ...]
) -> None:
    assert "code shipped: 3 files" in place.xpk(*create, "code-one").stderr
    assert "code unchanged" in place.xpk(*create, "code-two").stderr
    (script_dir / "helper.py").write_text("VERSION = 'two'\n")
    nothing = hashlib.sha256(b"").hexdigest()
    for name in ("code-one", "code-two"):
        assert lines(place, name) == [f"code one /xpk/code {nothing}"] * 2
    (shared,) = configmaps(place)
    delete(place, "code-one")
    time.sleep(10)  # longer than the garbage collector takes
    assert configmaps(place) == [shared]
    delete(place, "code-two")
    until(lambda: not configmaps(place), seconds=60, every=2)


@pytest.mark.extended  # local clusters ship all code this way
def test_larger_code_is_shipped_through_the_shared_folder(
    place: Place, script_dir: Path, create: tuple[str, ...]
) -> None:
    digest = big_file(script_dir)
    place.xpk(*create, "code-large")
    assert lines(place, "code-large") == [f"code one /xpk/code {digest}"] * 2
    assert configmaps(place) == []
    assert len(list((place.state / "output" / ".code").iterdir())) == 1
    assert "code unchanged" in place.xpk(*create, "code-again").stderr
    delete(place, "code-large", "code-again")


@pytest.mark.extended
@pytest.mark.skipif(bool(bucket.missing()), reason=bucket.missing() or "there")
def test_larger_code_is_shipped_through_the_output_bucket(
    place: Place, script_dir: Path, create: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = big_file(script_dir)
    with bucket.bucket_server(place.gateway()) as server:
        server.create_bucket("e2e-scripts")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        where = ("--output-root", "gs://e2e-scripts/runs", "--env", f"STORAGE_EMULATOR_HOST={server.url}")
        place.xpk(*create[:-1], "./run.sh && echo $XPK_OUTPUT_DIR", *where, "code-b")
        assert sorted(lines(place, "code-b")) == [
            *[f"code one /xpk/code {digest}"] * 2,
            *["gs://e2e-scripts/runs/code-b"] * 2,
        ]
        assert "code unchanged" in place.xpk(*create, *where, "code-c").stderr
        assert lines(place, "code-c") == [f"code one /xpk/code {digest}"] * 2
        assert any("runs%2F.code%2Fxpk-code-" in line for line in server.requests())
        delete(place, "code-b", "code-c", options=("--with-output",))


def test_all_hosts_of_all_slices_share_a_claim(place: Place, claim: str) -> None:
    program = (
        "touch /mnt/shared/$MEGASCALE_SLICE_ID-$TPU_WORKER_ID; touch /mnt/seen/new 2> /dev/null && exit 42; "
        "for i in $(seq 120); do test $(ls /mnt/seen | wc -l) = 4 && break; sleep 1; done; echo $(ls /mnt/seen)"
    )
    mounts = [f"--mount=source={claim},target=/mnt/shared", f"--mount=source={claim},target=/mnt/seen,readonly"]
    where = ("--cluster", place.cluster, "--num-slices", "2")
    place.xpk("workload", "create", "claimed", *where, "--command", program, *mounts)
    assert lines(place, "claimed") == ["0-0 0-1 1-0 1-1"] * 4
    delete(place, "claimed")
