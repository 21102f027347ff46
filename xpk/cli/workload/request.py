"""From the options of `workload create` to a checked spec."""

from __future__ import annotations

import getpass
from typing import Any

from xpk.cli.durations import parse_duration
from xpk.cli.options import count_slices
from xpk.cli.terminal.output import Console
from xpk.cli.workload import google_xpk
from xpk.cli.workload.target import Place
from xpk.jobs import mounts
from xpk.jobs.code import archive as script
from xpk.jobs.code import upload
from xpk.jobs.code.archive import Archive
from xpk.jobs.create import capacity_choice, options, pod_security
from xpk.jobs.create import create as creating
from xpk.jobs.output import folder
from xpk.model.accelerators import SliceShape
from xpk.model.errors import Problems, UsageError
from xpk.model.specs import Target, WorkloadSpec


def asked_for(
    console: Console, name: str, place: Place, trainer_args: tuple[str, ...], given: dict[str, Any]
) -> tuple[WorkloadSpec, Archive | None]:
    """Return what the options ask for, with its code."""
    asked = capacity_choice.asked_for(**{key: given[key] for key in ("on_demand", "spot", "flex", "reservation")})
    archive = script.pack(given["script_dir"]) if given["script_dir"] else None
    target, queue = place.target, place.queue
    shape, given["within"] = creating.choose_shape(
        queue, given["accelerator_type"], cluster=place.cluster, sub_slicing=target.sub_slicing
    )
    google_xpk.fit(console, given, target, shape)
    given["capacity"] = capacity_choice.choose(target, (given["within"] or shape).name, asked, cluster=place.cluster)
    given["num_slices"] = count_slices(given["num_slices"], given["num_nodes"], shape.kind)
    given["queue"] = queue.name
    given["stored"] = place.storages(console, given["storages"], given["namespace"])
    given["requires_output"] = given["command"] is None and place.api is not None
    given["image"] = _image(console, place, given)
    if archive is None and (files := options.files_here([given["command"] or "", *trainer_args])):
        console.warn(f"hosts do not see the current folder: '{files[0]}' is not shipped; --script-dir . ships it")
    spec = _spec(name, shape, target, archive, trainer_args, given)
    creating.check_run_duration(queue, spec, cluster=place.cluster)
    return (pod_security.fit_namespace(place.api, spec) if place.api else spec), archive


def _spec(
    name: str,
    shape: SliceShape,
    own: Target,
    archive: Archive | None,
    trainer_args: tuple[str, ...],
    given: dict[str, Any],
) -> WorkloadSpec:
    """Put together what was asked for; `own` is the cluster's own target. Raises UsageError with all that is wrong."""
    wrong = Problems()
    target = wrong.read(own, folder.at_root, own, given["output_root"])
    code = wrong.read(None, upload.place, archive, own, target) if archive else None
    ray = wrong.read(None, _ray, given)
    spec = WorkloadSpec(
        name=name,
        namespace=given["namespace"],
        shape=shape,
        num_slices=given["num_slices"],
        command=wrong.read(("true",), _command, given, trainer_args, ray, shape),
        ray=ray is not None,
        target=target,
        image=given["image"],
        image_pull_secret=given["pull_secret"],
        run_as_user=given["run_as_user"],
        env=google_xpk.with_dump(
            options.bucket_env(target) | wrong.read({}, options.parse_env, given["env"], given["env_files"]),
            given,
            name,
        ),
        secret_env=wrong.read({}, options.parse_secret_env, given["secret_env"]),
        labels=wrong.read({}, options.parse_labels, given["labels"]),
        scheduler=given["scheduler"],
        requires_output=given["requires_output"],
        queue=given["queue"],
        priority=given["priority"],
        max_restarts=given["max_restarts"],
        fatal_exit_codes=wrong.read(
            (), options.fatal_exit_codes, given["fatal_exit_codes"], given["restart_on_exit_codes"]
        ),
        termination_grace_seconds=given["grace"],
        ttl_seconds=given["ttl"],
        working_dir=code.source if code and target.on_this_machine else None,
        code=code,
        user=getpass.getuser(),
        within=given["within"],
        node_folder=given["node_folder"],
        mounts=(
            *wrong.read((), mounts.read_mounts, given["mounts"], target, given["node_folder"]),
            *given["stored"],
        ),
        max_run_seconds=wrong.read(None, _max_run_seconds, given["max_run_duration"]),
        capacity=given["capacity"],
        # The trainer's hosts, and Ray's, watch each other.
        peer_watch=given["peer_watch"] and given["command"] is not None and ray is None,
    )
    wrong.read(None, creating.check_spec, spec)
    wrong.check(f"workload '{name}' cannot be created", hint=creating.HELP)
    return spec


def _command(
    given: dict[str, Any], trainer_args: tuple[str, ...], ray: options.Ray | None, shape: SliceShape
) -> tuple[str, ...]:
    if ray:
        return options.ray_command(given["command"], trainer_args, ray, shape, max_restarts=given["max_restarts"])
    return options.host_command(given["command"], trainer_args)


def _max_run_seconds(text: str | None) -> int | None:
    seconds = parse_duration(text, "--max-run-duration")
    return None if seconds is None else round(seconds)


def _ray(given: dict[str, Any]) -> options.Ray | None:
    """Return how Ray coordinates the hosts, None if it does not. Raises UsageError."""
    seconds = parse_duration(given["ray_join_timeout"], "--ray-join-timeout")
    if given["launcher"] == "ray":
        return options.Ray(
            given["ray_dashboard"], seconds or options.Ray().join_seconds, given["script_dir"] is not None
        )
    if given["ray_dashboard"]:
        raise UsageError("there is no dashboard without Ray", hint="add --launcher ray, or leave out --ray-dashboard")
    return None


def _image(console: Console, place: Place, given: dict[str, Any]) -> str:
    """Return the hosts' image. Raises UsageError where none is known; a dry run without the cluster only warns."""
    needs_trainer = given["command"] is None or given["launcher"] == "ray"
    try:
        image = options.choose_image(given["image"], place.target, cluster=place.cluster, needs_trainer=needs_trainer)
    except UsageError as error:
        if place.api or given["image"]:
            raise
        console.warn(f"a run would be refused: {error.message}")
        return options.TRAINER_IMAGE
    if image == options.COMMAND_IMAGE and not given["image"]:
        console.tell(f" • image {image}; --docker-image chooses another")
    return image
