"""Golden manifests, and values that arrive in them unchanged."""

from __future__ import annotations

import base64
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.render.workloads import EMULATED, ON_GKE, ON_KIND, workload
from xpk.jobs.create.options import Ray, ray_command
from xpk.model.accelerators import find_shape
from xpk.model.mounts import Mount
from xpk.model.specs import ClusterSpec, Code, CopySpec, ImageCacheSpec, QueueSpec, SliceQuota, Target, WorkloadSpec
from xpk.render import (
    render_image_cache,
    render_kind,
    render_network_policy,
    render_peer_secret,
    render_priorities,
    render_priority_limit,
    render_queue,
    render_queues,
    render_workload,
    to_yaml,
)
from xpk.render.supervisor import command_of

GOLDEN = Path(__file__).parent / "golden"


def asking_for(capacity: str) -> list[dict[str, Any]]:
    """Return a workload for which GKE creates slices of a capacity."""
    return render_workload(workload(shape=find_shape("v5litepod-16"), target=ON_GKE, image="i", capacity=capacity))


CASES = {
    "emulated-trainer": lambda: render_workload(workload(max_restarts=3, user="ada", working_dir="/home/ada")),
    "gke-199-slices": lambda: render_workload(
        workload(
            name="full-scale",
            shape=find_shape("v5litepod-256"),
            num_slices=199,
            target=ON_GKE,
            image="europe-docker.pkg.dev/p/r/trainer:1",
            priority="very-high",
            fatal_exit_codes=(42, 126, 127, 3),
            env={"LIBTPU_INIT_ARGS": "--xla_tpu_use_enhanced_launch_barrier=true"},
        )
    ),
    "gke-spot": lambda: asking_for("spot"),
    "gke-flex-start": lambda: asking_for("flex"),
    "gke-reservation": lambda: asking_for("reservation=projects/shared/reservations/r"),
    "gke-part-of-a-slice": lambda: render_workload(
        workload(shape=find_shape("v6e-8"), within=find_shape("v6e-16"), num_slices=2, target=ON_GKE, image="i")
    ),
    "gke-check-of-quarantined-slices": lambda: render_workload(
        workload(
            shape=find_shape("v5litepod-16"),
            target=ON_GKE,
            image="i",
            num_slices=2,
            node_pools=("c-np-0", "c-np-3"),
            tolerates_quarantine=True,
        )
    ),
    "gke-slices-of-cubes": lambda: render_workload(
        workload(
            shape=find_shape("tpu7x-4x4x8"), within=find_shape("tpu7x-128"), num_slices=2, target=ON_GKE, image="i"
        )
    ),
    "gke-part-of-a-cube": lambda: render_workload(
        workload(shape=find_shape("tpu7x-2x2x2"), within=find_shape("tpu7x-128"), target=ON_GKE, image="i")
    ),
    "queues-of-cubes": lambda: render_queues(
        ClusterSpec(name="demo", shape=find_shape("tpu7x-128"), num_slices=4, super_slicing=True),
        ClusterSpec(name="demo", shape=find_shape("v6e-16"), num_slices=1, queued=True),
    ),
    "queues-of-cubes-and-parts": lambda: render_queues(
        ClusterSpec(name="demo", shape=find_shape("tpu7x-128"), num_slices=4, super_slicing=True, sub_slicing=True)
    ),
    "queues-of-shared-slices": lambda: render_queues(
        ClusterSpec(name="demo", shape=find_shape("v6e-16"), num_slices=2, sub_slicing=True)
    ),
    "queues-of-queued-slices": lambda: render_queues(
        ClusterSpec(name="demo", shape=find_shape("v6e-16"), num_slices=2, queued=True),
        ClusterSpec(name="demo", shape=find_shape("v5litepod-16"), num_slices=1),
    ),
    "queue-of-queued-slices": lambda: render_queue(
        QueueSpec(
            name="red",
            namespaces=("team-red",),
            quotas=(
                SliceQuota(shape=find_shape("v6e-16"), num_slices=1, queued=True),
                SliceQuota(shape=find_shape("v5litepod-16"), num_slices=1),
            ),
        )
    ),
    "gke-queued-slices": lambda: render_workload(
        workload(shape=find_shape("v6e-16"), num_slices=2, target=ON_GKE, image="i", max_run_seconds=7200)
    ),
    "gpu-command": lambda: render_workload(
        workload(
            shape=find_shape("h100-80gb-8"),
            command=("bash", "-c", 'echo "$(hostname): $$"'),
            target=ON_GKE,
            image_pull_secret="registry",
        )
    ),
    "kind-command": lambda: render_workload(
        workload(target=ON_KIND, image="xpk-trainer:0123456789ab", command=("bash", "-c", "hostname"))
    ),
    "kind-restart-in-place": lambda: render_workload(
        workload(target=ON_KIND, command=("python", "-m", "trainer"), restart_in_place=True, max_restarts=3)
    ),
    "kind-elastic": lambda: render_workload(
        workload(
            target=ON_KIND,
            command=("python", "-m", "trainer"),
            num_slices=4,
            min_slices=2,
            restart_in_place=True,
            max_restarts=3,
        )
    ),
    "kind-slice-replacement": lambda: render_workload(
        workload(
            target=ON_KIND,
            command=("python", "-m", "trainer"),
            restart_in_place=True,
            replaces_slices=True,
            max_restarts=3,
        )
    ),
    "gke-elastic-without-restart-in-place": lambda: render_workload(
        workload(target=ON_GKE, command=("python", "-m", "trainer"), image="i", min_slices=1)
    ),
    "kind-peer-watch": lambda: render_workload(
        workload(target=ON_KIND, command=("bash", "-c", "python train.py"), peer_watch=True)
    ),
    "kind-code": lambda: render_workload(
        workload(
            target=ON_KIND,
            command=("bash", "-c", "python train.py"),
            code=Code(name="xpk-code-0123456789abcdef0123", archive=b"an archive"),
        )
    ),
    "gke-code": lambda: render_workload(
        workload(
            target=ON_GKE,
            env={"STORAGE_EMULATOR_HOST": "http://10.0.0.1:4443", "OTHER": "1"},
            code=Code(name="xpk-code-0123456789abcdef0123", source="gs://bucket/output/.code/xpk-code-0123.tar.gz"),
        )
    ),
    "kind-read-only-root": lambda: render_workload(
        workload(
            target=ON_KIND,
            command=("bash", "-c", "python train.py"),
            code=Code(name="xpk-code-0123456789abcdef0123", archive=b"an archive"),
            read_only_root=True,
        )
    ),
    "network-policy": lambda: render_network_policy(workload(target=ON_GKE, network_policy=True)),
    "kind-mounts": lambda: render_workload(
        workload(
            target=ON_KIND,
            mounts=(
                Mount(source="data", target="/data"),
                Mount(source="data", target="/mnt/old", sub_path="runs/old", read_only=True),
                Mount(source="weights", target="/mnt/weights", read_only=True),
            ),
        )
    ),
    "gke-mounts": lambda: render_workload(
        workload(
            target=ON_GKE,
            code=Code(name="xpk-code-0123456789abcdef0123", source="gs://bucket/output/.code/xpk-code-0123.tar.gz"),
            mounts=(
                Mount(source="gs://corpus/tokens/v3", target="/data", read_only=True),
                Mount(source="gs://scratch", target="/mnt/scratch"),
                Mount(source="filestore", target="/mnt/shared"),
            ),
        )
    ),
    "kind-ray": lambda: render_workload(
        workload(
            target=ON_KIND,
            ray=True,
            command=ray_command("python it.py", (), Ray(dashboard=True), find_shape("v5litepod-8"), max_restarts=0),
        )
    ),
    "kind-cluster": lambda: [
        render_kind(
            ClusterSpec(name="dev", shape=find_shape("v5litepod-16"), num_slices=2),
            nodes_per_slice=2,
            spare_slices=1,
            shared_folder="/shared/output",
        )
    ],
    "image-cache": lambda: render_image_cache(
        ImageCacheSpec(
            images=("europe-docker.pkg.dev/p/r/trainer:1", "busybox:1.37"),
            pools=("dev-np-10", "dev-np-2"),
            taints=("google.com/tpu",),
            seconds=1860,
            image_pull_secret="registry",
        )
    ),
    "queues": lambda: render_queues(ClusterSpec(name="dev", shape=find_shape("v5litepod-8"), num_slices=2)),
    "queues-promised": lambda: render_queues(
        ClusterSpec(name="dev", shape=find_shape("v5litepod-16"), num_slices=8),
        ClusterSpec(name="dev", shape=find_shape("h100-80gb-8"), num_slices=2),
        promised={"v5litepod-16": 5},
    ),
    "priorities": lambda: render_priorities(),
    "gke-run-as-user": lambda: render_workload(
        workload(
            target=ON_GKE,
            image="i",
            service_account="train-sa",
            run_as_user=1000,
            code=Code(name="code-0123456789ab", source="gs://bucket/code-0123456789ab.tar.gz"),
        )
    ),
    "priority-limit": lambda: render_priority_limit("red", "medium"),
    "queue": lambda: render_queue(
        QueueSpec(
            name="red",
            namespaces=("team-red", "team-pink"),
            quotas=(
                SliceQuota(shape=find_shape("v5litepod-16"), num_slices=4, borrowing_limit=2, lending_limit=0),
                SliceQuota(shape=find_shape("h100-80gb-8"), num_slices=1),
            ),
            max_priority="medium",
        )
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str) -> None:
    file, text = GOLDEN / f"{case}.yaml", to_yaml(CASES[case]())
    if os.environ.get("XPK_UPDATE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), "intended? run `make golden` and review the difference"


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
TRICKY = st.sampled_from(
    ['q"u', "a\nb", "{{ x }}", "a: b", "- a", "$(X)", "$$(X)", "$$", "%", "yes", "0x1f", "'", "#", "😀"]
)


@given(st.one_of(TEXTS, TRICKY), st.one_of(TEXTS.filter(bool), TRICKY))
def test_values_arrive_unchanged(value: str, command: str) -> None:
    objects = render_workload(workload(env={"VALUE": value}, command=("bash", "-c", command)))
    (read_back,) = yaml.safe_load_all(to_yaml(objects))
    container = read_back["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert expand(env["VALUE"]) == value
    assert expand(container["command"][-1]) == command


# Whole numbers of strconv.ParseInt with base 0, and the pattern by which go-yaml finds other numbers.
GO_INTEGER = r"[-+]?(0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|0|[1-9][0-9]*)"
GO_FLOAT = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
NOT_TEXTS = st.one_of(
    st.sampled_from(["y", "Y", "n", "N", "on", "off", "1e-4", "1E5", "0o17", "08", "0_8", "-_1", "+1", ".5e3", "5."]),
    st.from_regex(rf"({GO_INTEGER}|{GO_FLOAT})", fullmatch=True),
    st.text("0123456789_+-.eExXoObByYnN", min_size=1, max_size=6),
)


def is_text_for_kubectl(plain: str) -> bool:
    """Return whether go-yaml, by which kubectl reads manifests, takes an unquoted text for a text."""
    if plain in ("", "~", "null", "Null", "NULL") or plain.lower().lstrip("+-") in (".inf", ".nan"):
        return False
    if plain.lower() in ("y", "n", "yes", "no", "on", "off", "true", "false"):
        return False
    if plain[0] not in "+-.0123456789":
        return True
    digits = plain.replace("_", "")
    return not (re.fullmatch(GO_INTEGER, digits) or re.fullmatch(GO_FLOAT, digits))


@given(st.one_of(NOT_TEXTS, TEXTS, TRICKY))
def test_every_text_is_a_text_for_kubectl_and_for_yaml(text: str) -> None:
    objects = [{"kind": "X", text: [text]}]
    written = to_yaml(objects)
    assert list(yaml.safe_load_all(written)) == objects
    scalars = [event for event in yaml.parse(written) if isinstance(event, yaml.ScalarEvent)]
    plain = [event.value for event in scalars if event.style is None]
    assert [value for value in plain if not is_text_for_kubectl(value)] == []


@pytest.mark.parametrize("text", ["10.0.0.1", "v1", "registry.example/trainer:1", "1.2.3", "code-0123456789ab", "5m"])
def test_other_texts_are_not_quoted(text: str) -> None:
    assert to_yaml([{"text": text}]) == f"---\ntext: {text}\n"


def expand(text: str) -> str:
    """Expand `$` like Kubernetes without defined variables: `$$` becomes `$`, everything else stays."""
    return re.sub(r"\$\$", "$", text)


def test_a_host_path_has_the_same_path_in_pods_and_replaces_rays_memory() -> None:
    (jobset,) = render_workload(workload(target=ON_KIND, ray=True, node_folder="/dev/shm"))
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert {"name": "node", "hostPath": {"path": "/dev/shm", "type": "Directory"}} in pod["volumes"]
    mounts = {mount["mountPath"]: mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts == {"/xpk/peers": "peers", "/dev/shm": "node", "/shared/output": "shared"}
    (here,) = render_workload(workload(target=EMULATED, node_folder="/dev/shm"))
    assert "volumes" not in here["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("spec", "watched"),
    [
        (workload(target=ON_KIND, peer_watch=True), True),
        (workload(target=ON_GKE, peer_watch=True), True),
        (workload(target=ON_KIND, peer_watch=False), False),
        (workload(target=EMULATED, peer_watch=True), False),
        (workload(target=ON_KIND, peer_watch=True, shape=find_shape("v5litepod-4"), num_slices=1), True),
    ],
)
def test_commands_of_pods_run_under_the_supervisor(spec: WorkloadSpec, watched: bool) -> None:
    (jobset,) = render_workload(spec)
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    (host,) = pod["containers"]
    assert tuple(host["args"] if watched else host["command"]) == command_of(host) == spec.command
    assert ("python3 -I /xpk/peers/supervisor.pyz" in host["command"][-1]) is watched
    for secret in render_peer_secret(spec):
        assert ("supervisor.pyz" in secret["data"]) is watched
        (volume,) = (volume["secret"] for volume in pod["volumes"] if volume["name"] == "peers")
        assert {item["key"] for item in volume.get("items", ())} == (set(secret["data"]) if watched else set())


@pytest.mark.parametrize("fenced", [True, False])
def test_hosts_are_declared_dead_only_if_that_is_safe(fenced: bool) -> None:
    (jobset,) = render_workload(workload(target=replace(ON_KIND, fenced=fenced)))
    meta = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["metadata"]
    assert ("kueue.x-k8s.io/safe-to-forcefully-delete" in meta.get("annotations", {})) is fenced


@pytest.mark.parametrize("target", [ON_KIND, ON_GKE])
def test_code_from_a_shared_folder_or_a_bucket_needs_no_configmap(target: Target) -> None:
    source = f"{target.output_root}/.code/xpk-code-0123.tar.gz"
    (jobset,) = render_workload(workload(target=target, code=Code(name="xpk-code-0123", source=source)))
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    (unpacks,), (host,) = pod["initContainers"], pod["containers"]
    assert unpacks["command"][:2] == ["python3", "-c"] and unpacks["command"][3:] == [
        source,
        "xpk-code-0123",
        "/xpk/code",
    ]
    assert (unpacks["image"], unpacks["securityContext"]) == (host["image"], host["securityContext"])
    assert host["workingDir"] == "/xpk/code"
    compile(expand(unpacks["command"][2]), "unpack", "exec")


def test_local_hosts_start_in_the_folder_itself() -> None:
    code = Code(name="xpk-code-0123", source="/clusters/dev/output/.code/xpk-code-0123")
    (jobset,) = render_workload(workload(code=code, working_dir=code.source))
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert "initContainers" not in pod and "volumes" not in pod
    assert pod["containers"][0]["workingDir"] == code.source
    assert jobset["metadata"]["annotations"]["xpk.dev/code"] == "xpk-code-0123"


def test_gke_gets_no_variables_that_its_webhook_sets() -> None:
    (jobset,) = CASES["gke-199-slices"]()
    container = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    names = {entry["name"] for entry in container["env"]}
    assert not {name for name in names if name.startswith(("MEGASCALE_", "TPU_WORKER_", "JAX_"))}


def test_commands_of_earlier_versions_are_shown_without_the_supervisor() -> None:
    start = 'command -v python3 > /dev/null && exec python3 -c "$XPK_PEER_WATCH" "$0" "$@"; exec "$0" "$@"'
    assert command_of({"command": ["bash", "-c", start], "args": ["python", "train.py"]}) == ("python", "train.py")


def test_a_host_that_failed_a_preflight_is_restarted_by_its_jobset_only() -> None:
    for preflight, in_place in ((False, "42 126 127"), (True, "42 79 126 127")):
        (jobset,) = render_workload(workload(preflight=preflight, restart_in_place=True))
        pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
        env = {entry["name"]: entry.get("value") for entry in pod["template"]["spec"]["containers"][0]["env"]}
        assert env["XPK_FATAL_EXIT_CODES"] == in_place
        assert pod["podFailurePolicy"]["rules"][2]["onExitCodes"]["values"] == [42, 78, 126, 127]


def test_all_problems_are_found_together() -> None:
    problems = workload(
        name="Bad_Name",
        num_slices=0,
        env={"1A": "x"},
        priority="urgent",
        command=(),
        max_restarts=-1,
        fatal_exit_codes=(143,),
    ).problems()
    assert len(problems) == 7


@pytest.mark.parametrize("num_slices", [0, -1, 1025])
def test_invalid_numbers_of_slices_are_rejected(num_slices: int) -> None:
    assert "--num-slices must be between 1 and 1024" in workload(num_slices=num_slices).problems()[0]


def test_each_secret_is_new_mounted_and_not_in_variables() -> None:
    spec = workload(target=ON_GKE, name="w", ray=True)
    values = [base64.b64decode(secret["data"]["secret"]) for _ in range(2) for secret in render_peer_secret(spec)]
    assert len(set(values)) == 2 and all(len(value) == 64 for value in values)
    # The kubelet would give the next workload with the name the value of this one, while a pod of this one remains.
    assert not any(secret.get("immutable") for secret in render_peer_secret(spec))
    (jobset,) = render_workload(spec)
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert {"name": "peers", "secret": {"secretName": "xpk-peers.w", "defaultMode": 0o444}} in pod["volumes"]
    (host,) = pod["containers"]
    assert {"name": "peers", "mountPath": "/xpk/peers", "readOnly": True} in host["volumeMounts"]
    assert {"name": "XPK_PEER_SECRET_FILE", "value": "/xpk/peers/secret"} in host["env"]
    assert render_peer_secret(workload(target=EMULATED)) == []


def test_a_copy_knows_its_run_and_its_cluster() -> None:
    copy = CopySpec(run="r1", cluster="east", clusters=("east", "west"), queue="q", move_after_seconds=30.0)
    env = {}
    for spec in (workload(copy=copy), workload()):
        (jobset,) = (obj for obj in render_workload(spec) if obj["kind"] == "JobSet")
        (host,) = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"]
        env[spec.copy] = {entry["name"]: entry.get("value") for entry in host["env"] if "PLACEMENT" in entry["name"]}
    assert env == {copy: {"XPK_PLACEMENT_RUN": "r1", "XPK_PLACEMENT_CLUSTER": "east"}, None: {}}


def test_a_copy_whose_run_continues_elsewhere_restarts_uncounted_and_not_in_place() -> None:
    copy = CopySpec(run="r1", cluster="east", clusters=("east", "west"), queue="q", move_after_seconds=30.0)
    for spec, codes, in_place in (
        (workload(restart_in_place=True), [143], "42 126 127"),
        (workload(restart_in_place=True, copy=copy), [80, 143], "42 80 126 127"),
    ):
        (jobset,) = (obj for obj in render_workload(spec) if obj["kind"] == "JobSet")
        pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
        assert pod["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"] == codes
        assert pod["podFailurePolicy"]["rules"][3]["onExitCodes"]["values"] == sorted([42, 78, 126, 127, *codes])
        patterns = jobset["spec"]["failurePolicy"]["rules"][0]["onJobFailureMessagePatterns"]
        assert patterns == ["condition DisruptionTarget", *(f"exit code {code} " for code in codes)]
        env = {entry["name"]: entry.get("value") for entry in pod["template"]["spec"]["containers"][0]["env"]}
        assert env["XPK_FATAL_EXIT_CODES"] == in_place


def test_node_pools_suffice_for_all_slices_and_are_whole() -> None:
    pools = ("np-0", "np-1")
    assert workload(num_slices=2, node_pools=pools).problems() == []
    (many,) = workload(num_slices=3, node_pools=pools).problems()
    assert many == "--num-slices must be at most the number of node pools (np-0, np-1), got 3"
    cubes = {"shape": find_shape("tpu7x-4x4x8"), "within": find_shape("tpu7x-128"), "target": ON_GKE, "image": "i"}
    (formed,) = workload(node_pools=pools, **cubes).problems()
    assert formed == "nodes cannot be chosen for tpu7x-256: Kueue places it on tpu7x-128 itself"
