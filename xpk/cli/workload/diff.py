"""`xpk workload diff`: the difference between a running workload and a new or another one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import click

from xpk.capacity.provider import provider_of
from xpk.cli.options import is_typed, the_name
from xpk.cli.target import the_cluster
from xpk.cli.terminal.output import FORMATS, Console, echo
from xpk.cli.workload.create import create, print_notices, print_steps
from xpk.cli.workload.request import read_request
from xpk.cli.workload.spec_file import SpecCommand
from xpk.cli.workload.target import find_destination
from xpk.jobs.create import diff as difference
from xpk.jobs.create.resolve import resolve
from xpk.jobs.create.submit import preflight
from xpk.jobs.create.trainer_preflight import InProcessRunner
from xpk.model.errors import Problems, UsageError, XpkError

_DIFFERENT, _FAILED = 1, 125
# Options of `create` that do not affect the workload's object, or that it takes for several clusters only.
_OF_CREATE = {
    *("resume", "fresh", "wait", "timeout", "max_cost", "dry_run", "when", "output_manifest_file"),
    *("clusters", "move_after"),
}
_OF_TWO = {"name", "name_flag", "other", "cluster", "context", "project", "zone", "namespace", "output", "quiet"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadDiff:
    """Difference between a running workload and a new or another one."""

    name: str  # name of the running workload
    other: str | None  # name of the other workload; null for a new one
    equal: bool  # whether both are equal
    fields: tuple[difference.FieldDifference, ...]  # fields that differ
    diff: str  # unified diff of YAML; empty if both are equal


# Environment variables of `create` apply, too: `XPK_WORKLOAD_CREATE_QUEUE`.
@click.command(cls=SpecCommand, context_settings={"auto_envvar_prefix": "XPK_WORKLOAD_CREATE"})
@click.pass_context
def diff(ctx: click.Context, /, name: str | None, name_flag: str | None, cluster: str | None, **options: Any) -> None:
    """Compare a running workload with what `xpk workload create` would create with the same options.

    Prints a unified diff of the objects on the API server: `-` is running, `+` would be created. Changes nothing.
    With OTHER, compares two running workloads, ignoring their names:

    \b
      xpk workload diff demo --num-slices 4 -- --config tiny
      xpk workload diff demo demo-2

    Exit code 0 if both are equal, 1 if they differ, 3 if a workload does not exist, 125 for other errors that usually
    exit with 1. Values of variables with names of secrets (TOKEN, PASSWORD, ..._KEY) are not shown.
    """
    console: Console = ctx.obj.choosing(options["output"])
    workload_name = the_name("workload", name, name_flag)
    with _reserve_exit_code():
        other = options.pop("other")
        if other:
            _check_alone(ctx)
            place = the_cluster(cluster)
            api = provider_of(place).connect(place)
            pair = [difference.running(api, workload, options["namespace"]) for workload in (workload_name, other)]
            compared = difference.of_two(*pair)
        else:
            problems, runner = Problems(), InProcessRunner()
            request = read_request(ctx, workload_name, options, problems)
            destination = find_destination(console, cluster, request, problems, runner)
            resolved = resolve(request, destination, print_notices(console), problems, runner)
            api = destination.reached()
            have = difference.running(api, workload_name, request.namespace)
            preflight(resolved, print_steps(console), runner)
            compared = difference.with_create(api, have, resolved.spec)
    _print(console, workload_name, other, compared)
    ctx.exit(_DIFFERENT if compared.text else 0)


def _print(console: Console, name: str, other: str | None, compared: difference.Difference) -> None:
    if console.is_data:
        equal, fields = not compared.text, compared.fields
        console.data(asdict(WorkloadDiff(name=name, other=other, equal=equal, fields=fields, diff=compared.text)))
    elif console.output == "name":
        echo(name if compared.text else "", nl=bool(compared.text))
    elif compared.text:
        echo(compared.text, nl=False)
    else:
        console.tell("no difference")


def _check_alone(ctx: click.Context) -> None:
    """Raise UsageError for all options of `create`: they do not apply to two running workloads."""
    flags = [param.opts[0] for param in ctx.command.params if param.name not in _OF_TWO and is_typed(str(param.name))]
    problems = [f"{flag} does not apply when two workloads are compared" for flag in flags]
    problems += ["arguments after `--` do not apply when two workloads are compared"] * bool(
        ctx.meta.get("trainer_args")
    )
    if problems:
        raise UsageError(problems[0], problems=problems, hint="omit the options, or the second name")


@contextmanager
def _reserve_exit_code() -> Iterator[None]:
    """Reserve exit code 1 for a difference, as `diff` and `kubectl diff` do."""
    try:
        yield
    except XpkError as error:
        if error.exit_code == _DIFFERENT:
            error.exit_code = _FAILED
        raise


_output = click.Option(["-o", "--output"], type=click.Choice(FORMATS), help="Output format. [default: table]")
_other = click.Argument(["other"], required=False)
diff.params = [
    parameter
    for param in create.params
    if param.name not in _OF_CREATE
    for parameter in {"name": (param, _other), "output": (_output,)}.get(param.name or "", (param,))
]
