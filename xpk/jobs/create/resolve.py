"""Resolution of a `Workload` on its cluster to a checked `WorkloadSpec`."""

from __future__ import annotations

import getpass
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from xpk.api import storages
from xpk.api.base import Obj
from xpk.jobs import mounts
from xpk.jobs.code import archive as script
from xpk.jobs.code import upload
from xpk.jobs.code.archive import Archive
from xpk.jobs.create import (
    capacity_choice,
    create,
    elastic,
    options,
    pod_security,
    slice_replacement,
    trainer_preflight,
)
from xpk.jobs.create.checks import valid_fields
from xpk.jobs.create.destination import Destination
from xpk.jobs.create.notice import Notice, Report, ignore
from xpk.jobs.create.workload import Workload
from xpk.jobs.output import folder
from xpk.model.accelerators import SliceShape, find_shape
from xpk.model.errors import Problems, UsageError, XpkError
from xpk.model.mounts import Mount
from xpk.model.specs import Target, WorkloadSpec, count_slices
from xpk.model.workload_options import WorkloadOptions
from xpk.proc import LocalRunner, Runner

_DUMP_FOLDER = "/mnt/xla-dump"
_DEFAULT_SCHEDULER = "default-scheduler"
_SMALLEST = "v5litepod-1"
_ANY_TARGET = Target(emulated=False, sets_slice_environment=False, output_root="gs://bucket")


@dataclass(frozen=True, slots=True)
class Resolved:
    """A complete workload: its request as adjusted to the cluster, its spec, and its packed code."""

    request: Workload
    spec: WorkloadSpec
    archive: Archive | None = None
    code_configmaps: tuple[Obj, ...] | None = None  # ConfigMaps that have this code, at most one; None: not read


def resolve(
    request: Workload,
    destination: Destination,
    report: Report = ignore,
    problems: Problems | None = None,
    runner: Runner | None = None,
) -> Resolved:
    """Return the spec of a workload on a cluster, with its code packed.

    `problems` holds earlier problems of the request; if there are any, the bundled trainer, started by `runner`, checks
    its settings too. Raises UsageError with all problems, ConflictError if the cluster
    does not have the capacity, NotFoundError for a missing storage.
    """
    wrong = problems or Problems()
    request = valid_fields(request, wrong)
    try:
        choice, request, archive = _choose(request, destination, report, wrong)
    except XpkError as error:
        raise with_problems_of(request, error, wrong, runner) from error
    if not request.script_dir and (files := options.files_here([request.command or "", *request.args])):
        text = f"hosts do not see the current folder: '{files[0]}' is not shipped; --script-dir . ships it"
        report(Notice(text, is_warning=True))
    spec = _spec(request, destination, choice, archive, wrong)
    if wrong:
        _check_settings(request, wrong, runner)
        wrong.check(_refused(request), hint=create.HELP)
    spec = slice_replacement.choose(spec, destination)
    if destination.api:
        spec = pod_security.fit_namespace(destination.api, spec)
    return Resolved(request, spec, archive, choice.code_configmaps)


def with_problems_of(request: Workload, error: XpkError, problems: Problems, runner: Runner | None = None) -> XpkError:
    """Return `error`, about the cluster, combined with all problems that do not depend on the cluster."""
    request = valid_fields(request, problems)
    _check_choices(request, problems)
    if request.script_dir:
        problems.read(None, script.check_folder, Path(request.script_dir))
    shape = find_shape(_SMALLEST)
    if request.accelerator_type:
        shape = problems.read(shape, find_shape, request.accelerator_type)
    spec = WorkloadSpec(
        **_passed(request),
        shape=shape,
        num_slices=count_slices(request.num_slices, None, shape.kind),
        command=problems.read(("true",), _command, request, problems.read(None, _ray, request), shape),
        target=_ANY_TARGET,
        image="",
        env=request.env,
        restart_in_place=request.restart_in_place,
    )
    problems.read(None, create.check_spec, spec)
    _check_settings(request, problems, runner)
    return problems.joined(error, _refused(request), hint=create.HELP)


