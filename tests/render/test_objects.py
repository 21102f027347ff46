"""What is rendered: the golden manifests, and that any value arrives as it was given."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from xpk.model.accelerators import find_shape
from xpk.model.specs import ClusterSpec, Target, WorkloadSpec
from xpk.render import render_kind, render_queues, render_workload, to_yaml

GOLDEN = Path(__file__).parent / "golden"
EMULATED = Target(emulated=True, sets_slice_environment=True, output_root="/output")
ON_KIND = Target(
    emulated=True, sets_slice_environment=True, output_root="/shared/output", shared_folder="/shared/output"
)
ON_GKE = Target(emulated=False, sets_slice_environment=False, output_root="gs://bucket/output")


def workload(**changes: Any) -> WorkloadSpec:
    given: dict[str, Any] = {
        "name": "demo",
        "shape": find_shape("v5litepod-8"),
        "num_slices": 2,
        "command": ("python", "-m", "trainer", "train", "--config", "tiny"),
        "target": EMULATED,
        "image": "xpk-trainer",
    }
    return WorkloadSpec(**(given | changes))


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
    "gpu-command": lambda: render_workload(
        workload(shape=find_shape("h100-80gb-8"), command=("bash", "-c", 'echo "$(hostname): $$"'), target=ON_GKE)
    ),
    "kind-command": lambda: render_workload(
        workload(target=ON_KIND, image="xpk-trainer:0123456789ab", command=("bash", "-c", "hostname"))
    ),
    "kind-cluster": lambda: [
        render_kind(
            ClusterSpec(name="dev", shape=find_shape("v5litepod-16"), num_slices=2),
            nodes_per_slice=2,
            spare_slices=1,
            shared_folder="/shared/output",
        )
    ],
    "queues": lambda: render_queues(ClusterSpec(name="dev", shape=find_shape("v5litepod-8"), num_slices=2)),
}


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str) -> None:
    file, text = GOLDEN / f"{case}.yaml", to_yaml(CASES[case]())
    if os.environ.get("XPK_UPDATE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), "wanted? `make golden`, and look at the difference"


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


def expand(text: str) -> str:
    """Do what Kubernetes does with `$`, where no variable is defined: `$$` is `$`, all else stays."""
    return re.sub(r"\$\$", "$", text)


def test_gke_gets_no_variables_that_its_webhook_sets() -> None:
    (jobset,) = CASES["gke-199-slices"]()
    container = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    names = {entry["name"] for entry in container["env"]}
    assert not {name for name in names if name.startswith(("MEGASCALE_", "TPU_WORKER_", "JAX_"))}


def test_all_problems_are_found_at_once() -> None:
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
def test_numbers_of_slices_that_cannot_be(num_slices: int) -> None:
    assert "slices cannot be had" in workload(num_slices=num_slices).problems()[0]
