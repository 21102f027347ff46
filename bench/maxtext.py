"""Step time of the trainer against MaxText: the same model, mesh, batch, number type, optimizer, JAX and machine.

    python -m bench.maxtext                     # one emulated chip, about ten minutes on two cores
    python -m bench.maxtext --chips 4

MaxText comes from PyPI, in an environment of its own in ~/.cache/xpk-bench (XPK_BENCH_CACHE). It needs Python 3.12 or
newer: this program's own, or a `python3.12` or newer on the PATH. The trainer and the plain loop of bench.trainer run
in that environment too.

Every program runs in a process of its own. They train blocks of steps in turn, one at a time, so that other load on
the machine falls on all. The ratio is the median of the ratios of blocks of one round; that of CPU time, of all threads
of a process, depends less on other load.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.blocks import BLOCK
from bench.elastic import summary
from bench.trainer import LENGTH, SIZES

ROOT = Path(__file__).resolve().parents[1]
CACHE = Path(os.environ.get("XPK_BENCH_CACHE", Path.home() / ".cache" / "xpk-bench")) / "maxtext"
REQUIREMENTS = ROOT / "bench" / "maxtext.txt"
# The trainer's decoder is Llama 2's with GELU in place of gated SiLU, and a tied embedding.
MODEL = (
    "decoder_block=llama2", "mlp_activations=['gelu']", "logits_via_embedding=true", "normalize_embedding_logits=false",
    "base_emb_dim=128", "base_num_query_heads=4", "base_num_kv_heads=4", "head_dim=32", "base_mlp_dim=512",
    "base_num_decoder_layers=2", "vocab_size=256", "max_target_length=128", "attention=dot_product",
)  # fmt: skip
RUN = (
    "run_name=bench", "hardware=cpu", "skip_jax_distributed_system=true", "steps=1000000", "dtype=float32",
    "remat_policy=none", "opt_type=adamw", "dataset_type=synthetic", "reuse_example_batch=1", "packing=false",
    "enable_checkpointing=false", "enable_tensorboard=false", "log_config=false", "jax_cache_dir=",
)  # fmt: skip
GLOBAL_BATCH = 8  # as in SIZES


def main() -> None:
    """Measure, write the result and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chips", type=int, default=1, help="emulated chips [default: 1]")
    parser.add_argument("--blocks", type=int, default=30, help="blocks of each program [default: 30]")
    parser.add_argument("--hlo", type=Path, metavar="FOLDER", help="keep the optimized HLO of every training step")
    parser.add_argument("--out", type=Path, help="default: bench/results/maxtext-CHIPS-DATE.json")
    options = parser.parse_args()
    out = options.out or ROOT / "bench" / "results" / f"maxtext-{options.chips}-{datetime.now(UTC):%F}.json"
    python = install()
    with tempfile.TemporaryDirectory(prefix="xpk-bench-") as folder:
        measurement = measure(python, Path(folder), options.chips, options.blocks)
        if options.hlo:
            for file in Path(folder).glob("*.hlo.txt"):
                shutil.copy(file, options.hlo)
    out.write_text(json.dumps(measurement, indent=1) + "\n")
    for line in table(measurement):
        print(line)


def install() -> Path:
    """Return the Python of MaxText's environment, which is made if it is missing. Exits if Python is too old."""
    python, stamp = CACHE / "venv" / "bin" / "python", CACHE / "installed.txt"
    pins = REQUIREMENTS.read_text(encoding="utf-8")
    if stamp.exists() and stamp.read_text(encoding="utf-8") == pins:
        return python
    newer = [shutil.which(f"python3.{minor}") for minor in (12, 13, 14)]
    own = sys.executable if sys.version_info >= (3, 12) else None
    base = next(filter(None, [own, *newer]), None)
    if base is None:
        sys.exit("error: MaxText requires Python 3.12 or newer, and the PATH has none")
    subprocess.run([base, "-m", "venv", "--clear", str(CACHE / "venv")], check=True)
    pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    subprocess.run([*pip, "--requirement", str(REQUIREMENTS)], check=True)
    stamp.write_text(pins, encoding="utf-8")
    return python


def programs(chips: int) -> dict[str, list[str]]:
    """Return the arguments of the member for each program that is compared."""
    mesh = [f"ici_fsdp_parallelism={chips}", f"per_device_batch_size={GLOBAL_BATCH / chips}"]
    maxtext = ["maxtext", *MODEL, *RUN, *mesh]
    compared = {
        "trainer": ["trainer"],
        "trainer, layers unrolled": ["trainer", "model.unroll=0"],
        "MaxText": maxtext,
        "MaxText, layers unrolled": [*maxtext, "scan_layers=false"],
        "plain loop": ["plain"],
    }
    # On several CPU devices the trainer compiles with fewer optimizations, as no other platform does.
    return compared | ({"trainer, fully optimized": ["trainer", "optimized"]} if chips > 1 else {})