def _check_settings(request: Workload, problems: Problems, runner: Runner | None) -> None:
    """Check the trainer's settings, without the size that they depend on."""
    if request.runs_trainer and request.args:
        args, folder = tuple(request.args), Path(request.script_dir) if request.script_dir else None
        problems.read(None, trainer_preflight.check_settings, runner or LocalRunner(), request.name, args, folder)


def _check_choices(request: Workload, problems: Problems) -> str | None:
    """Check what depends on fields only; return the requested capacity."""
    problems.read(None, options.check_resume, resume=request.resume, fresh=request.fresh)
    problems.read(None, elastic.check_program, request)
    problems.read(None, options.check_preflight, preflight=request.preflight, launcher=request.launcher)
    return problems.read(None, capacity_choice.checked, request.capacity)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """Properties that follow from the cluster and the request together."""

    shape: SliceShape
    within: SliceShape | None
    capacity: str
    storages: tuple[Mount, ...]
    code_configmaps: tuple[Obj, ...] | None
    image: str


def _choose(
    request: Workload, destination: Destination, report: Report, wrong: Problems
) -> tuple[_Choice, Workload, Archive | None]:
    """Return the properties of a workload on a cluster, its request as adjusted to it, and its packed code.

    Raises XpkError if other checks require what is missing; `wrong` has all other problems.
    """
    capacity = _check_choices(request, wrong)
    archive = wrong.read(None, script.pack, Path(request.script_dir)) if request.script_dir else None
    elastic.check_jobset(request, destination, report)
    target, queue, cluster = destination.target, destination.queue, destination.cluster
    shape, within = create.choose_shape(queue, request.accelerator_type, target, cluster=cluster)
    request = _fit(request, target, shape, report)
    volumes, code_configmaps = wrong.read(((), None), _storages, request, destination, archive, report)
    choice = _Choice(
        shape=shape,
        within=within,
        capacity=wrong.read("", capacity_choice.choose, target, (within or shape).name, capacity, cluster=cluster),
        storages=volumes,
        code_configmaps=code_configmaps,
        image=wrong.read(options.TRAINER_IMAGE, _image, request, destination, report),
    )
    return choice, request, archive


def _refused(request: Workload) -> str:
    return f"workload '{request.name}' cannot be created"


def _fit(request: Workload, target: Target, shape: SliceShape, report: Report) -> Workload:
    """Return a request without the options that have no effect on a target; report a warning for each."""
    changes: dict[str, Any] = {}
    if request.scheduler == _DEFAULT_SCHEDULER:
        request = replace(request, scheduler="")
    if target.on_this_machine:
        for flag, name in (("--scheduler", "scheduler"), ("--debug-dump-gcs", "debug_dump_gcs")):
            if getattr(request, name):
                text = f"{flag} has no effect: hosts are processes of this machine"
                report(Notice(text, is_warning=True))
                changes[name] = ""
    elif dump := request.debug_dump_gcs:
        changes["mounts"] = (*request.mounts, f"source={dump},target={_DUMP_FOLDER}")
    if shape.kind == "tpu" and request.num_nodes is not None:
        text = f"--num-nodes has no effect: a slice of {shape.name} has {shape.hosts} hosts"
        report(Notice(text, is_warning=True))
        changes["num_nodes"] = None
    return replace(request, **changes)


