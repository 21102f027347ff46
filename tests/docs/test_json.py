"""JSON Schemas of docs/json.md: each command with `-o json` has one, which its output satisfies."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Xpk
from tests.cli.conftest import dev as dev
from tests.cli.conftest import state as state
from tests.cli.conftest import xpk as xpk
from tests.docs.command_tree import commands
from tests.jobs.report.runs import RunWriter
from tests.waiting import until
from tools.json_reference import OUTPUTS, reference, schema_of
from xpk.api.storages import Storage
from xpk.capacity.fencing.fencer import Fencing
from xpk.capacity.images.cache import CacheOutcome
from xpk.capacity.images.pull_status import ImagePulls, PullTrouble
from xpk.capacity.nodes.health import HostTrouble, SliceHealth
from xpk.cli.main import xpk as program
from xpk.cli.storage import storage_info
from xpk.model.mounts import Mount


def check(run: Xpk, *arguments: str, code: int = 0) -> Any:
    """Return the output of a command after validating it with the command's schema."""
    done = run(*arguments, "-o", "json")
    assert done.code == code, done.err
    validate(done.data, next(name for name in OUTPUTS if f"xpk {' '.join(arguments)} ".startswith(f"{name} ")))
    return done.data


def validate(data: Any, command: str) -> None:
    """Raise ValidationError for data that do not satisfy the schema of a command."""
    import jsonschema  # type: ignore[import-untyped]

    jsonschema.validate(json.loads(json.dumps(data)), schema_of(OUTPUTS[command]))


def test_every_command_with_json_output_has_a_schema() -> None:
    options = {
        path: {flag for item in command.params for flag in item.opts} for path, command in commands(program, "xpk")
    }
    assert sorted(OUTPUTS) == sorted(path for path, flags in options.items() if "--output" in flags)


def test_outputs_on_a_local_cluster_pass_their_schemas(dev: Xpk) -> None:
    check(dev, "workload", "create", "run", "--num-slices", "2", "--command", "mkdir -p $XPK_OUTPUT_DIR; sleep 60")
    created = check(dev, "workload", "create", "waits", "--num-slices", "2", "--command", "sleep 60")
    assert created["queue"] == "multislice-queue"
    assert [item["name"] for item in check(dev, "workload", "list")] == ["run", "waits"]
    until(lambda: dev("workload", "status", "waits", "-o", "json").data["quota"])  # once the control plane has seen it
    status = check(dev, "workload", "status", "waits")
    assert status["phase"] == "Queued" and status["quota"] and status["next"]
    assert len(check(dev, "workload", "describe", "run")["hosts"]) == 4
    check(dev, "queue", "list")
    assert {item["status"]["name"] for item in check(dev, "top")[0]["runs"]} == {"run", "waits"}
    assert [item["name"] for item in check(dev, "queue", "describe", "multislice-queue")["workloads"]] == [
        "run",
        "waits",
    ]
    assert [item["name"] for item in check(dev, "queue", "simulate")["pending"]] == ["waits"]
    assert check(dev, "cluster", "list") == [check(dev, "cluster", "describe", "dev")]
    assert not check(dev, "workload", "diff", "run", "waits", code=1)["equal"]
    assert [item["admitted"] for item in check(dev, "info")["local_queues"]] == [1]
    assert [row["team"] for row in check(dev, "usage")["rows"]] == ["default"]
    assert check(dev, "info", "--clusterqueue")["cluster_queues"][0]["used"] == "v5litepod-8=2"
    assert [item["workload"] for item in check(dev, "cluster", "health", "dev")] == ["run", "run"]


