"""Create a workload: everything is checked before the one object is."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from xpk.api.base import Obj, ObjectApi
from xpk.model.errors import CapacityError, ConflictError, MissingToolError, NotFoundError, UsageError, XpkError
from xpk.model.specs import WorkloadSpec
from xpk.proc import Runner
from xpk.render import render_workload
from xpk.render.resources import workloads_dir


def create_workload(api: ObjectApi, spec: WorkloadSpec, *, cluster: str) -> Obj:
    """Create what a checked `spec` says and return its JobSet as stored. Raises ConflictError."""
    (jobset,) = render_workload(spec)
    try:
        return api.create(jobset)
    except ConflictError as error:
        raise _taken(api.get("JobSet", spec.name, spec.namespace), spec, cluster) from error


def check_free(api: ObjectApi, spec: WorkloadSpec, *, cluster: str) -> None:
    """Raise ConflictError, saying what differs, if the name is taken."""
    try:
        have = api.get("JobSet", spec.name, spec.namespace)
    except NotFoundError:
        return
    raise _taken(have, spec, cluster)


def check_spec(spec: WorkloadSpec) -> None:
    """Raise UsageError with all that is wrong with a spec by itself."""
    problems = spec.problems()
    if problems:
        raise UsageError(
            f"workload '{spec.name}' cannot be created", problems=problems, hint="see `xpk workload create --help`"
        )


def check_fits(api: ObjectApi, spec: WorkloadSpec, *, cluster: str) -> None:
    """Raise CapacityError if the cluster could not hold it even when empty, NotFoundError without a queue."""
    try:
        local_queue = api.get("LocalQueue", spec.queue, spec.namespace)
    except NotFoundError:
        there = [queue["metadata"]["name"] for queue in api.list("LocalQueue", spec.namespace)]
        raise NotFoundError(
            f"there is no queue '{spec.queue}' in namespace '{spec.namespace}'",
            hint=f"there are: {', '.join(there)}" if there else f"`xpk cluster create {cluster}` made one in 'default'",
        ) from None
    queue = api.get("ClusterQueue", local_queue["spec"]["clusterQueue"])
    quota = _quota(queue, spec.shape.resource, spec.shape.name)
    if spec.total > quota:
        per_slice = spec.shape.hosts * spec.shape.resource_per_host
        raise CapacityError(
            f"{spec.num_slices} slices of {spec.shape.name} need {spec.total} {spec.shape.resource}; "
            f"cluster '{cluster}' has {quota} in all",
            hint=f"use --num-slices {quota // per_slice}"
            if quota >= per_slice
            else f"`xpk cluster describe {cluster}` shows what it has",
        )


def check_trainer(runner: Runner, spec: WorkloadSpec, trainer_args: Sequence[str], *, see_data: bool) -> None:
    """Ask the bundled trainer whether it would run like this; raise UsageError with all it finds.

    `see_data`: whether paths mean the same here as on the hosts, so that the corpus can be looked at.
    """
    shape = spec.shape
    argv = [sys.executable, "-m", "trainer", "check", "--num-slices", str(spec.num_slices)]
    argv += ["--hosts-per-slice", str(shape.hosts), "--chips-per-host", str(shape.chips_per_host)]
    argv += [*([] if see_data else ["--no-data"]), *trainer_args]
    result = runner.run(argv, env={**os.environ, "PYTHONPATH": str(workloads_dir())})
    if result.exit_code == 0:
        return
    problems = _problems(result.stdout)
    if not problems and result.exit_code in (2, 42):
        message = f"the trainer does not understand its arguments: {result.last_line.removeprefix('error: ')}"
        raise UsageError(message, hint="docs/trainer-settings.md has every setting")
    if not problems:
        raise XpkError(
            f"the trainer could not check its configuration: {result.last_line}",
            hint="`python -m trainer check` in the workloads folder shows more",
        )
    lines = [
        f"{problem['message']} ({problem['hint']})" if problem.get("hint") else problem["message"]
        for problem in problems
    ]
    raise UsageError(
        f"workload '{spec.name}' cannot train like this",
        problems=lines,
        hint="docs/trainer-settings.md has every setting",
    )


def check_trainer_installed() -> None:
    """Raise MissingToolError unless hosts of this machine can run the bundled trainer."""
    from importlib.util import find_spec

    missing = [package for package in ("jax", "optax", "orbax.checkpoint") if not _installed(package, find_spec)]
    if missing:
        raise MissingToolError(
            f"the bundled trainer needs {', '.join(missing)} on this machine",
            hint="pip install 'xpk-multislice[trainer]', or give your own --command",
        )


def _installed(package: str, find_spec: Any) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # the parent of a dotted name is missing
        return False


def _problems(stdout: str) -> list[dict[str, str]]:
    try:
        found: list[dict[str, str]] = json.loads(stdout)["problems"]
    except (ValueError, KeyError, TypeError):
        return []
    return found


def _quota(queue: Obj, resource: str, flavor: str) -> int:
    """Return what a ClusterQueue can ever give of a resource in a flavor."""
    for group in queue["spec"].get("resourceGroups", []):
        for item in group["flavors"]:
            if item["name"] == flavor:
                return sum(int(entry["nominalQuota"]) for entry in item["resources"] if entry["name"] == resource)
    return 0


def _taken(have: Obj, spec: WorkloadSpec, cluster: str) -> ConflictError:
    (wanted,) = render_workload(spec)
    changed = different_fields(wanted["spec"], have["spec"])
    what = f"with other settings ({', '.join(changed[:3])})" if changed else "with the same settings"
    return ConflictError(
        f"workload '{spec.name}' exists already, {what}",
        hint=f"`xpk workload status {spec.name} --cluster {cluster}`, another name, "
        f"or `xpk workload delete {spec.name} --cluster {cluster}` first",
    )


def different_fields(wanted: Any, have: Any, path: str = "") -> list[str]:
    """Return the paths at which `have` lacks what `wanted` gives; fields only `have` has do not count."""
    if isinstance(wanted, dict) and isinstance(have, dict):
        return [
            found
            for key in wanted
            for found in different_fields(wanted[key], have.get(key), f"{path}.{key}".lstrip("."))
        ]
    if isinstance(wanted, list) and isinstance(have, list) and len(wanted) == len(have):
        return [
            found
            for index, (left, right) in enumerate(zip(wanted, have, strict=True))
            for found in different_fields(left, right, f"{path}[{names_of(left, index)}]")
        ]
    return [] if wanted == have else [path]


def names_of(item: Any, index: int) -> str:
    """Return how to call a list's item: by its name, else by its index."""
    return str(item["name"]) if isinstance(item, dict) and "name" in item else str(index)