def _spec(
    request: Workload, destination: Destination, choice: _Choice, archive: Archive | None, wrong: Problems
) -> WorkloadSpec:
    """Return the spec; `wrong` has its problems."""
    own, shape = destination.target, choice.shape
    target = wrong.read(own, folder.at_root, own, request.output_root)
    code = wrong.read(None, upload.place, archive, own, target) if archive else None
    ray = wrong.read(None, _ray, request)
    spec = WorkloadSpec(
        **_passed(request),
        shape=shape,
        within=choice.within,
        num_slices=wrong.read(1, count_slices, request.num_slices, request.num_nodes, shape.kind),
        capacity=choice.capacity,
        queue=destination.queue.name,
        target=target,
        image=choice.image,
        command=wrong.read(("true",), _command, request, ray, shape),
        ray=ray is not None,
        # The trainer's hosts, and Ray's, watch each other.
        peer_watch=request.peer_watch and not request.runs_trainer and ray is None,
        restart_in_place=request.restart_in_place and ray is None,  # Ray's driver restarts by itself
        code=code,
        working_dir=code.source if code and target.on_this_machine else None,
        env=_with_dump(options.bucket_env(target) | dict(request.env), request),
        mounts=(
            *wrong.read((), mounts.read_mounts, request.mounts, target, request.node_folder),
            *choice.storages,
        ),
        requires_output=request.runs_trainer and destination.api is not None,
        user=getpass.getuser(),
    )
    wrong.read(None, create.check_spec, spec)
    wrong.read(None, create.check_run_duration, destination.queue, spec, cluster=destination.cluster)
    return spec


def _passed(request: Workload) -> dict[str, Any]:
    """Return the fields of a spec that are those of the request."""
    return {field.name: getattr(request, field.name) for field in fields(WorkloadOptions)}


def _command(request: Workload, ray: options.Ray | None, shape: SliceShape) -> tuple[str, ...]:
    args = tuple(request.args)
    if request.preflight:
        return options.with_preflight(options.host_command(request.command, args), request.node_folder)
    if ray:
        return options.ray_command(request.command, args, ray, shape, max_restarts=request.max_restarts)
    return options.host_command(request.command, args)


def _ray(request: Workload) -> options.Ray | None:
    """Return the Ray cluster, None without Ray. Raises UsageError."""
    if request.launcher == "ray":
        seconds = request.ray_join_seconds or options.Ray().join_seconds
        return options.Ray(request.ray_dashboard, seconds, request.script_dir is not None)
    if request.ray_dashboard:
        raise UsageError("--ray-dashboard requires --launcher ray", hint="add --launcher ray, or omit --ray-dashboard")
    return None


def _with_dump(env: dict[str, str], request: Workload) -> dict[str, str]:
    """Return the environment with the variable that makes XLA dump its programs, unless the user set it."""
    flags = env.get("XLA_FLAGS", "")
    if not request.debug_dump_gcs or "--xla_dump_to" in flags:
        return env
    return env | {"XLA_FLAGS": f"{flags} --xla_dump_to={_DUMP_FOLDER}/{request.name}".lstrip()}


def _storages(
    request: Workload, destination: Destination, archive: Archive | None, report: Report
) -> tuple[tuple[Mount, ...], tuple[Obj, ...] | None]:
    """Return the mounts of a workload's storages and of those with --auto-mount, and the ConfigMaps of its code."""
    if destination.target.on_this_machine:
        if request.storages:
            raise UsageError(
                "--storage is not supported: hosts are processes of this machine",
                hint="omit --storage; hosts see all folders of this machine at their own paths",
            )
        return (), None
    if destination.api is None:
        if request.storages:
            text = f"--storage {', '.join(request.storages)} is omitted: the cluster is unreachable"
            report(Notice(text, is_warning=True))
        return (), None
    code = archive.name if archive and upload.fits_in_configmap(archive) else ""
    chosen, code_configmaps = storages.choose_with_code(destination.api, request.namespace, request.storages, code)
    return tuple(storage.mount for storage in chosen), code_configmaps


def _image(request: Workload, destination: Destination, report: Report) -> str:
    """Return the hosts' image. Raises UsageError if none is known; without a cluster, report a warning instead."""
    needs_trainer = request.runs_trainer or request.preflight or request.launcher == "ray"
    try:
        image = options.choose_image(
            request.image, destination.target, cluster=destination.cluster, needs_trainer=needs_trainer
        )
    except UsageError as error:
        if destination.api or request.image:
            raise
        report(Notice(f"without --dry-run, this command would fail: {error.message}", is_warning=True))
        return options.TRAINER_IMAGE
    if image == options.COMMAND_IMAGE and not request.image:
        report(Notice(f"image {image}; --docker-image chooses another"))
    return image
