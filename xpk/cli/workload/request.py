"""The options of `workload create` as a `Workload`."""

from __future__ import annotations

from dataclasses import Field
from typing import Any

import click

from xpk.cli.workload import google_xpk
from xpk.cli.workload.options import invalid_options
from xpk.jobs.create import capacity_choice, options
from xpk.jobs.create.workload import Workload
from xpk.model.durations import parse_duration
from xpk.model.errors import Problems
from xpk.model.options import Option, default_of, options_of

_CAPACITIES = ("on_demand", "spot", "flex", "reservation")


def read_request(ctx: click.Context, name: str, params: dict[str, Any], problems: Problems) -> Workload:
    """Return the workload that options describe; `problems` takes what is wrong with them.

    Raises UsageError for options of Google's xpk that exclude others.
    """
    invalid_options(ctx, problems)
    google_xpk.translate(ctx, params)
    values: dict[str, Any] = {}
    for field, option in options_of(Workload):
        if option.parameter in params:  # `workload diff` has not all of them
            values[field.name] = problems.read(default_of(field), _parse, field, option, params[option.parameter])
    read = problems.read
    return Workload(
        **values,
        name=name,
        namespace=params["namespace"],
        accelerator_type=params["accelerator_type"],
        capacity=read(None, capacity_choice.capacity_of_flags, **{key: params[key] for key in _CAPACITIES}),
        args=ctx.meta.get("trainer_args", ()),
        storages=params["storages"],
        debug_dump_gcs=params["debug_dump_gcs"],
        env=read({}, options.parse_env, params["env"], params["env_files"]),
        scheduler=params["scheduler"] or "",
        fatal_exit_codes=read(
            (), options.fatal_exit_codes, params["fatal_exit_codes"], params["restart_on_exit_codes"]
        ),
    )


def _parse(field: Field[Any], option: Option, value: Any) -> Any:
    """Return the value of a field from that of its option. Raises UsageError."""
    if option.parse:
        return option.parse(value, option.flag)
    if not option.is_time:
        return value
    seconds = parse_duration(value, option.flag)
    if seconds is None:
        return field.default
    return round(seconds) if str(field.type).startswith("int") else seconds
