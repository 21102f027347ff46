"""Compiled CPU programs against the same programs read back: losses, hangs, and the order of their collectives.

    python -m bench.programs --hosts 4 --chips 4 --steps 300
    python -m bench.programs --hosts 2 --chips 4 --concurrent     # with the other scheduler of XLA

Every host is a process with emulated chips, connected over Gloo as in a workload. All run the trainer's own training
step on a small model: first compiled on every host, then loaded, on all hosts, from what process 0 has compiled.
Compared are the losses to the bit. XLA's log of its execution graph says which thunks wait for which; two that take
part in collectives, and of which neither waits for the other, may run in either order (docs/adr/0007).
"""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.ports import free_port
from tests.trainer.small import SETTINGS

ROOT = Path(__file__).resolve().parents[1]
FLAG = "--xla_cpu_enable_concurrency_optimized_scheduler"
_GRAPH = re.compile(r"^ThunkExecutor: #thunks=(\d+)", re.MULTILINE)
_THUNK = re.compile(r"^ thunk #\d+: op_name=(\S+), kind=([\w-]+), dependencies=\[(.*?)\],", re.MULTILINE)
_MEETING = {"collective", "while", "call", "conditional"}  # kinds that are or may contain collectives


def main() -> None:
    """Run both ways and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--chips", type=int, default=4, help="of each host (4)")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--loads", type=int, default=2, help="times that the program is loaded and run (2)")
    parser.add_argument("--hang-seconds", type=float, default=120.0, help="without a step, after which a run hangs")
    parser.add_argument("--concurrent", action="store_true", help=f"{FLAG}=true")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the trainer")
    parser.add_argument("--folder", type=Path, help="for program and losses; a finished compiled run is reused")
    parser.add_argument("--host", nargs=4, metavar=("MODE", "ID", "PORT", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "workloads"))
    if options.host:
        mode, number, port, folder = options.host
        run_host(options, mode, int(number), int(port), Path(folder))
    with tempfile.TemporaryDirectory() if not options.folder else contextlib.nullcontext(options.folder) as name:
        folder = Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        check_options(options, folder / "options.json")
        _, compiled = read_run(folder / "compile.jsonl")
        for mode in [*(["compile"] if len(compiled) < options.steps else []), *(["load"] * options.loads)]:
            result = job(options, mode, folder)
            compiled = result["losses"] if mode == "compile" else compiled
            same = sum(one == other for one, other in zip(result["losses"], compiled, strict=False))
            print(
                f"{mode:<8} {result['seconds']:6.2f} s   {result['told']}; {same} of {options.steps} losses", flush=True
            )


def check_options(options: argparse.Namespace, file: Path) -> None:
    """Refuse a folder that has a run with other options."""
    text = json.dumps([options.hosts, options.chips, options.steps, options.concurrent, options.set])
    if file.exists() and file.read_text() != text:
        sys.exit(f"error: {file.parent} has a run with other options. Use another --folder")
    file.write_text(text)


def read_run(file: Path) -> tuple[float, list[str]]:
    """Return the time until a run had its program, in seconds, and its losses."""
    text = file.read_text().splitlines() if file.exists() else []
    return (json.loads(text[0])["seconds"], text[1:]) if text else (0.0, [])


def job(options: argparse.Namespace, mode: str, folder: Path) -> dict[str, Any]:
    """Run all hosts; return process 0's losses, the time until it had the program, and a line about the run."""
    env = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(options.chips),
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        "XLA_FLAGS": f"{FLAG}={str(options.concurrent).lower()}",
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "TF_CPP_VMODULE": "thunk_executor=6",
    }
    port, watch = free_port(), time.monotonic()
    hosts = []
    for number in range(options.hosts):
        words = [
            sys.executable,
            "-m",
            "bench.programs",
            *sys.argv[1:],
            "--host",
            mode,
            str(number),
            str(port),
            str(folder),
        ]
        with (folder / f"log-{number}").open("wb") as log:
            hosts.append(subprocess.Popen(words, env=env, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT))
    lines, seen, moved = folder / f"{mode}.jsonl", 0, watch
    lines.unlink(missing_ok=True)
    while any(host.poll() is None for host in hosts) and time.monotonic() - moved < options.hang_seconds:
        time.sleep(0.2)
        size = lines.stat().st_size if lines.exists() else 0
        seen, moved = size, moved if size == seen else time.monotonic()
    hung = any(host.poll() is None for host in hosts)
    for host in hosts:
        host.kill()
        host.wait()
    ends = [] if hung else sorted({host.returncode for host in hosts} - {0})
    seconds, losses = read_run(lines)
    how = "hangs" if hung else f"hosts end with {ends}" if ends else "ends"
    if ends:
        print((folder / "log-0").read_text(errors="replace")[-2000:], file=sys.stderr)
    unordered = graphs((folder / "log-0").read_text(errors="replace"))
    return {"losses": losses, "seconds": seconds, "told": f"{how} after {len(losses)} steps; {unordered}"}


