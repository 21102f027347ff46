"""Options of Google's xpk for `workload create`, in our own terms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from xpk.cli.options import Command
from xpk.cli.terminal.output import Console
from xpk.model.accelerators import SliceShape
from xpk.model.errors import UsageError
from xpk.model.specs import Target

_DEBUG_ENV = (
    *("TPU_STDERR_LOG_LEVEL=0", "TPU_MIN_LOG_LEVEL=0", "TF_CPP_MIN_LOG_LEVEL=0"),
    "TPU_VMODULE=real_program_continuator=1",
)
_DUMP_FOLDER = "/mnt/xla-dump"
_DEFAULT_SCHEDULER = "default-scheduler"


def upstream_options(command: Command) -> Command:
    """Take the flags of Google's xpk that others of ours stand for."""
    for option in (
        click.option(
            "--debug-dump-gcs", metavar="gs://BUCKET/PATH", help="Dump XLA's programs there; the bucket is mounted."
        ),
        click.option("--enable-debug-logs", is_flag=True, help="Let libtpu and TensorFlow log everything."),
        click.option(
            "--restart-on-exit-codes",
            metavar="CODES",
            help="Restart on these exit codes, 42, 75, 76 and 127 to 255 only; on all but the fatal ones if left out.",
        ),
        click.option("--scheduler", metavar="NAME", help="The scheduler of the pods; the cluster's default."),
        click.option(
            "--storage", "storages", multiple=True, metavar="NAME", help="Mount a storage of `xpk storage attach`."
        ),
        click.option(
            "--base-docker-image",
            metavar="IMAGE",
            help="Same as --docker-image, and ship the current folder unless --script-dir says which.",
        ),
    ):
        command = option(command)
    return command


def translate(ctx: click.Context, given: dict[str, Any]) -> None:
    """Put what these flags ask for in terms of the others. Raises UsageError for flags that exclude each other."""
    preferred = ctx.get_parameter_source("script_dir") is click.core.ParameterSource.DEFAULT_MAP
    if preferred and given["script_dir"].is_dir() and not any(given["script_dir"].iterdir()):
        given["script_dir"] = None
    if base := given.pop("base_docker_image"):
        if ctx.get_parameter_source("image") is click.core.ParameterSource.COMMANDLINE:
            raise UsageError("--base-docker-image and --docker-image exclude each other", hint="choose one")
        here = Path() if any(Path().iterdir()) else None
        given["image"], given["script_dir"] = base, given["script_dir"] or here
    if given.pop("enable_debug_logs"):
        given["env"] = (*_DEBUG_ENV, *given["env"])


def fit(console: Console, given: dict[str, Any], target: Target, shape: SliceShape) -> None:
    """Leave out, with a warning, what these flags ask for in vain on a target."""
    if given["scheduler"] in (None, _DEFAULT_SCHEDULER):
        given["scheduler"] = ""
    if target.on_this_machine:
        for flag, name in (("--scheduler", "scheduler"), ("--debug-dump-gcs", "debug_dump_gcs")):
            if given[name]:
                console.warn(f"{flag} has no effect: hosts are processes of this machine")
                given[name] = ""
    if dump := given["debug_dump_gcs"]:
        given["mounts"] = (*given["mounts"], f"source={dump},target={_DUMP_FOLDER}")
    if shape.kind == "tpu" and given["num_nodes"] is not None:
        console.warn(f"--num-nodes has no effect: a slice of {shape.name} has {shape.hosts} hosts")
        given["num_nodes"] = None


def with_dump(env: dict[str, str], given: dict[str, Any], name: str) -> dict[str, str]:
    """Return the environment with XLA told to dump its programs, if that is asked for and not done already."""
    flags = env.get("XLA_FLAGS", "")
    if not given["debug_dump_gcs"] or "--xla_dump_to" in flags:
        return env
    return env | {"XLA_FLAGS": f"{flags} --xla_dump_to={_DUMP_FOLDER}/{name}".lstrip()}
