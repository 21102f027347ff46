"""Compile named models for pods with XLA's TPU compiler, and compare memory and transfers with estimates.

    python -m bench.compiled                     # 16 programs, until XLA has assigned their buffers: a minute each
    python -m bench.compiled --to-the-end --model 128b --num-slices 199      # the executable too: minutes each
    python -m bench.compiled --families                      # the other model families, on two slices and 4,096 chips
    python -m bench.compiled --families --model resnet50     # one of them; the others stay as they are
    python -m bench.compiled --updates      # what sharding the update of weights changes, on two slices: 14 programs

Needs the extra `tpu` and no TPU. Every program is compiled in a process of its own, at the lowest priority, one after
the other; what is in the results already is not done again.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.buffers import state_and_peak

ROOT = Path(__file__).resolve().parents[1]
TPU_TYPE, STEP = "v5litepod-256", "jit_train"
KINDS = ("all-gather", "reduce-scatter", "all-reduce", "collective-permute", "all-to-all")
MODELS, SLICES = ("16b", "32b", "64b", "128b"), (1, 2, 16, 199)
# The settings for 4,096 chips, with batches like those of MLPerf 0.7 (Kumar et al., Exploring the Limits of Concurrency
# in ML Training on Google TPUs, 2020). On 16 chips a weight of width 1,024 has pieces that are larger than a tile.
# MLPerf 0.7's largest Mask R-CNN had 512 chips and as many images. Here eight chips share each image: the last stage
# has 32 rows, and the heads 512 and 128 regions.
FAMILIES = {
    "bert-mlperf": ("data.batch_per_chip=2", "mesh.dp=256"),
    "bert-large": ("data.batch_per_chip=2", "mesh.dp=256"),
    "resnet50": ("data.batch_per_chip=16",),
    "ssd": ("data.batch_per_chip=1",),
    "mask-rcnn": ("data.global_batch=512", "mesh.tp=8"),
    "transformer": ("data.global_batch=2048", "data.batch_per_chip=1", "mesh.tp=2", "mesh.dp=128"),
    "gnmt": ("data.batch_per_chip=1", "mesh.dp=256"),
    "dlrm": ("mesh.dp=16",),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """A training step to compile."""

    config: str
    num_slices: int
    tpu_type: str = TPU_TYPE
    settings: tuple[str, ...] = ()

    def argv(self, command: str) -> list[str]:
        """Return a command of the trainer that runs at the lowest priority."""
        arguments = ["--config", self.config, "--tpu-type", self.tpu_type, "--num-slices", str(self.num_slices)]
        arguments += [word for setting in self.settings for word in ("--set", setting)]
        return ["nice", "-n", "19", sys.executable, "-m", "trainer", command, *arguments, "-o", "json"]

    def is_of(self, row: dict[str, Any]) -> bool:
        """Return whether a row of the results is this program's."""
        same = (row["config"], row["num_slices"], row["tpu_type"]) == (self.config, self.num_slices, self.tpu_type)
        return same and tuple(row.get("settings", ())) == self.settings


