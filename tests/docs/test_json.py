"""JSON Schemas of docs/json.md: what commands print on a local cluster passes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from tests.cli.conftest import Xpk
from tests.cli.conftest import dev as dev
from tests.cli.conftest import state as state
from tests.cli.conftest import xpk as xpk
from tests.jobs.report.runs import RunWriter
from tools.json_reference import OUTPUTS, reference, schema_of


def check(run: Xpk, *arguments: str) -> Any:
    """Return the data of a command, once it has passed the command's schema."""
    done = run(*arguments, "-o", "json")
    assert done.code == 0, done.err
    jsonschema.validate(done.data, schema_of(OUTPUTS[f"xpk {' '.join(arguments[:2])}"]))
    return done.data


def test_outputs_on_a_local_cluster_pass_their_schemas(dev: Xpk) -> None:
    check(dev, "workload", "create", "run", "--num-slices", "2", "--command", "mkdir -p $XPK_OUTPUT_DIR; sleep 60")
    created = check(dev, "workload", "create", "waits", "--num-slices", "2", "--command", "sleep 60")
    assert created["queue"] == "multislice-queue"
    assert [each["name"] for each in check(dev, "workload", "list")] == ["run", "waits"]
    status = check(dev, "workload", "status", "waits")
    assert status["phase"] == "Queued" and status["quota"] and status["next"]
    assert len(check(dev, "workload", "describe", "run")["hosts"]) == 4
    check(dev, "queue", "list")
    assert [each["name"] for each in check(dev, "queue", "describe", "multislice-queue")["workloads"]] == [
        "run",
        "waits",
    ]
    assert check(dev, "cluster", "list") == [check(dev, "cluster", "describe", "dev")]


def test_outputs_of_a_run_pass_their_schemas(dev: Xpk) -> None:
    dev("workload", "create", "run", "--num-slices", "2", "--command", "true")
    output = check(dev, "workload", "wait", "run", "--timeout", "60")["output_dir"]
    run = RunWriter(Path(output))
    run.bring_up(0)
    run.steps(1, 20)
    run.done(20)
    run.write()
    assert check(dev, "workload", "status", "run")["progress"]["step"] == 20
    assert check(dev, "workload", "report", "run")["steps"] == 20
    assert check(dev, "workload", "estimate", "--config", "tiny", "--tpu-type", "v5litepod-8")["fits"]


def test_a_schema_refuses_missing_unknown_and_mistyped_fields(dev: Xpk) -> None:
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