def test_plans_pass_their_schemas(dev: Xpk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert check(dev, "queue", "create", "red", "--quota", "v5litepod-8=1", "-n", "red", "--create-namespace")["steps"]
    assert check(dev, "queue", "delete", "red", "--dry-run")["steps"]
    assert check(dev, "cluster", "resize", "dev", "--num-slices", "3")["steps"]
    assert not check(dev, "cluster", "create", "dev", "--tpu-type", "v5litepod-8")["steps"]
    storage = ("--cluster", "dev", "--dry-run", "--mount-point", "/d")
    attached = check(dev, "storage", "attach", "corpus", "--type", "gcsfuse", "--bucket", "bucket", *storage)
    assert [item["kind"] for item in attached["objects"]][-1] == "ConfigMap"
    assert check(dev, "storage", "create", "shared", "--size", "1024", *storage)["objects"]
    for verb in ("detach", "delete"):
        assert check(dev, "storage", verb, "shared", "--cluster", "none", "--dry-run")["steps"]
    assert check(dev, "cluster", "delete", "dev", "--yes")["steps"]
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    place = ("--project", "p", "--zone", "us-central1-a")
    large = ("--tpu-type", "v6e-16", "--num-slices", "2", "--spot", *place)
    created = check(dev, "cluster", "create", "large", *large, "--dry-run")
    assert created["guess"] and created["changes"] and created["limits"] and created["cost"]["chips"] == 32
    assert check(dev, "cluster", "adapt", "large", "--provider", "gke", *place, "--dry-run")["guess"]


def test_outputs_without_a_cluster_pass_their_schemas(xpk: Xpk) -> None:
    assert check(xpk, "accelerator", "list") and check(xpk, "accelerator", "describe", "v5p-8")["chips"] == 4
    assert check(xpk, "config", "set", "cluster", "dev") == [check(xpk, "config", "get", "cluster")]
    assert check(xpk, "config", "explain", "cluster") in check(xpk, "config", "list")
    assert check(xpk, "config", "unset", "cluster") == [{"name": "cluster", "value": None}]
    assert check(xpk, "version")[0]["name"] == "xpk" and check(xpk, "doctor")


def test_outputs_of_planning_pass_their_schemas(xpk: Xpk) -> None:
    assert check(xpk, "plan", "goodput", "--config", "64b", "--num-slices", "4")["handlings"]
    slices = ("--tpu-type", "v6e-256", "--num-slices", "4")
    assert check(xpk, "plan", "capacity", "--config", "64b", "--tokens", "1e12", *slices)["choices"]


def test_outputs_that_need_nodes_pass_their_schemas(dev: Xpk) -> None:
    assert check(dev, "cluster", "cache-image", "dev", "--image", "i")["images"] == []
    pulls = ImagePulls(
        image="i", nodes=2, pulled=1, present=0, p50_seconds=1.0, p95_seconds=1.0, max_seconds=1.0, size_bytes=None,
        pulled_bytes=7, failed=(PullTrouble(node="n", reason="ErrImagePull", message="not found"),),
    )  # fmt: skip
    outcome = CacheOutcome(name="cache", nodes=2, seconds=1.0, in_time=True, images=(pulls,))
    validate(asdict(outcome), "xpk cluster cache-image")
    bucket = Storage(name="corpus", type="gcsfuse", mount=Mount(source="gs://b", target="/d", options=("o",)))
    validate([asdict(storage_info(bucket))], "xpk storage list")
    trouble = HostTrouble(node="n", reason="Cordoned", message="by xpk", since="2026-01-01T00:00:00Z")
    health = SliceHealth(
        node_pool="np-0", accelerator_type="v5litepod-8", hosts=2, hosts_ready=1, chips=8, chips_offered=4,
        troubles=(trouble,),
    )  # fmt: skip
    named = {"name": health.node_pool, "state": health.state, "usable": health.is_usable}
    validate([named | asdict(health)], "xpk cluster health")
    fencing = Fencing(node="n", slice="np-0", action="fence", reason="its container has exited", pods=("default/p",))
    validate([{"name": "n"} | asdict(fencing)], "xpk cluster fence")


def test_outputs_of_a_run_pass_their_schemas(dev: Xpk) -> None:
    dev("workload", "create", "run", "--num-slices", "2", "--command", "true")
    output = check(dev, "workload", "wait", "run", "--timeout", "60")["output_dir"]
    run = RunWriter(Path(output))
    run.train(0, 20)
    run.done(20)
    run.write()
    assert check(dev, "workload", "status", "run")["progress"]["step"] == 20
    assert check(dev, "workload", "report", "run")["steps"] == 20
    assert check(dev, "workload", "estimate", "--config", "tiny", "--tpu-type", "v5litepod-8")["fits"]


def test_a_schema_refuses_missing_unknown_and_mistyped_fields(dev: Xpk) -> None:
    import jsonschema

    schema = schema_of(OUTPUTS["xpk cluster describe"])
    info = dev("cluster", "describe", "dev", "-o", "json").data
    jsonschema.validate(info, schema)
    for wrong in ({**info, "chips": "16"}, {**info, "more": 1}, {key: info[key] for key in info if key != "name"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
    assert json.dumps(schema)


def test_every_field_has_a_meaning() -> None:
    rows = [line for line in reference().splitlines() if line.startswith("| `")]
    assert len(rows) > 150 and [row for row in rows if row.endswith("|  |")] == []
