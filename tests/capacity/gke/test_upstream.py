"""Command lines documented by Google's xpk give equal plans."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.capacity.gke.site import Site
from xpk.capacity.gke.api_access import KnownClusters
from xpk.capacity.gke.observed.state import Observed
from xpk.capacity.gke.planning.plan import draft
from xpk.capacity.gke.provider import GkeProvider
from xpk.cli.google_xpk import CLUSTER
from xpk.cli.main import main
from xpk.model.accelerators import find_shape
from xpk.model.specs import ClusterSpec

PLACE = "--project=golden-project --zone=us-central1-a --cluster=golden-cluster"
AUTH = "https://www.googleapis.com/auth/"
WRITES = {f"{AUTH}devstorage.full_control", f"{AUTH}cloud-platform"}


class Xpk:
    """The program with an emulated project."""

    def __init__(self, site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        for name, value in site.environ.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("XPK_STATE_DIR", str(site.folder))
        self.site, self._capsys = site, capsys

    def __call__(self, line: str) -> tuple[int, str, str]:
        code = main(shlex.split(line))
        out, err = self._capsys.readouterr()
        return code, out, err

    def plan(self, flags: str) -> dict[str, dict[str, Any]]:
        """Return the requests of a create by the keys of its changes."""
        code, out, err = self(f"cluster create {PLACE} {flags} --dry-run -o json")
        assert code == 0, err
        return {change["key"]: change["body"] for change in json.loads(out)["changes"]}


@pytest.fixture
def xpk(site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Xpk:
    for name in ("golden-reservation", "other"):
        for project in ("golden-project", "reservation-project"):
            site.gke.add_reservation(
                name, project=project, zone="us-central1-a", machine_type="ct5p-hightpu-4t", count=64
            )
    return Xpk(site, monkeypatch, capsys)


def test_the_cluster_equals_that_of_googles_xpk(xpk: Xpk) -> None:
    cluster = xpk.plan("--tpu-type=v4-8 --spot --num-slices=1")["create-cluster:golden-cluster"]
    (default,) = cluster["node_pools"]
    assert (default["initial_node_count"], default["config"]["machine_type"]) == (6, "e2-standard-16")
    assert default["autoscaling"] == {
        "enabled": True, "total_min_node_count": 1, "total_max_node_count": 1000, "location_policy": "BALANCED",
    }  # fmt: skip
    assert cluster["autoscaling"] == {"autoscaling_profile": "OPTIMIZE_UTILIZATION"}
    assert cluster["resource_labels"] == {"gke_product_type": "xpk"} and cluster["locations"] == ["us-central1-a"]
    assert cluster["release_channel"] == {"channel": "RAPID"} and cluster["initial_cluster_version"].startswith("1.36")
    assert cluster["ip_allocation_policy"] == {"use_ip_aliases": True}
    assert cluster["network_config"]["datapath_provider"] == "ADVANCED_DATAPATH"
    assert cluster["network_config"]["enable_multi_networking"]
    assert cluster["control_plane_endpoints_config"] == {"dns_endpoint_config": {"allow_external_traffic": True}}


@pytest.mark.parametrize(
    ("flags", "machine", "nodes", "placement"),
    [
        ("--tpu-type=v4-8 --spot", "ct4p-hightpu-4t", 1, None),
        ("--tpu-type=v5p-16 --on-demand", "ct5p-hightpu-4t", 2, {"type": "COMPACT", "tpu_topology": "2x2x2"}),
        ("--tpu-type=v5litepod-256 --on-demand", "ct5lp-hightpu-4t", 64, {"type": "COMPACT", "tpu_topology": "16x16"}),
        ("--tpu-type=tpu7x-8 --spot", "tpu7x-standard-4t", 1, None),
        ("--tpu-type=tpu7x-16 --spot", "tpu7x-standard-4t", 2, {"policy_name": "tpu7x-16-2x2x2-placement-policy"}),
        ("--device-type=l4-2 --num-nodes=1 --spot", "g2-standard-24", 1, None),
        ("--device-type=h100-80gb-8 --num-nodes=2 --on-demand", "a3-highgpu-8g", 1, None),
        ("--device-type=h200-141gb-8 --num-nodes=2 --spot", "a3-ultragpu-8g", 1, None),
        ("--device-type=n2-standard-32-2 --num-slices=1 --on-demand", "n2-standard-32", 2, None),
        ("--tpu-type=v4-8 --num-slices=4 --on-demand --force", "ct4p-hightpu-4t", 1, None),
        (
            "--tpu-type=v5litepod-16 --num-slices=4 --on-demand",
            "ct5lp-hightpu-4t",
            4,
            {"type": "COMPACT", "tpu_topology": "4x4"},
        ),
        ("--tpu-type=v6e-4x4 --spot", "ct6e-standard-4t", 4, {"type": "COMPACT", "tpu_topology": "4x4"}),
        (
            "--tpu-type=tpu7x-4x4x4 --on-demand",
            "tpu7x-standard-4t",
            16,
            {"policy_name": "tpu7x-128-4x4x4-placement-policy"},
        ),
    ],
)
def test_node_pools_equal_those_of_googles_xpk(
    xpk: Xpk, flags: str, machine: str, nodes: int, placement: dict[str, str] | None
) -> None:
    plan = xpk.plan(flags)
    pool = plan["create-pool:golden-cluster-np-0"]
    assert (pool["config"]["machine_type"], pool["initial_node_count"]) == (machine, nodes)
    assert pool.get("placement_policy") == placement and pool["locations"] == ["us-central1-a"]
    assert pool["config"]["gvnic"] == {"enabled": True}
    pods = {"max_pods_per_node": 15} if nodes > 1 and "tpu" in flags else None
    assert pool.get("max_pods_constraint") == pods
    assert pool["config"].get("spot", False) == ("--spot" in flags)
    policy = (placement or {}).get("policy_name")
    assert (f"create-policy:{policy}" in plan) == bool(policy)


def test_every_slice_has_a_pool_and_every_gpu_host_is_a_slice(xpk: Xpk) -> None:
    for flags in ("--tpu-type=v5litepod-16 --num-slices=4 --spot", "--device-type=h100-80gb-8 --num-nodes=4 --spot"):
        plan = xpk.plan(flags)
        pools = [key for key in plan if key.startswith("create-pool:")]
        assert pools == [f"create-pool:golden-cluster-np-{index}" for index in range(4)]


def test_networks_of_a3_hosts_equal_those_of_googles_xpk(xpk: Xpk) -> None:
    plan = xpk.plan("--device-type=h100-80gb-8 --num-nodes=2 --reservation=golden-reservation")
    for number in range(1, 5):
        body = plan[f"create-network:golden-cluster-net-{number}"]
        assert (body["network"]["mtu"], body["network"]["autoCreateSubnetworks"]) == (8244, False)
        assert body["subnetwork"]["name"] == f"golden-cluster-us-central1-sub-{number}"
        assert body["subnetwork"]["ipCidrRange"] == f"192.168.{number}.0/24"
        assert body["firewall"]["name"] == f"golden-cluster-internal-{number}"
        assert body["firewall"]["sourceRanges"] == ["192.168.0.0/16"]
    assert plan["create-pool:golden-cluster-np-0"]["config"]["accelerators"][0]["gpu_driver_installation_config"] == {
        "gpu_driver_version": "LATEST"
    }


def test_host_maintenance_equals_that_of_googles_xpk(xpk: Xpk) -> None:
    line = "--tpu-type=v5p-16 --reservation=golden-reservation --host-maintenance-interval"
    pool = xpk.plan(f"{line}=PERIODIC")["create-pool:golden-cluster-np-0"]
    assert pool["config"]["host_maintenance_policy"] == {"maintenance_interval": "PERIODIC"}
    assert "host_maintenance_policy" not in xpk.plan(f"{line}=AS_NEEDED")["create-pool:golden-cluster-np-0"]["config"]
    out = xpk(f"cluster create {PLACE} {line}=PERIODIC --dry-run -o gcloud")[1]
    assert "--host-maintenance-interval=PERIODIC" in out and "no flag sets" not in out


def test_private_clusters_equal_those_of_googles_xpk(xpk: Xpk) -> None:
    line = "--private --tpu-type=v5p-8 --num-slices=1 --default-pool-cpu-machine-type=n1-standard-16 --on-demand "
    cluster = xpk.plan(f"{line} --default-pool-cpu-num-nodes=4")["create-cluster:golden-cluster"]
    assert cluster["private_cluster_config"] == {"enable_private_nodes": True}
    assert cluster["control_plane_endpoints_config"]["ip_endpoints_config"] == {
        "authorized_networks_config": {"enabled": True}
    }
    assert cluster["node_pools"][0]["config"]["machine_type"] == "n1-standard-16"
    line = "--private --enable-private-endpoint --private-endpoint-subnetwork=golden-cp-subnet"
    line += " --authorized-networks 10.0.0.0/8 192.168.0.0/16 --tpu-type=v5p-8 --num-slices=1 --on-demand"
    cluster = xpk.plan(line)["create-cluster:golden-cluster"]
    assert cluster["private_cluster_config"] == {
        "enable_private_nodes": True,
        "enable_private_endpoint": True,
        "private_endpoint_subnetwork": "golden-cp-subnet",
    }
    endpoints = cluster["control_plane_endpoints_config"]
    assert "dns_endpoint_config" not in endpoints, "Google's xpk creates no DNS endpoint in this case either"
    blocks = endpoints["ip_endpoints_config"]["authorized_networks_config"]["cidr_blocks"]
    assert [block["cidr_block"] for block in blocks] == ["10.0.0.0/8", "192.168.0.0/16"]


@pytest.mark.parametrize(
    ("reservation", "values"),
    [
        ("golden-reservation", ["golden-reservation"]),
        ("projects/golden-project/reservations/golden-reservation", ["golden-reservation"]),
        (
            "projects/reservation-project/reservations/golden-reservation",
            ["projects/reservation-project/reservations/golden-reservation"],
        ),
    ],
)
def test_reservations_equal_those_of_googles_xpk(xpk: Xpk, reservation: str, values: list[str]) -> None:
    pool = xpk.plan(f"--tpu-type=v5p-16 --reservation={reservation}")["create-pool:golden-cluster-np-0"]
    assert pool["config"]["reservation_affinity"] == {
        "consume_reservation_type": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": values,
    }


def test_blocks_and_sub_blocks_of_reservations(xpk: Xpk) -> None:
    block = "projects/golden-project/zones/us-central1-a/reservations/golden-reservation/reservationBlocks/b"
    with xpk.site.gke.plane.store.lock:
        xpk.site.gke.plane.compute.put(block, "compute#reservationBlock", {"count": 16, "inUseCount": 0})
        xpk.site.gke.plane.compute.put(
            f"{block}/reservationSubBlocks/s", "compute#reservationSubBlock", {"count": 16, "inUseCount": 15}
        )
    name = "golden-reservation/reservationBlocks/b"
    pool = xpk.plan(f"--tpu-type=v5p-16 --reservation={name}")["create-pool:golden-cluster-np-0"]
    assert pool["config"]["reservation_affinity"]["values"] == [name]
    code, out, err = xpk(
        f"cluster create {PLACE} --tpu-type=v5p-16 --reservation={name}/reservationSubBlocks/s --dry-run"
    )
    assert code == 5 and "needs 2 of 1: too little" in out and "the request does not fit" in err


def test_flex_start_equals_that_of_googles_xpk(xpk: Xpk) -> None:
    pool = xpk.plan("--tpu-type=v6e-16 --flex --queued-provisioning")["create-pool:golden-cluster-np-0"]
    assert pool["initial_node_count"] == 0 and pool["config"]["flex_start"]
    assert pool["autoscaling"] == {"enabled": True, "max_node_count": 4, "location_policy": "ANY"}
    assert pool["config"]["reservation_affinity"] == {"consume_reservation_type": "NO_RESERVATION"}
    assert pool["management"] == {"auto_upgrade": True, "auto_repair": False}
    assert pool["queued_provisioning"] == {"enabled": True}
    assert pool["network_config"] == {"accelerator_network_profile": "auto"}


def test_storage_and_autoprovisioning_and_arguments_of_gcloud(xpk: Xpk) -> None:
    line = "--tpu-type=v5p-8 --spot --enable-gcsfuse-csi-driver --enable-lustre-csi-driver --enable-legacy-lustre-port"
    line += " --enable-autoprovisioning --autoprovisioning-max-chips=128 --gke-version=1.34"
    line += (
        " --custom-cluster-arguments='--network=net --subnetwork default network_config.enable_l4ilb_subsetting=true'"
    )
    line += " --custom-nodepool-arguments='--disk-size=200 --node-taints=a=b:NoExecute'"
    plan = xpk.plan(line.replace("--network=net ", ""))
    cluster, pool = plan["create-cluster:golden-cluster"], plan["create-pool:golden-cluster-np-0"]
    assert cluster["addons_config"] == {
        "gcs_fuse_csi_driver_config": {"enabled": True},
        "lustre_csi_driver_config": {"enabled": True, "enable_legacy_lustre_port": True},
    }
    assert cluster["workload_identity_config"] == {"workload_pool": "golden-project.svc.id.goog"}
    assert pool["config"]["workload_metadata_config"] == {"mode": "GKE_METADATA"}
    limits = {limit["resource_type"]: limit["maximum"] for limit in cluster["autoscaling"]["resource_limits"]}
    assert limits == {"cpu": 1_000_000, "memory": 10_000_000, "tpu-v5p-slice": 128}
    assert cluster["release_channel"] == {"channel": "REGULAR"}, "equal to Google's with --gke-version"
    assert cluster["initial_cluster_version"] == pool["version"] == "1.34.3-gke.1051000"
    assert pool["management"] == {"auto_upgrade": False, "auto_repair": True}
    assert cluster["subnetwork"] == "default" and cluster["network_config"]["enable_l4ilb_subsetting"] is True
    assert pool["config"]["disk_size_gb"] == 200
    assert pool["config"]["taints"] == [{"key": "a", "value": "b", "effect": "NO_EXECUTE"}]


def test_a_plan_as_commands(xpk: Xpk) -> None:
    code, out, _ = xpk(f"cluster create {PLACE} --tpu-type=tpu7x-16 --reservation=other --dry-run -o gcloud")
    commands = [shlex.split(line) for line in out.splitlines() if not line.startswith("#")]
    assert code == 0 and [command[:5] for command in commands if command[0] == "gcloud"] == [
        ["gcloud", "compute", "resource-policies", "create", "workload-policy"],
        ["gcloud", "beta", "container", "clusters", "create"],
        ["gcloud", "beta", "container", "node-pools", "create"],
        ["gcloud", "container", "clusters", "get-credentials", "golden-cluster"],
    ]
    theirs = {
        "--project=golden-project", "--location=us-central1", "--node-locations=us-central1-a", "--num-nodes=2",
        "--machine-type=tpu7x-standard-4t", "--reservation-affinity=specific", "--reservation=other", "--enable-gvnic",
        "--placement-policy=tpu7x-16-2x2x2-placement-policy", "--max-pods-per-node=15",
    }  # fmt: skip
    assert theirs <= set(commands[2]), theirs - set(commands[2])
    cluster = {
        "--enable-ip-alias", "--enable-dataplane-v2", "--enable-multi-networking", "--enable-dns-access",
        "--autoscaling-profile=optimize-utilization", "--total-max-nodes=1000", "--release-channel=rapid",
        "--labels=gke_product_type=xpk", "--num-nodes=6", "--machine-type=e2-standard-16", "--enable-autoscaling",
    }  # fmt: skip
    assert cluster <= set(commands[1]), cluster - set(commands[1])
    assert xpk(f"cluster create {PLACE} --tpu-type=v5p-8 --spot -o gcloud")[0] == 2, "only a plan can be printed"
    assert xpk("cluster create here --tpu-type v5litepod-8 --dry-run -o gcloud")[0] == 2, (
        "local clusters have no such commands"
    )


def test_shrinking_prompts_for_confirmation(xpk: Xpk) -> None:
    xpk.site.create(2)
    provider = xpk.site.provider()
    plan = provider.plan_resize("c", 1, force=False)
    assert plan.question == "Delete node pools c-np-1 and release their capacity?"
    assert provider.plan_resize("c", 3, force=False).question == ""


def test_supported_flags_are_accepted(xpk: Xpk) -> None:
    assert not {"--project", "--zone", "--spot", "--reservation", "--private", "--gke-version"} & set(CLUSTER)
    code, _, err = xpk("cluster create here --tpu-type v5litepod-8 --provider local --spot")
    assert code == 2 and "--spot is not supported by the local provider" in err


def test_adapting_a_cluster_by_its_name_alone(xpk: Xpk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KnownClusters, "connect", lambda *_: xpk.site.api)
    xpk.site.create(1)
    code, _, err = xpk("cluster adapt c --project p --zone us-central1-a --fenced")
    assert code == 0 and xpk.site.provider().target("c").fenced, err
    code, out, err = xpk("cluster adapt c --dry-run")
    assert code == 0 and "cluster 'c' in us-central1: 1 x v5litepod-16" in out and "nothing to do" in out, err
    given = "--context theirs --tpu-type v5p-8 --emulated --num-slices 2"
    for line in (f"cluster adapt c {given}", f"cluster adapt c --project p --zone us-central1-a {given}"):
        code, _, err = xpk(line)
        wrong = "does not support --context, --emulated"
        assert code == 2 and err.startswith(f"error: cluster 'c' is of provider 'gke', which {wrong}\n"), err
        assert err.count("\n") == 2 and "  hint: " in err


def test_workloads_find_a_cluster_by_its_project(xpk: Xpk) -> None:
    xpk.site.create(1)
    code, _, err = xpk("workload list --cluster=nowhere --project=p --zone=us-central1-a")
    assert code == 3 and "cluster 'nowhere' not found in project p" in err
    GkeProvider(options=xpk.site.options()).find("c")  # like `workload list` before it contacts the cluster
    assert (xpk.site.folder / "gke" / "c" / "cluster.json").exists(), "from now on it is registered"
    code, _, err = xpk("workload list --cluster=c --project=other --zone=us-central1-a")
    assert code == 2 and "cluster 'c' is in project p (requested other)" in err


def test_workloads_find_a_cluster_by_the_project_that_is_set(
    xpk: Xpk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XPK_CONFIG_DIR", str(tmp_path / "config"))
    for variable in ("XPK_GKE_PROJECT", "XPK_GKE_ZONE"):  # they would take precedence over the settings
        monkeypatch.delenv(variable, raising=False)
    assert xpk("config set project-id p zone us-central1-a cluster-name nowhere")[0] == 0
    code, _, err = xpk("workload list")
    assert code == 3 and "cluster 'nowhere' not found in project p" in err
    code, _, err = xpk("workload list --project other")
    assert code == 3 and "cluster 'nowhere' not found in project other" in err


def test_workload_command_lines_match_googles_xpk(xpk: Xpk) -> None:
    assert xpk("cluster create golden --provider local --tpu-type v5litepod-16 --num-slices 2")[0] == 0
    try:
        code, out, err = xpk(
            "workload create --cluster golden --workload maxtext-1b --tpu-type=v5litepod-16 --num-slices=2 "
            "--docker-image=gcr.io/p/i --command 'python3 main.py' --priority=very-high --max-restarts=2 --env A=b"
            " --ttl-seconds-after-finished=60 -tgps 45 --dry-run"
        )
        assert code == 0, err
        (jobset,) = [item for item in yaml.safe_load_all(out) if item["kind"] == "JobSet"]
        assert jobset["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "multislice-queue"
        assert jobset["metadata"]["labels"]["xpk.google.com/workload"] == "maxtext-1b"
        spec = jobset["spec"]
        assert (spec["ttlSecondsAfterFinished"], spec["failurePolicy"]["maxRestarts"]) == (60, 2)
        (job,) = spec["replicatedJobs"]
        assert (job["name"], job["replicas"], job["template"]["spec"]["parallelism"]) == ("slice-job", 2, 4)
        pod = job["template"]["spec"]["template"]["spec"]
        assert (pod["restartPolicy"], pod["terminationGracePeriodSeconds"]) == ("Never", 45)
        (host,) = pod["containers"]
        assert host["image"] == "gcr.io/p/i" and {"name": "A", "value": "b"} in host["env"]
        code, _, err = xpk("workload create w --cluster golden --num-nodes=2 --command true --dry-run")
        assert code == 0 and err.count("warning: ") == 1 and "--num-nodes has no effect" in err, err
        code, _, err = xpk("workload list --cluster golden --project p")
        assert code == 2 and "belongs to provider 'local'" in err
    finally:
        assert xpk("cluster delete golden --yes")[0] == 0


def test_pods_get_credentials_of_nodes_only_on_request(xpk: Xpk) -> None:
    line = "--tpu-type=v5p-8 --spot --enable-autoprovisioning"
    plan = xpk.plan(line)
    cluster, pool = plan["create-cluster:golden-cluster"], plan["create-pool:golden-cluster-np-0"]
    assert cluster["workload_identity_config"] == {"workload_pool": "golden-project.svc.id.goog"}
    defaults = cluster["autoscaling"]["autoprovisioning_node_pool_defaults"]
    for config in (cluster["node_pools"][0]["config"], pool["config"], defaults):
        assert f"{AUTH}devstorage.read_only" in config["oauth_scopes"], "nodes pull images"
        assert not {f"{AUTH}devstorage.full_control", f"{AUTH}cloud-platform"} & set(config["oauth_scopes"])
    for config in (cluster["node_pools"][0]["config"], pool["config"]):
        assert config["workload_metadata_config"] == {"mode": "GKE_METADATA"}

    wide = xpk.plan(f"{line} --disable-workload-identity")
    cluster, pool = wide["create-cluster:golden-cluster"], wide["create-pool:golden-cluster-np-0"]
    assert "workload_identity_config" not in cluster and "workload_metadata_config" not in pool["config"]
    defaults = cluster["autoscaling"]["autoprovisioning_node_pool_defaults"]
    for config in (cluster["node_pools"][0]["config"], pool["config"], defaults):
        assert set(config["oauth_scopes"]) >= WRITES, (
            "without workload identity, pods access buckets through their nodes"
        )
    code, out, err = xpk(f"cluster create {PLACE} {line} --disable-workload-identity --dry-run")
    assert code == 0 and "pods act as the nodes' service account" in out and "scopes storage-full" in out, err

    narrow = xpk.plan(f"{line} --disable-workload-identity --node-scopes gke-default")
    assert not WRITES & set(narrow["create-pool:golden-cluster-np-0"]["config"]["oauth_scopes"])


def test_new_slices_without_workload_identity_keep_bucket_access(xpk: Xpk) -> None:
    asked = xpk.site.options(project="golden-project", spot=True)
    spec = ClusterSpec(name="golden-cluster", shape=find_shape("v5p-8"), num_slices=1)
    for identity, wide in (({}, True), ({"workload_pool": "golden-project.svc.id.goog"}, False)):
        cluster = {"name": spec.name, "location": "us-central1", "workload_identity_config": identity}
        (change,) = (
            item for item in draft(spec, asked, Observed(cluster=cluster)).changes if item.kind == "create-pool"
        )
        assert (set(change.body["config"]["oauth_scopes"]) >= WRITES) is wide


def test_conflicting_workload_identity_options_are_rejected(xpk: Xpk) -> None:
    both = "--disable-workload-identity --enable-gcsfuse-csi-driver"
    code, _, err = xpk(f"cluster create {PLACE} --tpu-type=v5p-8 --spot --dry-run {both}")
    assert code == 2 and "--enable-gcsfuse-csi-driver and --disable-workload-identity exclude each other" in err


@pytest.mark.parametrize(
    "argument", ["node_pools.x=3", "network.x=3", "node_pool.config=3", "node_pool.config.oauth_scopes={}"]
)
def test_custom_arguments_of_a_wrong_type_are_rejected(xpk: Xpk, argument: str) -> None:
    line = f"--tpu-type=v5p-8 --spot --network=n --custom-cluster-arguments='{argument}' --dry-run"
    code, _, err = xpk(f"cluster create {PLACE} {line}")
    assert code == 2 and f"--custom-cluster-arguments: {argument}: " in err, err
