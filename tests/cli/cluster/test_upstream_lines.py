"""The command lines that Google's xpk documents for clusters, storages and the like: each is taken, and means the same.

Facts only: commands, flags and values, of its documentation, recipes and workflows, with names filled in. Everything is
a dry run without credentials, as a newcomer would try it. `PLANS` has what has to stand in the plan.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Xpk

GOLDEN = "--project=golden-project --zone=us-central1-a --cluster=golden-cluster"
CT = "--zone=us-central2-b --default-pool-cpu-machine-type=n1-standard-16"
STORAGE = "--project=p --cluster=xpk-test --zone=us-central1-a"
WRITABLE = "--mount-point=/test-mount-point --readonly=false --auto-mount=true"
LARGE = "--host-maintenance-interval=PERIODIC --custom-cluster-arguments='--network=n --subnetwork=s "
LARGE += "--scopes=storage-full,gke-default --enable-ip-alias --master-ipv4-cidr 172.16.0.32/28 "
LARGE += "--cluster-ipv4-cidr=10.224.0.0/12 --no-enable-master-authorized-networks'"
NAP = "--cluster c --num-slices=2 --device-type=v5litepod-16 --zone=us-central1-a --project=p --reservation=r"
TPU7X = "--project=p --zone=us-central1-c --cluster c --cluster-cpu-machine-type=n1-standard-8 --tpu-type=tpu7x-8"
NETWORK = "--custom-cluster-arguments='--network=n --subnetwork=s'"
TENSORBOARD = "cluster create --cluster xpk-test --num-slices=1 --tpu-type=v4-8 --create-vertex-tensorboard"

# Required content of a plan; in brackets the number of warnings, none by default.
PLANS: dict[str, tuple[str, int]] = {
    # Clusters of TPUs
    "cluster create --cluster xpk-test --tpu-type=v5litepod-256 --num-slices=2 --reservation=r": ("2 x v5litepod", 0),
    "cluster create --cluster xpk-test --tpu-type=v5litepod-16 --num-slices=4 --on-demand": ("4 x v5litepod-16", 0),
    "cluster create --cluster xpk-test --tpu-type=v5litepod-16 --num-slices=4 --spot": (", spot", 0),
    "cluster create --cluster xpk-test --tpu-type=v5litepod-16 --num-slices=4 --flex": (", flex-start", 0),
    "cluster create --cluster xpk-test --tpu-type=v5litepod-16 --cpu-limit=112 --memory-limit=192Gi --on-demand": (
        "1 x v5litepod-16", 2,
    ),
    "cluster create --cluster xpk-test --tpu-type=v5litepod-16 --num-slices=4 --reservation=r": ("reservation r", 0),
    "cluster create --cluster xpk-test --tpu-type=v5litepod-16 --num-slices=8 --reservation=r": ("8 x v5litepod-16", 0),
    "cluster create --cluster xpk-test --tpu-type=v5litepod-16 --num-slices=6 --reservation=r": ("6 x v5litepod-16", 0),
    "cluster create --force --cluster xpk-test --tpu-type=v5litepod-16 --num-slices=6 --reservation=r": ("6 x ", 0),
    "cluster create --cluster xpk-test --tpu-type=v4-8 --num-slices=4 --reservation=r": ("4 x v4-8", 0),
    "cluster create --force --cluster xpk-test --tpu-type=v4-8 --num-slices=4 --reservation=r": ("4 x v4-8", 0),
    "cluster create-pathways --cluster xpk-pw-test --num-slices=4 --on-demand --tpu-type=v5litepod-16": ("4 x v5", 1),
    "cluster create-ray --cluster xpk-rc-test --ray-version=2.39.0 --num-slices=4 --on-demand --tpu-type=v5litepod-8": (
        "4 x v5litepod-8", 2,
    ),
    f"cluster create-ray {GOLDEN} --tpu-type=tpu7x-8 --ray-version=2.39.0 --reservation=golden-reservation": (
        "1 x tpu7x-8", 2,
    ),
    f"cluster create-ray --cluster c --tpu-type=v4-8 --num-slices=2 {CT} --ray-version=2.39.0 "
    "--default-pool-cpu-num-nodes=4 --reservation='r' --custom-cluster-arguments=''": ("4 x n1-standard-16", 2),
    # Private clusters
    "cluster create --cluster=xpk-private-cluster --tpu-type=v4-8 --num-slices=2 --private": ("private", 1),
    "cluster create --cluster=xpk-private-cluster --tpu-type=v4-8 --num-slices=2 --authorized-networks 1.2.3.0/24 "
    "1.2.4.5/32": ("authorized networks 1.2.3.0/24 1.2.4.5/32", 1),
    "cluster create-pathways --project=golden-project --zone=us-central1-a --cluster=golden-cluster-private --private "
    "--tpu-type=v5p-8 --num-slices=1 --default-pool-cpu-machine-type=n1-standard-16 --default-pool-cpu-num-nodes=4 "
    "--reservation=golden-reservation": ("4 x n1-standard-16", 1),
    "cluster create --project=golden-project --zone=us-central1-a --cluster=golden-cluster-private-ep --private "
    "--enable-private-endpoint --private-endpoint-subnetwork=golden-cp-subnet --authorized-networks 10.0.0.0/8 "
    "--tpu-type=v5p-8 --num-slices=1 --on-demand": ("private address in subnetwork golden-cp-subnet", 0),
    "cluster create --project=golden-project --zone=us-central1-a --cluster=golden-cluster-private-nosubnet --private "
    "--enable-private-endpoint --authorized-networks 10.0.0.0/8 --tpu-type=v5p-8 --num-slices=1 --on-demand": (
        "no public address", 0,
    ),
    # Tensorboard and diagnostics, which are ignored with a warning
    TENSORBOARD: ("1 x v4-8", 2),
    f"{TENSORBOARD} --tensorboard-region=us-west1": ("1 x v4-8", 3),
    f"{TENSORBOARD} --tensorboard-name=tb-testing": ("1 x v4-8", 3),
    f"{TENSORBOARD} --tensorboard-region=us-west1 --tensorboard-name=tb-testing": ("1 x v4-8", 4),
    f"{TENSORBOARD} --tensorboard-region=us-central2": ("1 x v4-8", 3),
    "cluster create-pathways --cluster xpk-pw-test --num-slices=4 --spot --tpu-type=v5litepod-16 "
    "--managed-mldiagnostics": ("4 x v5litepod-16", 2),
    "cluster create --cluster xpk-test --tpu-type=v5litepod-16 --num-slices=4 --spot --managed-mldiagnostics": (
        "4 x v5litepod-16", 1,
    ),
    # Recipes
    f"cluster create {GOLDEN} --tpu-type=tpu7x-8 --spot": ("1 x tpu7x-8 = 1 host, 4 chips", 0),
    f"cluster create {GOLDEN} --tpu-type=tpu7x-16 --spot": ("tpu7x-16-2x2x2-placement-policy", 0),
    f"cluster create {GOLDEN} --tpu-type=v4-8 --spot --num-slices=1": ("1 x ct4p-hightpu-4t, spot", 0),
    f"cluster create {GOLDEN} --tpu-type=tpu7x-8 --spot --adapt-from-ct": ("1 x tpu7x-8", 0),
    f"cluster create {GOLDEN} --tpu-type=v6e-4x4 --reservation=golden-reservation --sub-slicing": ("by parts", 0),
    f"cluster create {GOLDEN} --tpu-type=tpu7x-4x4x4 --reservation=golden-reservation/reservationBlocks/block "
    "--super-slicing --num-cubes=3": ("cubes that form slices for workloads", 0),
    "cluster create --cluster xpk-test --super-slicing --tpu-type=tpu7x-4x4x4 --reservation=r --num-cubes=2": (
        "--super-slicing requires a block", 1,
    ),
    f"cluster create {GOLDEN} --tpu-type=tpu7x-8 --spot --cpu-limit=20 --memory-limit=1Gi": ("1 x tpu7x-8", 2),
    f"cluster create {GOLDEN} --tpu-type=tpu7x-8 --spot --cpu-limit=1 --memory-limit=1Mi": ("1 x tpu7x-8", 2),
    f"cluster create {GOLDEN} --tpu-type=tpu7x-8 --enable-lustre-csi-driver --spot": ("LustreCsiDriver", 0),
    f"cluster create {GOLDEN} --tpu-type=tpu7x-8 --enable-lustre-csi-driver --enable-legacy-lustre-port --spot": (
        "LustreCsiDriver (legacy port)", 0,
    ),
    f"cluster create {GOLDEN} --device-type=gb200-4 --reservation=golden-reservation": (
        "gb200-4-1x72-placement-policy", 0,
    ),
    f"cluster create {GOLDEN} --tpu-type=tpu7x-8 --reservation=projects/reservation-project/reservations/"
    "golden-reservation": ("reservation projects/reservation-project/reservations/golden-reservation", 0),
    f"cluster create --enable-autoprovisioning {GOLDEN} --tpu-type=tpu7x-8 --on-demand": ("autoprovisioning:", 0),
    f"cluster create-pathways --enable-autoprovisioning {GOLDEN} --tpu-type=tpu7x-8 --on-demand": (
        "autoprovisioning:", 1,
    ),
    f"cluster create {NAP} --enable-autoprovisioning": ("chips from 0 to", 0),
    f"cluster create {NAP} --enable-autoprovisioning --autoprovisioning-max-chips 16": ("raised from 16 to 32", 0),
    f"cluster create {TPU7X} --flex {NETWORK}": ("network=n --subnetwork=s", 0),
    f"cluster create {TPU7X} --flex {NETWORK} --enable-lustre-csi-driver": ("6 x n1-standard-8", 0),
    f"cluster create {TPU7X} --reservation=r {NETWORK}": ("reservation r", 0),
    # The guide for large clusters
    f"cluster create --cluster c --tpu-type=v5litepod-256 --num-slices=4 {LARGE}": ("periodic host maintenance", 1),
    f"cluster create --cluster c --tpu-type=v5litepod-256 --num-slices=64 {LARGE[:-1]} --enable-private-nodes' "
    "--custom-nodepool-arguments='--enable-autoupgrade --max-pods-per-node 15'": ("64 x v5litepod-256", 1),
    "cluster create --cluster c --project=p --default-pool-cpu-machine-type=n2-standard-8 --num-slices=1 "
    "--tpu-type=v5litepod-256 --zone=us-west4-a --spot --custom-cluster-arguments='--network=mtu9k "
    "--subnetwork=mtu9k'": ("6 x n2-standard-8", 0),
    # CPUs and GPUs
    f"cluster create --cluster c --device-type=n2-standard-64-1 --num-slices=0 {CT} --on-demand "
    f"{NETWORK}": ("0 x n2-standard-64-1", 0),
    f"cluster create --cluster c --private --device-type=n2-standard-64-1 --num-slices=0 {CT} --on-demand "
    f"{NETWORK}": ("private", 0),
    "cluster create --cluster xpk-test --device-type=n2-standard-32-256 --num-slices=1 "
    "--default-pool-cpu-machine-type=n2-standard-32 --on-demand": ("256 x n2-standard-32", 0),
    f"cluster create --cluster xpk-storage-tests --device-type=n2-standard-64-1 --num-slices=1 {CT} "
    "--default-pool-cpu-num-nodes=2 --on-demand --enable-gcpfilestore-csi-driver --enable-gcsfuse-csi-driver "
    f"{NETWORK}": ("GcsFuseCsiDriver, GcpFilestoreCsiDriver", 0),
    f"cluster create --cluster c --tpu-type=v4-8 --num-slices=2 {CT} --reservation='r' {NETWORK}": ("2 x v4-8", 0),
    f"cluster create-pathways --cluster c --tpu-type=v4-8 --num-slices=2 {CT} --default-pool-cpu-num-nodes=4 "
    f'--reservation="r" {NETWORK}': ("2 x v4-8", 1),
    "cluster create --cluster c --device-type=h100-mega-80gb-8 --zone=asia-southeast1-b "
    "--default-pool-cpu-machine-type=e2-standard-8 --spot": ("create network c-net-8", 0),
    "cluster create --cluster xpk-test --device-type=h100-80gb-8 --num-nodes=2 --reservation=r": ("2 x h100-80gb-8", 0),
    "cluster create --cluster c --device-type h200-141gb-8 --zone=us-central1-b --project=p --num-nodes=4 "
    "--reservation=r": ("4 x h200-141gb-8", 0),
    "cluster create --cluster=c --device-type=h100-mega-80gb-8 --zone=us-central1-b --project=p --num-nodes=2 "
    "--reservation=r": ("2 x h100-mega-80gb-8", 0),
    # Existing clusters
    f"cluster adapt {GOLDEN} --tpu-type=tpu7x-8": ("1 x tpu7x-8", 0),
    "cluster adapt --cluster=c --device-type=h200-141gb-8 --zone=us-central1-b --project=p --num-nodes=4 "
    "--reservation=r": ("4 x h200-141gb-8", 1),
    "cluster delete --cluster xpk-test": ("delete cluster 'xpk-test'", 0),
    f"cluster delete {GOLDEN}": ("delete cluster 'golden-cluster'", 0),
    f"cluster delete {GOLDEN} --force": ("delete cluster 'golden-cluster'", 0),
    "cluster delete --cluster c --zone=us-central2-b --force": ("delete cluster 'c' in us-central2", 0),
    "cluster delete --cluster c --zone=us-central2-b": ("delete cluster 'c' in us-central2", 0),
    "cluster list": ("changes nothing", 0),
    "cluster describe --cluster xpk-test": ("changes nothing", 0),
    "cluster cacheimage --cluster xpk-test --docker-image gcr.io/your_docker_image --tpu-type=v5litepod-16": (
        "gcr.io/your_docker_image", 1,
    ),
    "cluster cacheimage --cluster xpk-test --docker-image gcr.io/your_docker_image": ("gcr.io/your_docker_image", 1),
    "cluster cacheimage --cluster xpk-test --docker-image gcr.io/your_docker_image --device-type=h100-80gb-8": (
        "gcr.io/your_docker_image", 1,
    ),
    "cluster cacheimage --cluster c --docker-image gcr.io/p/u_runner --tpu-type=v5litepod-256": ("p/u_runner", 1),
    # Read commands
    "info --cluster my-cluster": ("changes nothing", 0),
    "info --cluster my-cluster --localqueue": ("changes nothing", 0),
    "info --cluster my-cluster --clusterqueue": ("changes nothing", 0),
    "info --cluster c --zone=us-central2-b": ("changes nothing", 0),
    "inspector --cluster c --project p --zone us-central1-a": ("changes nothing", 0),
    "inspector --cluster c --zone=us-central2-b --workload w": ("changes nothing", 0),
    "inspector --cluster c --project p --zone us-central1-a --print-to-terminal": ("changes nothing", 0),
    "version": ("changes nothing", 0),
    # Storages
    f"storage attach test-fuse-storage --type=gcsfuse {STORAGE} --mount-point='/test-mount-point' --readonly=false "
    "--bucket=test-bucket --size=1 --auto-mount=false": ("/test-mount-point from gs://test-bucket", 1),
    "storage attach n --cluster=c --zone=us-central2-b --type=gcsfuse --auto-mount=true "
    "--mount-point='/gcsfuse-test-mount-point' --readonly=false --size=1 --bucket=test-bucket "
    "--mount-options rename-dir-limit=10000 --prefetch-metadata": ("every workload of the namespace mounts it", 1),
    "storage attach test-fs-storage --type=gcpfilestore --auto-mount=false --mount-point=/data-fs --readonly=false "
    f"--size=1024 --tier=BASIC_HDD --access_mode=ReadWriteMany --vol=default {STORAGE}": ("/data-fs from claim", 4),
    "storage attach n --cluster=c --zone=us-central2-b --type=gcpfilestore --auto-mount=true --vol=vol1 "
    "--mount-point='/mount-point' --readonly=false": ("/mount-point from claim n", 1),
    f"storage attach n {STORAGE} --type=gcpfilestore --auto-mount=true --vol=default --mount-point=/data-fs "
    "--readonly=false": ("/data-fs from claim n", 1),
    "storage create test-fs-storage --type=gcpfilestore --auto-mount=false --mount-point=/data-fs --readonly=false "
    f"--size=1024 --tier=BASIC_HDD --access_mode=ReadWriteMany --vol=default {STORAGE}": ("Filestore BASIC_HDD", 1),
    "storage create n --cluster=c --zone=us-central2-b --type=gcpfilestore --auto-mount=true --vol=vol1 --size=1024 "
    "--tier=BASIC_HDD --mount-point='/mount-point' --readonly=false": ("1024 GiB", 1),
    f"storage create n --type=gcpfilestore --auto-mount=false --mount-point=/data-fs --readonly=false --size=1024 "
    f"--tier=BASIC_HDD --vol=default {STORAGE}": ("1024 GiB", 1),
    f"storage attach n --type=parallelstore {STORAGE} {WRITABLE} --manifest='./volume.yaml'": ("from claim volume", 0),
    f"storage attach n --type=pd {STORAGE} {WRITABLE} --manifest='./volume.yaml'": ("from claim volume", 0),
    f"storage attach n --type=lustre {STORAGE} {WRITABLE} --manifest='./volume.yaml'": ("from claim volume", 0),
    f"storage attach n {STORAGE} --type=lustre --mount-point=/output --readonly=false --auto-mount=true "
    "--manifest='./volume.yaml'": ("/output from claim volume", 0),
    f"storage list {STORAGE}": ("changes nothing", 0),
    f"storage list {GOLDEN}": ("changes nothing", 0),
    "storage list --cluster c --zone=us-central2-b": ("changes nothing", 0),
    f"storage detach n {STORAGE}": ("detach storage 'n'", 1),  # there is no server to ask
    "storage detach n --cluster=c --zone=us-central2-b": ("detach storage 'n'", 1),  # there is no server to ask
    f"storage delete test-fs-instance {STORAGE}": ("delete storage 'test-fs-instance'", 1),  # there is no server to ask
    "storage delete n --cluster=c --zone=us-central2-b": ("delete storage 'n'", 1),  # there is no server to ask
}  # fmt: skip
# These write to this machine immediately, without a dry run: their output and warnings.
SETTINGS: dict[str, tuple[str, int]] = {
    "config set send-telemetry false": ("", 1),
    "config set send-telemetry true": ("", 1),
    "config set cluster-name c": ("", 0),
    "config set project-id p": ("", 0),
    "config set zone us-central1-a": ("", 0),
    "config get zone": ("us-central1-a\n", 0),
}  # fmt: skip
MANIFEST = "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: volume}, spec: {}}\n"
ALMOST_ALL = 0.95


@pytest.fixture
def newcomer(xpk: Xpk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Xpk:
    """Return the command line of a user with a project and zone but without credentials."""
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    (tmp_path / "volume.yaml").write_text(MANIFEST)
    assert xpk("config", "set", "provider", "gke", "project-id", "golden-project", "zone", "us-central1-a").code == 0
    return xpk


def test_documented_command_lines_are_accepted_with_the_same_meaning(newcomer: Xpk) -> None:
    refused = []
    for line, (message, warnings) in (PLANS | SETTINGS).items():
        done = newcomer(*shlex.split(line), *(["--dry-run"] if line in PLANS else []))
        count = done.err.count("warning: ")
        if done.code or message not in done.out + done.err or count != warnings:
            refused.append(
                f"xpk {line}\n  exit code {done.code}, {count} warnings, without {message!r}: {done.err}{done.out}"
            )
    share = 1 - len(refused) / len(PLANS | SETTINGS)
    assert share >= ALMOST_ALL and not refused, f"{share:.1%} are taken; not:\n" + "\n".join(refused)
