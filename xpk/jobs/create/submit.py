"""Submit a workload: resolve it, check it with everything that it needs, create it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from xpk.api.base import Obj, ObjectApi
from xpk.jobs import mounts
from xpk.jobs.code import upload
from xpk.jobs.create import create, memory_estimate, options, slice_replacement, trainer_preflight
from xpk.jobs.create.destination import Destination
from xpk.jobs.create.notice import Notice, Report, ignore
from xpk.jobs.create.resolve import Resolved, resolve
from xpk.jobs.create.workload import Workload
from xpk.jobs.output import folder as output
from xpk.model.errors import XpkError
from xpk.model.specs import WorkloadSpec
from xpk.proc import LocalRunner, Runner
from xpk.render import render_workload
from xpk.storage import Folder, open_folder

Result = TypeVar("Result")
Price = Callable[[WorkloadSpec, float | None], str | None]


@dataclass(frozen=True, slots=True)
class Submitted:
    """A workload that was created: the spec of its objects, its cluster, and its cost if it has a price."""

    spec: WorkloadSpec
    cluster: str
    cost: str | None = None


@dataclass(frozen=True, slots=True)
class Preview:
    """A workload that could be created: its spec, its objects without their Secret, and its cost if it has a price."""

    spec: WorkloadSpec
    objects: tuple[Obj, ...]
    cost: str | None = None


def no_price(spec: WorkloadSpec, max_cost: float | None) -> str | None:
    """Return None: the slices have no price."""
    return None


def submit(
    request: Workload, destination: Destination, *, report: Report = ignore, price: Price = no_price
) -> Submitted:
    """Create a workload with everything that it needs. Nothing is created before everything is checked.

    `price` returns the cost of a workload in one line, or raises CapacityError above its second argument.
    Raises UsageError with all that is wrong, CapacityError if it can never fit or costs too much, ConflictError if
    its name is taken or its output folder is not empty, NotFoundError, AuthorizationError, MissingToolError.
    """
    resolved = resolve(request, destination, report)
    preflight(resolved, report)
    return create_resolved(resolved, destination, report=report, price=price)


def preview(
    request: Workload, destination: Destination, *, report: Report = ignore, price: Price = no_price
) -> Preview:
    """Check a workload as `submit` does, and return what it would create. Creates nothing; raises what it raises."""
    destination.reached()
    resolved = resolve(request, destination, report)
    preflight(resolved, report)
    cost, refusals = check(resolved, destination, report=report, price=price)
    if refusals:
        raise refusals[0]
    spec = slice_replacement.try_out(resolved.spec, destination.reached())
    return Preview(spec, tuple(render_workload(spec)), cost)


def check(
    resolved: Resolved, destination: Destination, *, report: Report = ignore, price: Price = no_price
) -> tuple[str | None, list[XpkError]]:
    """Return a workload's cost, and all errors with which `create_resolved` would refuse it. Creates nothing.

    On a cluster that was not reached, only the cost is checked.
    """
    api, cluster, spec = destination.api, destination.cluster, resolved.spec
    refusals: dict[str, XpkError] = {}

    def attempt(step: Callable[[], Result]) -> Result | None:
        try:
            return step()
        except XpkError as error:
            refusals.setdefault(error.message, error)
            return None

    if api:
        attempt(partial(create.check_fits, api, destination.queue, spec, cluster=cluster))
        attempt(partial(create.check_free, api, spec, cluster=cluster))
    cost = attempt(partial(price, spec, resolved.request.max_cost))
    if api:
        attempt(partial(check_folders, api, resolved, cluster, report))
    return cost, list(refusals.values())


def preflight(resolved: Resolved, report: Report = ignore, runner: Runner | None = None) -> None:
    """Check a workload on this machine: without a request to the cluster, and before anything is created.

    Raises UsageError for settings that the bundled trainer refuses, CapacityError if it estimates that they do not fit
    in the chips' memory, MissingToolError where hosts of this machine lack a package. `runner` starts the trainer.
    """
    request, spec, runner = resolved.request, resolved.spec, runner or LocalRunner()
    args = tuple(request.args)
    options.check_local_path(args, spec)
    if spec.ray and spec.target.on_this_machine:
        trainer_preflight.check_ray_installed()
    if not request.runs_trainer:
        return
    if spec.target.on_this_machine:
        trainer_preflight.check_trainer_installed()
    see_data = spec.target.emulated and not spec.mounts
    script_dir = Path(request.script_dir) if request.script_dir else None
    with trainer_preflight.start_folder(script_dir) as folder:
        trainer_preflight.check_trainer(runner, spec, args, see_data=see_data, folder=folder, report=report)
        if request.check_memory and spec.shape.kind == "tpu":
            warning = memory_estimate.check_memory(
                runner, spec.shape, spec.num_slices, args, folder, min_slices=spec.min_slices
            )
            if warning:
                report(Notice(warning, is_warning=True))


def create_resolved(
    resolved: Resolved, destination: Destination, *, report: Report = ignore, price: Price = no_price
) -> Submitted:
    """Create a workload that `preflight` has checked; see `submit`."""
    api, cluster, spec = destination.reached(), destination.cluster, resolved.spec
    create.check_fits(api, destination.queue, spec, cluster=cluster)
    cost = price(spec, resolved.request.max_cost)
    return Submitted(_create(api, resolved, cluster, report), cluster, cost)


def _create(api: ObjectApi, resolved: Resolved, cluster: str, report: Report) -> WorkloadSpec:
    """Create what a workload needs, and the workload last. Return its spec as JobSet has accepted it."""
    spec, archive = resolved.spec, resolved.archive
    earlier = check_folders(api, resolved, cluster, report)
    is_new = (
        upload.upload(api, archive, spec.code, spec.target) if archive and spec.code and spec.code.source else False
    )
    if earlier:
        report(Notice(f"the earlier output is now '{output.move_aside(earlier, spec.name)}'"))
    spec, has_new_code = slice_replacement.accepted(
        spec,
        lambda one: create.create_workload(api, one, cluster=cluster, code_configmaps=resolved.code_configmaps),
    )
    if archive:
        report(Notice(upload.describe(archive, new=is_new or has_new_code)))
    return spec


def check_folders(api: ObjectApi, resolved: Resolved, cluster: str, report: Report) -> Folder | None:
    """Check mounts and the output folder; return the folder if it has to be moved aside. Raises OutputExists."""
    request, spec = resolved.request, resolved.spec
    for note in mounts.check_mounts(api, spec, cluster=cluster):
        report(Notice(note, is_warning=True))
    folder = open_folder(spec.output_dir) if spec.output_dir else None
    if not folder or request.resume or folder.is_empty() or output.has_only_lease(folder):
        return None
    create.check_free(api, spec, cluster=cluster)  # the output may be that of a workload that runs
    if not request.fresh:
        raise output.existing_output(folder, spec.name)
    return folder
