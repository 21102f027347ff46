"""Placement of embedding tables on the chips of a slice, by the bytes that a chip sends in a step. Without JAX.

Slices are replicas: each holds all tables. With n chips in "fsdp", b examples of a chip, H ids of a feature in an
example, rows of E numbers of 4 bytes, and V rows, a chip sends for a table

    replicated  2 (n - 1)/n V E 4                       its gradient, all-reduced
    columns     (n - 1) b H 4 + 2 (n - 1)/n b E 4       ids, to all chips; sums of rows, and their gradients
    rows        (n - 1)/n (2 b H 4 + 2 b H E 4)         ids twice; rows, and their gradients

The placement that sends the fewest bytes is chosen. Columns are possible if n divides E. Rows are possible for tables
of at least 1,024 rows, which are padded to a multiple of 1,024 wherever they are, so that checkpoints fit any mesh.
"""

import dataclasses
import math
from collections.abc import Iterator

from trainer.config import Config, Model, positive_integers
from trainer.errors import Problem

PLACEMENTS = REPLICATED, COLUMNS, ROWS = "replicated", "columns", "rows"
ROW_MULTIPLE = 1024  # of the rows of a table that may be sharded by rows
_BYTES = 4  # of an id, and of a number of a row


def padded_rows(rows: int) -> int:
    """Return the rows that a table of this many ids has."""
    return rows if rows < ROW_MULTIPLE else -(-rows // ROW_MULTIPLE) * ROW_MULTIPLE


def row_capacity(lookups: int, owners: int) -> int:
    """Return the rows of a table that a chip with this many lookups requests of each owner at a time.

    They are four standard deviations more than the mean, if all lookups are of different rows at random (Poisson).
    """
    mean = lookups / owners
    return min(lookups, math.ceil(mean + 4 * math.sqrt(mean) + 4))


def place(model: Model, chips: int, examples: float) -> Model:
    """Return the model with `placements` chosen for these chips of "fsdp" and their examples, if they are not set."""
    if model.placements:
        return model
    chosen = []
    for rows, hots in zip(model.table_rows, model.table_hots, strict=True):
        sent = sent_bytes(rows, hots, model.embed, chips, examples)
        chosen.append(min(sent, key=lambda name: sent[name]))
    return dataclasses.replace(model, placements=",".join(chosen))


def placements(model: Model) -> tuple[str, ...]:
    """Return the placement of each table; all are replicated where `place` has chosen none."""
    names = tuple(name.strip() for name in model.placements.split(",") if name.strip()) or (REPLICATED,)
    return names * len(model.table_rows) if len(names) == 1 else names


def sent_bytes(rows: int, hots: int, embed: int, chips: int, examples: float) -> dict[str, float]:
    """Return the bytes that a chip sends within its slice in a step, by each placement that the table may have."""
    others = (chips - 1) / chips
    sent = {REPLICATED: 2 * others * padded_rows(rows) * embed * _BYTES}
    if embed % chips == 0:
        sent[COLUMNS] = (chips - 1) * examples * hots * _BYTES + 2 * others * examples * embed * _BYTES
    if rows >= ROW_MULTIPLE and ROW_MULTIPLE % chips == 0:
        sent[ROWS] = others * 2 * examples * hots * (1 + embed) * _BYTES
    return sent


def problems(model: Model, chips: int) -> Iterator[Problem]:
    """Yield the placements that are impossible on this many chips of "fsdp"."""
    for nth, (name, rows) in enumerate(zip(placements(model), model.table_rows, strict=True), 1):
        if name in sent_bytes(rows, 1, model.embed, chips, 1):
            continue
        if name == COLUMNS:
            why = f"model.embed = {model.embed} is not divisible by fsdp = {chips}"
        elif rows < ROW_MULTIPLE:
            why = f"it has fewer than {ROW_MULTIPLE:,} rows ({rows})"
        else:
            why = f"fsdp = {chips} does not divide {ROW_MULTIPLE:,}"
        yield Problem(f"table {nth} of model.tables cannot be sharded by {name}: {why}", "Use replicated, or omit it")


def setting_problems(config: Config) -> Iterator[Problem]:
    """Yield the settings of a model with tables that are invalid on any chips."""
    model = config.model
    for key in ("tables", "bottom_mlp", "top_mlp"):
        text = getattr(model, key)
        if not positive_integers(text):
            yield Problem(f"model.{key} = {text!r} is not a list of positive integers", "Use a list such as 1000,20")
    if model.table_rows and not model.table_hots:
        count = len(model.table_rows)
        message = f"model.hots = {model.hots!r} is not a positive integer, or one for each of {count} tables"
        yield Problem(message, "Use 1 if a feature has one id in an example")
    too_small = [rows for rows in model.table_rows if not 2 <= rows < 2**31 - ROW_MULTIPLE]
    if too_small:
        yield Problem(f"model.tables has a table of {too_small[0]:,} rows", "Use 2 or more, below 2^31 - 1,024")
    names = placements(model)
    unknown = [name for name in names if name not in PLACEMENTS]
    if unknown or len(names) != len(model.table_rows):
        message = f"model.placements = {model.placements!r} is not one placement, or one for each table"
        yield Problem(message, f"Use {' or '.join(PLACEMENTS)}, or omit it")
    if config.mesh.stages > 1 or config.mesh.tp > 1:
        message = f"mesh.stages = {config.mesh.stages} and mesh.tp = {config.mesh.tp} are not supported by dlrm"
        yield Problem(message, "Omit them: its tables and examples are sharded over fsdp")
    if model.packed or config.quant.products:
        yield Problem("model.packed and quant.matmuls are not supported by dlrm", "Omit them")
