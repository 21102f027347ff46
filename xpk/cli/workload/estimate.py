"""`xpk workload estimate`: memory, arithmetic, traffic and step time of a configuration."""

from __future__ import annotations

from typing import Any

import click

from xpk.capacity.provider import provider_of
from xpk.cli.google_xpk import WorkloadCommand
from xpk.cli.options import accelerator_option, cluster_option, namespace_option, output_option
from xpk.cli.target import the_cluster
from xpk.cli.terminal.output import Console, echo
from xpk.cli.workload.create import print_notices
from xpk.jobs.create import create as creating
from xpk.jobs.create import memory_estimate
from xpk.jobs.create.trainer_preflight import InProcessRunner
from xpk.model import names
from xpk.model.accelerators import find_shape


@click.command(cls=WorkloadCommand)
@cluster_option
@namespace_option
@click.option("--num-slices", type=click.IntRange(min=1), default=1, show_default=True, help="Number of slices.")
@click.option(
    "--min-slices",
    type=click.IntRange(min=1),
    metavar="N",
    help="Estimate elastic slices, which continue when fewer than --num-slices but at least N are left.",
)
@accelerator_option("Accelerator type. [default: the cluster's]")
@click.option("--config", help="Trainer configuration: tiny, 8b, 16b, 32b, 64b, 128b or a YAML file.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Override a setting of the configuration; may be repeated.",
)
@output_option
@click.pass_context
def estimate(ctx: click.Context, /, cluster: str | None, namespace: str, **options: Any) -> None:
    """Estimate memory per chip, arithmetic, traffic and step time of the bundled trainer.

    Creates nothing; with --tpu-type no cluster is needed:

    \b
      xpk workload estimate --config 128b --tpu-type v5litepod-256 --num-slices 199
    """
    console: Console = ctx.obj.choosing(options["output"])
    if options["accelerator_type"]:
        shape = find_shape(options["accelerator_type"])
    else:
        place = the_cluster(cluster)
        queue = creating.read_queue(provider_of(place).connect(place), names.QUEUE, namespace, cluster=place)
        shape = creating.choose_shape(queue, None, cluster=place)[0]
    arguments = ["--config", options["config"]] if options["config"] else []
    arguments += [word for setting in options["settings"] for word in ("--set", setting)]
    figures = memory_estimate.estimate(
        InProcessRunner(),
        shape,
        options["num_slices"],
        [*arguments, *ctx.meta.get("trainer_args", ())],
        report=print_notices(console),
        min_slices=options["min_slices"],
    )
    if console.is_data:
        console.data(figures)
        return
    for key, value in figures.items():
        echo(f"{key + ':':<18} {_shown(value)}")


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return " x ".join(f"{key} {size}" for key, size in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
