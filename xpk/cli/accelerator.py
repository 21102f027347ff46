"""`xpk accelerator`: the known accelerator types."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from xpk.cli.options import output_option
from xpk.cli.terminal.help import CommandGroup
from xpk.cli.terminal.output import Console, echo, list_options
from xpk.cli.terminal.tables import Column
from xpk.model.accelerators import SliceShape, all_shapes, find_shape

_COLUMNS = (
    Column("TYPE", lambda s: s.name),
    Column("TOPOLOGY", lambda s: s.topology or "-"),
    Column("CHIPS", lambda s: s.chips),
    Column("HOSTS", lambda s: s.hosts),
    Column("CHIPS/HOST", lambda s: s.chips_per_host, drop=1),
    Column("MACHINE", lambda s: s.machine_type, drop=2),
    Column("HBM/CHIP", lambda s: f"{s.hbm_gib} GiB" if s.hbm_gib else "-", drop=3, key=lambda s: s.hbm_gib),
    Column("BF16/CHIP", lambda s: _peak(s.peak_bf16, "TFLOP/s"), drop=4, key=lambda s: s.peak_bf16),
)
_WIDE = (
    Column("INT8/CHIP", lambda s: _peak(s.peak_int8, "TOP/s"), key=lambda s: s.peak_int8),
    Column("OTHER NAMES", lambda s: ", ".join(s.other_names), wrap=True),
)


@click.group(cls=CommandGroup)
def accelerator() -> None:
    """Look up accelerator types."""


@accelerator.command("list")
@click.option("--family", help="Show only types of this family, such as v5p.")
@click.option("--all", "every", is_flag=True, help="Include the less common topologies of each size.")
@list_options((*_COLUMNS, *_WIDE))
@output_option
@click.pass_obj
def list_(console: Console, /, family: str | None, every: bool, output: str | None, **options: Any) -> None:
    """List the types that `--tpu-type` and `--device-type` take."""
    shapes = [s for s in all_shapes() if family in (None, s.family) and (every or s.name != f"{s.family}-{s.topology}")]
    if not shapes:
        families = sorted({shape.family for shape in all_shapes()})
        raise click.BadParameter(f"choose from {', '.join(families)}", param_hint="--family")
    console = console.choosing(output, headers=not options["no_headers"], sort_by=options["sort_by"])
    console.items(shapes, columns=_COLUMNS, wide=_WIDE, data=_data)


@accelerator.command()
@click.argument("name")
@output_option
@click.pass_obj
def describe(console: Console, name: str, output: str | None) -> None:
    """Show the properties of one accelerator type."""
    console, facts = console.choosing(output), _data(find_shape(name))
    if console.is_data:
        console.data(facts)
        return
    for key, value in facts.items():
        shown = ", ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else value
        shown = ", ".join(value) if isinstance(value, list | tuple) else shown
        echo(f"{key + ':':<18} {'-' if shown in (None, '') else shown}")


def _data(shape: SliceShape) -> dict[str, Any]:
    return asdict(shape)


def _peak(value: float | None, unit: str) -> str:
    return f"{value / 1e12:g} {unit}" if value else "-"
