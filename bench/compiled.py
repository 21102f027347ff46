"""Compile the named models for pods of v5e with XLA's TPU compiler, and compare memory and transfers with estimates.

    python -m bench.compiled                     # 16 programs, until XLA has assigned their buffers: a minute each
    python -m bench.compiled --to-the-end --model 128b --num-slices 199      # the executable too: minutes each

Needs the extra `tpu` and no TPU. Every program is compiled in a process of its own, at the lowest priority, one after
the other; what is in the results already is not done again.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.buffers import state_and_peak

ROOT = Path(__file__).resolve().parents[1]
TPU_TYPE, PROGRAM = "v5litepod-256", "jit_train"
MODELS, SLICES = ("16b", "32b", "64b", "128b"), (1, 2, 16, 199)


def main() -> None:
    """Compile missing results, write each when it is complete, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=MODELS, help="only these")
    parser.add_argument("--num-slices", action="append", type=int, metavar="N", help="only these")
    parser.add_argument("--to-the-end", action="store_true", help="make code, too")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "bench" / "results" / f"compiled-{datetime.now(UTC):%F}.json"
    )
    options = parser.parse_args()
    reports: list[dict[str, Any]] = json.loads(options.out.read_text()) if options.out.exists() else []
    for slices in options.num_slices or SLICES:
        for model in options.model or MODELS:
            matches = [row for row in reports if (row["config"], row["num_slices"]) == (model, slices)]
            if any(row["to_the_end"] or not options.to_the_end for row in matches):
                continue
            report = to_the_end(model, slices) if options.to_the_end else until_buffers(model, slices)
            print(f"{model} x {slices}: {report['peak_gib']} GiB in {report['compile_seconds']} s", file=sys.stderr)
            reports = [row for row in reports if row not in matches] + [report]
            options.out.write_text(json.dumps(reports, indent=1) + "\n")
    for line in (*table(reports), "", *collectives_table(reports)):
        print(line)


def to_the_end(model: str, slices: int) -> dict[str, Any]:
    """Return the report of `python -m trainer compile` on the finished program."""
    report: dict[str, Any] = json.loads(_result(argv("compile", model, slices), os.environ))
    return report | {"to_the_end": True}


def until_buffers(model: str, slices: int) -> dict[str, Any]:
    """Return the same report from the compiler's dump before code generation, then stop the compiler."""
    from trainer.estimate.aot import program_transfers
    from trainer.estimate.hlo_transfers import unscattered_shapes

    with tempfile.TemporaryDirectory() as name:
        folder, watch = Path(name), time.monotonic()
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_dump_to={name} --xla_dump_hlo_as_text"
        compiler = subprocess.Popen(
            argv("compile", model, slices),
            cwd=ROOT / "workloads",
            env=os.environ | {"XLA_FLAGS": flags},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            # The report is the last file of a program that is dumped before its code.
            while compiler.poll() is None and not any(folder.glob(f"*.{PROGRAM}.*-memory-usage-report.txt")):
                time.sleep(0.2)
            time.sleep(1)
        finally:
            if compiler.poll() is None:
                os.killpg(compiler.pid, signal.SIGKILL)
            compiler.wait()
        state, peak = state_and_peak(folder, PROGRAM)
        (program,) = folder.glob(f"*.{PROGRAM}.*after_optimizations.txt")
        hlo = program.read_text()
    asked = estimated(model, slices)
    kept = ("config", "tpu_type", "num_slices", "chips", "mesh", "parameters", "global_batch", "hbm_gib")
    return {key: asked[key] for key in kept} | {
        "peak_gib": round(peak / 2**30, 3),
        "state_gib": round(state / 2**30, 3),
        **program_transfers(hlo, slices),
        "reduced_whole": sorted(shape for shape in unscattered_shapes(hlo) if math.prod(shape) >= 2**20),
        "compile_seconds": round(time.monotonic() - watch, 1),
        "to_the_end": False,
    }


@functools.cache
def estimated(model: str, slices: int) -> dict[str, Any]:
    """Return the report of `python -m trainer estimate`."""
    report: dict[str, Any] = json.loads(_result(argv("estimate", model, slices), os.environ))
    return report


def argv(command: str, model: str, slices: int) -> list[str]:
    """Return a command of the trainer that runs at the lowest priority."""
    arguments = ["--config", model, "--tpu-type", TPU_TYPE, "--num-slices", str(slices), "-o", "json"]
    return ["nice", "-n", "19", sys.executable, "-m", "trainer", command, *arguments]


def _result(command: list[str], env: Any) -> str:
    ran = subprocess.run(command, cwd=ROOT / "workloads", env=env, capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"{' '.join(command)}\n{ran.stderr}")
    return ran.stdout


def table(reports: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a Markdown table: the compiler's values and the current estimate."""
    titles: tuple[str, ...] = ("model", "slices", "chips", "mesh of a slice", "state", "compiler's peak")
    titles = (*titles, "estimate", "off by", "sent over DCN", "estimate")
    yield f"| {' | '.join(titles)} |"
    yield "|---" * len(titles) + "|"
    for row in sorted(reports, key=lambda row: (MODELS.index(row["config"]), row["num_slices"])):
        guess = estimated(row["config"], row["num_slices"])
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
    kinds = ("all-gather", "reduce-scatter", "all-reduce", "collective-permute", "all-to-all")
    titles = ("model", "slices", *(f"{kind}s" for kind in kinds[:4]), "all", "estimate", "off by", "asynchronous")
    titles = (*titles, "FLOPs computed / model's")
    yield f"| {' | '.join(titles)} |"
    yield "|---" * len(titles) + "|"
    for row in sorted(reports, key=lambda row: (MODELS.index(row["config"]), row["num_slices"])):
        guess, total = estimated(row["config"], row["num_slices"]), row["ici_gib_per_step"]
        sent = dict.fromkeys(kinds, 0.0)
        for one in row["ici_collectives"]:
            sent[one["kind"]] += one["bytes"] / 2**30
        while_computing = sum(one["bytes"] for one in row["ici_collectives"] if one["asynchronous"]) / 2**30
        cells = (
            row["config"].upper(),
            row["num_slices"],
            *(f"{sent[kind]:.1f}" for kind in kinds[:4]),
            f"**{total:.1f}**",
            f"{guess['ici_gib_per_step']:.1f}",
            f"{guess['ici_gib_per_step'] / total - 1:+.1%}",
            f"{while_computing / total:.0%}",
            f"{guess['computed_flops_per_step'] / guess['flops_per_step']:.2f}",
        )
        yield f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    main()
