"""The options of `workload create` as a `Workload`."""

from __future__ import annotations

from typing import Any

import click

from xpk.cli.durations import parse_duration
from xpk.cli.workload import google_xpk
from xpk.jobs.create import capacity_choice, options
from xpk.jobs.create.workload import Workload
from xpk.model.errors import Problems


def read_request(ctx: click.Context, name: str, given: dict[str, Any], problems: Problems) -> Workload:
    """Return the workload that options describe; `problems` takes what is wrong with them.

    Raises UsageError for options of Google's xpk that exclude others.
    """
    google_xpk.translate(ctx, given)
    read = problems.read
    capacity = {key: given[key] for key in ("on_demand", "spot", "flex", "reservation")}
    fatal, restarting = given["fatal_exit_codes"], given["restart_on_exit_codes"]
    return Workload(
        name=name,
        namespace=given["namespace"],
        num_slices=given["num_slices"],
        num_nodes=given["num_nodes"],
        accelerator_type=given["accelerator_type"],
        capacity=read(None, capacity_choice.asked_for, **capacity),
        max_run_seconds=read(None, _seconds, given["max_run_duration"], "--max-run-duration"),
        max_cost=given.get("max_cost"),
        command=given["command"],
        args=ctx.meta.get("trainer_args", ()),
        script_dir=given["script_dir"],
        image=given["image"],
        image_pull_secret=given["pull_secret"],
        run_as_user=given["run_as_user"],
        env=read({}, options.parse_env, given["env"], given["env_files"]),
        secret_env=read({}, options.parse_secret_env, given["secret_env"]),
        peer_watch=given["peer_watch"],
        launcher=given["launcher"],
        ray_dashboard=given["ray_dashboard"],
        ray_join_seconds=read(None, parse_duration, given["ray_join_timeout"], "--ray-join-timeout")
        or options.Ray().join_seconds,
        output_root=given["output_root"],
        node_folder=given["node_folder"],
        mounts=given["mounts"],
        storages=given["storages"],
        debug_dump_gcs=given["debug_dump_gcs"],
        resume=given.get("resume", False),
        fresh=given.get("fresh", False),
        queue=given["queue"],
        priority=given["priority"],
        scheduler=given["scheduler"] or "",
        labels=read({}, options.parse_labels, given["labels"]),
        max_restarts=given["max_restarts"],
        fatal_exit_codes=read((), options.fatal_exit_codes, fatal, restarting),
        termination_grace_seconds=given["grace"],
        ttl_seconds=given["ttl"],
        check_memory=given["estimated"],
    )


def _seconds(text: str | None, flag: str) -> int | None:
    seconds = parse_duration(text, flag)
    return None if seconds is None else round(seconds)