def measure(python: Path, folder: Path, chips: int, blocks: int) -> dict[str, Any]:
    """Return the seconds of a step in every block of each program, in turn, and what the programs consist of."""
    chosen = programs(chips)
    with contextlib.ExitStack() as stack:
        members = {
            name: stack.enter_context(_member(python, folder / name, chips, args)) for name, args in chosen.items()
        }
        content = {name: _answer(member, folder / name) for name, member in members.items()}
        load = [os.getloadavg()]
        seconds: dict[str, list[float]] = {name: [] for name in members}
        cpu_seconds: dict[str, list[float]] = {name: [] for name in members}
        for number in range(blocks):
            for name, member in members.items():
                assert member.stdin is not None
                member.stdin.write("\n")
                member.stdin.flush()
                one, cpu = _answer(member, folder / name)
                seconds[name].append(one)
                cpu_seconds[name].append(cpu)
            load.append(os.getloadavg())
            line = "   ".join(f"{name} {1000 * taken[-1]:.0f} ms" for name, taken in seconds.items())
            print(f"block {number + 1} of {blocks}: {line}", file=sys.stderr)
    listed = subprocess.run([python, "-m", "pip", "freeze"], check=True, capture_output=True, text=True).stdout
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load_average_1_min": [one[0] for one in load],  # ours included; before each round
        "chips": chips,
        "steps_in_a_block": BLOCK,
        "versions": listed.split(),
        "trainer_settings": [*SIZES["cpu"], *LENGTH],
        "programs": {name: {"arguments": args, **content[name]} for name, args in chosen.items()},
        "step_seconds": seconds,
        "step_cpu_seconds": cpu_seconds,
        "ratios": {f"{ours} / {peer}": ratio(seconds, ours, peer) for ours, peer in pairs(seconds)},
        "cpu_ratios": {f"{ours} / {peer}": ratio(cpu_seconds, ours, peer) for ours, peer in pairs(seconds)},
    }


@contextlib.contextmanager
def _member(python: Path, log: Path, chips: int, arguments: list[str]) -> Iterator[subprocess.Popen[str]]:
    environ = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(chips),
        "XLA_FLAGS": "--xla_cpu_enable_concurrency_optimized_scheduler=false",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'workloads'}",
        "BENCH_HLO": f"{log}.hlo.txt",
        "TMPDIR": str(log.parent),  # a member is killed in the end, and leaves what it has written
    }
    command = [str(python), "-m", "bench.maxtext_member", *arguments]
    with log.open("w") as errors:
        member = subprocess.Popen(
            command, cwd=ROOT, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        yield member
    finally:
        member.kill()
        member.communicate()


def _answer(member: subprocess.Popen[str], log: Path) -> Any:
    assert member.stdout is not None
    line = member.stdout.readline()
    if not line:
        sys.exit(f"error: {log.name} ended\n{log.read_text()[-2000:]}")
    return json.loads(line)


def pairs(seconds: dict[str, list[float]]) -> list[tuple[str, str]]:
    """Return every variant of the trainer with every peer."""
    ours = [name for name in seconds if name.startswith("trainer")]
    return [(own, peer) for own in ours for peer in seconds if peer not in ours]


def ratio(seconds: dict[str, list[float]], ours: str, peer: str) -> dict[str, Any]:
    """Return the median ratio of blocks of one round, and its 95 % interval."""
    return summary([own / other for own, other in zip(seconds[ours], seconds[peer], strict=True)])


def table(measurement: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a Markdown table, the ratio first."""
    seconds = measurement["step_seconds"]
    yield "| trainer / peer | 95 % interval | CPU time | 95 % interval | trainer | its step, ms | peer | its step, ms |"
    yield "|---:|---|---:|---|---|---:|---|---:|"
    for ours, peer in pairs(seconds):
        both = [measurement[kind][f"{ours} / {peer}"] for kind in ("ratios", "cpu_ratios")]
        cells = [f"{one['median']:.2f} | {one['low']:.2f} to {one['high']:.2f}" for one in both]
        cells += [f"{name} | {1000 * statistics.median(seconds[name]):.1f}" for name in (ours, peer)]
        yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
