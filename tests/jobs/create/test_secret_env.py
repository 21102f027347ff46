"""Variables from Secrets: the JobSet contains a reference, never a value."""

from __future__ import annotations

import pytest

from tests.jobs.objects import Obj
from tests.render.workloads import EMULATED, ON_KIND, workload
from xpk.model.errors import UsageError
from xpk.model.workload_options import parse_secret_env
from xpk.render import render_workload


def variables(jobset: Obj) -> list[Obj]:
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    result: list[Obj] = next(item for item in job["containers"] if item.get("env"))["env"]
    return result


def test_hosts_get_a_reference() -> None:
    texts = ["WANDB_API_KEY=wandb:token", "HF_TOKEN=hub", "JAX_PLATFORMS=odd:x"]
    spec = workload(target=ON_KIND, secret_env=parse_secret_env(texts))
    assert spec.problems() == []
    env = variables(render_workload(spec)[-1])
    for name, secret, key in (("WANDB_API_KEY", "wandb", "token"), ("HF_TOKEN", "hub", "HF_TOKEN")):
        assert {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}} in env
    names = [item["name"] for item in env]
    assert len(names) == len(set(names)), "no duplicates, also if one of ours is replaced"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("A=Not_A_Secret:k", "'Not_A_Secret' is not the name of a Secret"),
        ("A=s:a b", "'a b' is not a key of a Secret"),
        ("1A=s:k", "cannot be an environment variable's name"),
        ("XPK_JOB_ID=s:k", "is set by xpk"),
        ("SET=s:k", "by --env-from-secret and by --env"),
    ],
)
def test_problems_are_reported(text: str, says: str) -> None:
    spec = workload(target=ON_KIND, env={"SET": "1"}, secret_env=parse_secret_env([text]))
    assert says in "\n".join(spec.problems())


def test_a_missing_secret_is_rejected() -> None:
    with pytest.raises(UsageError, match="has no '='"):
        parse_secret_env(["TOKEN"])


def test_secrets_are_rejected_on_local_clusters() -> None:
    spec = workload(target=EMULATED, secret_env={"A": ("s", "k")})
    assert ["--env-file" in problem for problem in spec.problems()] == [True]