def graphs(log: str) -> str:
    """Return the number of unordered pairs of thunks with collectives, in the largest program of a log."""
    starts = [match.start() for match in _GRAPH.finditer(log)]
    largest = max((log[a:b] for a, b in itertools.pairwise([*starts, len(log)])), key=len, default="")
    before: dict[str, set[str]] = {}
    meeting = []
    for name, kind, names in _THUNK.findall(largest):
        waits = [one for one in names.split(", ") if one]
        before[name] = set(waits).union(*(before[one] for one in waits))
        meeting += [name] if kind in _MEETING else []
    free = [(a, b) for a, b in itertools.combinations(meeting, 2) if a not in before[b]]
    example = f", such as {free[0][0]} and {free[0][1]}" if free else ""
    return f"{len(meeting)} of {len(before)} thunks may meet, {len(free)} pairs have no order{example}"


def run_host(options: argparse.Namespace, mode: str, number: int, port: int, folder: Path) -> None:
    """Train as one host; process 0 writes a line for the program and one for each loss."""
    import jax
    import numpy as np
    from jax.experimental import serialize_executable as serialized

    from trainer import config
    from trainer.data import batches
    from trainer.data.records import record
    from trainer.parallel import layout
    from trainer.parallel.mesh import make_mesh
    from trainer.step import programs
    from trainer.step.compiler import QUICK_ON_CPU

    if options.hosts > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", options.hosts, number)
    chips = options.hosts * options.chips
    made = config.load("tiny", [*SETTINGS, f"data.global_batch={chips}", f"run.steps={options.steps}", *options.set])
    sizes = layout.layout(made, layout.Chips(options.hosts, 1, options.chips))
    mesh = make_mesh(sizes, jax.devices(), 1)
    slots = batches.make_slots(mesh, options.hosts, options.hosts, chips)
    built, file = programs.build(made, mesh, slots, sizes), folder / "program"
    state = built.init.lower(np.uint32(0)).compile(QUICK_ON_CPU)(np.uint32(0))
    watch = time.monotonic()
    if mode == "compile":
        step = built.train.lower(built.state, built.blocks, built.flags).compile(QUICK_ON_CPU)
    else:
        step = serialized.deserialize_and_load(*pickle.loads(file.read_bytes()))
    seconds = time.monotonic() - watch
    if mode == "compile" and number == 0:
        file.write_bytes(pickle.dumps(serialized.serialize(step)))
    flags = jax.make_array_from_callback(
        built.flags.shape, built.flags.sharding, lambda _: np.zeros((1, programs.FLAGS), np.int32)
    )
    data = np.random.default_rng(0).integers(0, 256, (1000, made.model.seq_len + 1)).astype(np.uint8)
    with (folder / f"{mode}.jsonl").open("a") if number == 0 else open(os.devnull, "w") as lines:
        print(json.dumps({"seconds": seconds}), file=lines, flush=True)
        for at in range(options.steps):
            ids = (at * chips + np.arange(chips)) % len(data)
            blocks = batches.to_blocks(mesh, slots, ids, lambda ids: data[ids], record(made.model))
            state, out = step(state, blocks, flags)
            print(float(out["loss"]).hex(), file=lines, flush=True)
    if options.hosts > 1:
        jax.distributed.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