def main() -> None:
    """Compile missing results, write each when it is complete, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--families", action="store_true", help="the other model families instead of decoders")
    chosen.add_argument("--updates", action="store_true", help="those with and without a sharded update instead")
    parser.add_argument("--model", action="append", choices=(*MODELS, *FAMILIES), help="only these")
    parser.add_argument("--num-slices", action="append", type=int, metavar="N", help="only these")
    parser.add_argument("--to-the-end", action="store_true", help="make code, too")
    parser.add_argument("--out", type=Path, metavar="FILE", help="results [default: of today in bench/results]")
    options = parser.parse_args()
    name, programs, tables = _chosen(options)
    out = options.out or ROOT / "bench" / "results" / f"{name}-{datetime.now(UTC):%F}.json"
    reports: list[dict[str, Any]] = json.loads(out.read_text()) if out.exists() else []
    for program in programs:
        if program.config not in (options.model or [program.config]):
            continue
        if program.num_slices not in (options.num_slices or [program.num_slices]):
            continue
        matches = [row for row in reports if program.is_of(row)]
        if any(row["to_the_end"] or not options.to_the_end for row in matches):
            continue
        report = to_the_end(program) if options.to_the_end else until_buffers(program)
        size = f"{program.config} on {program.num_slices} x {program.tpu_type}"
        print(f"{size}: {report['peak_gib']} GiB in {report['compile_seconds']} s", file=sys.stderr)
        reports = [row for row in reports if row not in matches] + [report]
        out.write_text(json.dumps(reports, indent=1) + "\n")
    print(*tables(reports), sep="\n")


def _chosen(
    options: argparse.Namespace,
) -> tuple[str, Iterable[Program], Callable[[list[dict[str, Any]]], Iterator[str]]]:
    """Return what the options choose: the name of the results, the programs, and what yields their tables."""
    if options.families:
        return "families", family_programs(), family_table
    if options.updates:
        return "updates", update_programs(), update_table
    return "compiled", decoder_programs(options.num_slices or SLICES), decoder_tables


def decoder_programs(slices: Iterable[int]) -> Iterator[Program]:
    """Yield the programs of decoders on these numbers of slices."""
    yield from (Program(model, number) for number in slices for model in MODELS)


def family_programs() -> Iterator[Program]:
    """Yield those of the other families: as configured on two slices, and on 4,096 chips, of 16 slices and of one."""
    for model, settings in FAMILIES.items():
        yield Program(model, 2)
        yield Program(model, 16, settings=settings)
        yield Program(model, 1, "v4-8192", settings)


def update_programs() -> Iterator[Program]:
    """Yield those whose update of weights is sharded over slices, on two slices, and the same without."""
    for model in FAMILIES:
        if model != "dlrm":  # it has no settings for slices: its tables are sharded inside them
            yield Program(model, 2)
            yield Program(model, 2, settings=("optim.update_axes=",))


def to_the_end(program: Program) -> dict[str, Any]:
    """Return the report of `python -m trainer compile` on the finished program."""
    report: dict[str, Any] = json.loads(_result(program.argv("compile"), os.environ))
    return report | {"settings": program.settings, "to_the_end": True}


def until_buffers(program: Program) -> dict[str, Any]:
    """Return the same report from the compiler's dump before code generation, then stop the compiler."""
    from trainer.estimate.aot import program_transfers
    from trainer.estimate.hlo_transfers import unscattered_shapes

    with tempfile.TemporaryDirectory() as name:
        folder, watch = Path(name), time.monotonic()
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_dump_to={name} --xla_dump_hlo_as_text"
        compiler = subprocess.Popen(
            program.argv("compile"),
            cwd=ROOT / "workloads",
            env=os.environ | {"XLA_FLAGS": flags},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            # The report is the last file of a program that is dumped before its code.
            while compiler.poll() is None and not any(folder.glob(f"*.{STEP}.*-memory-usage-report.txt")):
                time.sleep(0.2)
            time.sleep(1)
        finally:
            if compiler.poll() is None:
                os.killpg(compiler.pid, signal.SIGKILL)
            compiler.wait()
        state, peak = state_and_peak(folder, STEP)
        (file,) = folder.glob(f"*.{STEP}.*after_optimizations.txt")
        hlo = file.read_text()
    asked = estimated(program)
    kept = ("config", "tpu_type", "num_slices", "chips", "mesh", "parameters", "global_batch", "hbm_gib")
    return {key: asked[key] for key in kept} | {
        "settings": program.settings,
        "peak_gib": round(peak / 2**30, 3),
        "state_gib": round(state / 2**30, 3),
        **program_transfers(hlo, program.num_slices),
        "reduced_whole": sorted(shape for shape in unscattered_shapes(hlo) if math.prod(shape) >= 2**20),
        "compile_seconds": round(time.monotonic() - watch, 1),
        "to_the_end": False,
    }


@functools.cache
def estimated(program: Program) -> dict[str, Any]:
    """Return the report of `python -m trainer estimate`."""
    report: dict[str, Any] = json.loads(_result(program.argv("estimate"), os.environ))
    return report


def program_of(row: dict[str, Any]) -> Program:
    """Return the program of a row of the results."""
    return Program(row["config"], row["num_slices"], row["tpu_type"], tuple(row.get("settings", ())))


def _result(command: list[str], env: Any) -> str:
    ran = subprocess.run(command, cwd=ROOT / "workloads", env=env, capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"{' '.join(command)}\n{ran.stderr}")
    return ran.stdout


def decoder_tables(reports: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the two Markdown tables of decoders."""
    yield from table(reports)
    yield ""
    yield from collectives_table(reports)


def table(reports: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a Markdown table: the compiler's values and the current estimate."""
    titles: tuple[str, ...] = ("model", "slices", "chips", "mesh of a slice", "state", "compiler's peak")
    titles = (*titles, "estimate", "off by", "sent over DCN", "estimate")
    yield f"| {' | '.join(titles)} |"
    yield "|---" * len(titles) + "|"
    for row in sorted(reports, key=lambda row: (MODELS.index(row["config"]), row["num_slices"])):
        guess = estimated(program_of(row))
        cells = (
            row["config"].upper(),
            row["num_slices"],
            f"{row['chips']:,}",
            f"fsdp {row['mesh']['fsdp']} x tp {row['mesh']['tp']}",
            f"{row['state_gib']:.2f}",
            f"**{row['peak_gib']:.2f}**{'' if row['to_the_end'] else ' ᵇ'}",
            f"{guess['peak_gib']:.2f}",
            f"{guess['peak_gib'] / row['peak_gib'] - 1:+.1%}",
            f"{row['dcn_gib_per_step']:.3f}",
            f"{guess['dcn_gib_per_step']:.3f}",
        )
        yield f"| {' | '.join(map(str, cells))} |"


def collectives_table(reports: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a Markdown table: what a chip sends inside its slice, and computes, beside the estimates."""
    titles = ("model", "slices", *(f"{kind}s" for kind in KINDS[:4]), "all", "estimate", "off by", "asynchronous")
    titles = (*titles, "FLOPs computed / model's")
    yield f"| {' | '.join(titles)} |"
    yield "|---" * len(titles) + "|"
    for row in sorted(reports, key=lambda row: (MODELS.index(row["config"]), row["num_slices"])):
        guess, total = estimated(program_of(row)), row["ici_gib_per_step"]
        sent = _sent_by_kind(row)
        while_computing = sum(one["bytes"] for one in row["ici_collectives"] if one["asynchronous"]) / 2**30
        cells = (
            row["config"].upper(),
            row["num_slices"],
            *(f"{sent[kind] / 2**10:.1f}" for kind in KINDS[:4]),
            f"**{total:.1f}**",
            f"{guess['ici_gib_per_step']:.1f}",
            f"{guess['ici_gib_per_step'] / total - 1:+.1%}",
            f"{while_computing / total:.0%}",
            f"{guess['computed_flops_per_step'] / guess['flops_per_step']:.2f}",
        )
        yield f"| {' | '.join(map(str, cells))} |"


def family_table(reports: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a Markdown table: memory, and what a chip sends by kind of collective, beside estimates."""
    titles = ("model", "slices", "mesh", "batch", "peak, GiB", "estimate", *(f"{kind}s" for kind in KINDS), "all, MiB")
    titles = (*titles, "estimate", "over DCN, MiB", "estimate", "seconds")
    yield f"| {' | '.join(titles)} |"
    yield "|---" * len(titles) + "|"
    for row in sorted(reports, key=lambda row: (list(FAMILIES).index(row["config"]), row["chips"], -row["num_slices"])):
        guess = estimated(program_of(row))
        sent = _sent_by_kind(row)
        axes = (f"{axis} {size}" for axis, size in guess["mesh"].items() if size > 1)
        cells = (
            f"`{row['config']}`",
            f"{row['num_slices']} x {row['tpu_type']}",
            " x ".join(axes),
            f"{row['global_batch']:,}",
            f"**{row['peak_gib']:.2f}**",
            f"{guess['peak_gib']:.2f}",
            *(f"{sent[kind]:.0f}" for kind in KINDS),
            f"**{row['ici_gib_per_step'] * 2**10:,.0f}**",
            f"{guess['ici_gib_per_step'] * 2**10:,.0f}",
            _dcn(row),
            f"{guess['dcn_gib_per_step'] * 2**10:.1f}",
            f"{row['compile_seconds']:.0f}",
        )
        yield f"| {' | '.join(cells)} |"


def update_table(reports: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a Markdown table: state, memory and transfers, with and without a sharded update."""
    from trainer import config

    titles = ("model", "update sharded over", "state, GiB", "peak, GiB", *(f"{kind}s" for kind in KINDS[:3]))
    titles = (*titles, "all, MiB", "over DCN, MiB")
    yield f"| {' | '.join(titles)} |"
    yield "|---" * len(titles) + "|"
    for row in sorted(reports, key=lambda row: (list(FAMILIES).index(row["config"]), row["settings"])):
        sent = _sent_by_kind(row)
        cells = (
            f"`{row['config']}`",
            config.load(row["config"], row["settings"]).optim.update_axes or "nothing",
            f"{row['state_gib']:.3f}",
            f"{row['peak_gib']:.2f}",
            *(f"{sent[kind]:.0f}" for kind in KINDS[:3]),
            f"**{row['ici_gib_per_step'] * 2**10:,.0f}**",
            _dcn(row),
        )
        yield f"| {' | '.join(cells)} |"


def _sent_by_kind(row: dict[str, Any]) -> dict[str, float]:
    """Return what a chip sends inside its slice, in MiB, by kind of collective."""
    sent = dict.fromkeys(KINDS, 0.0)
    for one in row["ici_collectives"]:
        sent[one["kind"]] += one["bytes"] / 2**20
    return sent


def _dcn(row: dict[str, Any]) -> str:
    """Return what a chip sends to other slices, and that by kind of collective, in MiB."""
    from trainer.estimate.hlo_transfers import Transfer

    sent = dict[str, float]()
    for one in row["dcn_transfers"]:
        kind = one["kind"].lower().replace("_", "-")
        sent[kind] = sent.get(kind, 0.0) + Transfer(**one).sent(row["num_slices"]) / 2**20
    parts = ", ".join(
        f"{kind} {size:.1f}" for kind, size in sorted(sent.items(), key=lambda item: -item[1]) if size >= 0.05
    )
    return f"**{row['dcn_gib_per_step'] * 2**10:.1f}**" + (f" ({parts})" if parts else "")


if __name__ == "__main__":
    main()
