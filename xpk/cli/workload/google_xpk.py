"""Options of Google's xpk for `workload create`, translated into options of this xpk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from xpk.cli.options import Command, is_typed
from xpk.model.errors import UsageError

_DEBUG_ENV = (
    *("TPU_STDERR_LOG_LEVEL=0", "TPU_MIN_LOG_LEVEL=0", "TF_CPP_MIN_LOG_LEVEL=0"),
    "TPU_VMODULE=real_program_continuator=1",
)


def upstream_options(command: Command) -> Command:
    """Add the flags of Google's xpk that are translated into other flags."""
    for option in (
        click.option(
            "--debug-dump-gcs", metavar="gs://BUCKET/PATH", help="Mount this bucket and dump XLA's programs to it."
        ),
        click.option("--enable-debug-logs", is_flag=True, help="Enable debug logs of libtpu and TensorFlow."),
        click.option(
            "--restart-on-exit-codes",
            metavar="CODES",
            help="Restart only on these exit codes, 42, 75, 76 and 127 to 255. [default: all but fatal exit codes]",
        ),
        click.option("--scheduler", metavar="NAME", help="Scheduler of the pods. [default: the cluster's]"),
        click.option(
            "--storage",
            "storages",
            multiple=True,
            metavar="NAME",
            help="Mount a storage of `xpk storage attach`; may be repeated.",
        ),
        click.option(
            "--base-docker-image",
            metavar="IMAGE",
            help="Same as --docker-image, with --script-dir defaulting to the current folder.",
        ),
    ):
        command = option(command)
    return command


def translate(ctx: click.Context, options: dict[str, Any]) -> None:
    """Translate these flags into the others. Raises UsageError for flags that exclude each other."""
    preferred = ctx.get_parameter_source("script_dir") is click.core.ParameterSource.DEFAULT_MAP
    if preferred and options["script_dir"].is_dir() and not any(options["script_dir"].iterdir()):
        options["script_dir"] = None
    if base := options.pop("base_docker_image"):
        if is_typed("image"):
            raise UsageError("--base-docker-image and --docker-image exclude each other", hint="pass one of them")
        current_folder = Path() if any(Path().iterdir()) else None
        options["image"], options["script_dir"] = base, options["script_dir"] or current_folder
    if options.pop("enable_debug_logs"):
        options["env"] = (*_DEBUG_ENV, *options["env"])
