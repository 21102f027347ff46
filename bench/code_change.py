"""From a changed line of code to the first step that it trains, on kind: shipped with the workload, or in a new image.

    eval "$(e2e/environment/up)" && python -m bench.code_change [--repeat 3]

The code is the bundled trainer's own package. Each turn changes a line of it, and the clock runs from there. See
bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from e2e.drill import TRAINER
from e2e.harness import DrillError, Workload
from e2e.kind_cluster import SLICES, Place, docker, open_place
from e2e.machine import machine
from xpk.capacity.images.trainer_image import build_context, trainer_image

START_SECONDS = 600.0
IMAGE = "xpk-trainer:bench-code-change"
PARTS = ("build", "load", "create", "first step")

Turn = Callable[["Bench", int], Iterator[str]]


@dataclass(frozen=True, slots=True)
class Bench:
    """The cluster, and two copies of the code: a folder to ship, and the source of an image."""

    place: Place
    code: Path
    context: Path

    def measure(self, turn: Turn, number: int) -> dict[str, float]:
        """Change a line, wait until it trains; return the seconds of each part."""
        watch, seconds = time.monotonic(), {}
        for part in turn(self, number):
            now = time.monotonic()
            seconds[part], watch = now - watch, now
        self.place.xpk("workload", "delete", "changed", "--cluster", self.place.cluster, "--yes", "--with-output")
        self.place.clear()
        return seconds

    def train(self, *options: str) -> Iterator[str]:
        """Create a workload and wait for its first step."""
        size = ("--cluster", self.place.cluster, "--num-slices", str(SLICES), "--fresh")
        self.place.xpk("workload", "create", "changed", *size, *options, "--", *TRAINER, "--set", "run.log_every=1")
        yield "create"
        run = Workload(self.place.lab, "changed")
        run.await_(lambda: bool(run.steps), START_SECONDS)
        yield "first step"


def _shipped(bench: Bench, number: int, *options: str) -> Iterator[str]:
    _change(bench.code / "trainer", number)
    yield from bench.train("--script-dir", str(bench.code), *options)


def shipped(bench: Bench, number: int) -> Iterator[str]:
    """`--script-dir` with the plain launcher."""
    return _shipped(bench, number)


def shipped_to_ray(bench: Bench, number: int) -> Iterator[str]:
    """`--script-dir` with Ray."""
    return _shipped(bench, number, "--launcher", "ray")


def rebuilt(bench: Bench, number: int) -> Iterator[str]:
    """Build a new image, of which only the layer with the code changes, and load it on every node."""
    _change(bench.context / "workloads" / "trainer", number)
    arguments = trainer_image(base=os.environ.get("XPK_BASE_IMAGE") or os.environ.get("XPK_E2E_PYTHON_IMAGE")).arguments
    build_options = [word for key, value in arguments.items() for word in ("--build-arg", f"{key}={value}")]
    docker("build", "--quiet", "--tag", f"{IMAGE}-{number}", *build_options, str(bench.context))
    yield "build"
    argv = ["kind", "load", "docker-image", f"{IMAGE}-{number}", "--name", bench.place.cluster]
    subprocess.run(argv, check=True, capture_output=True)
    yield "load"
    yield from bench.train("--docker-image", f"{IMAGE}-{number}")
    docker("rmi", "--force", f"{IMAGE}-{number}")


CASES: Mapping[str, Turn] = {
    "shipped with the workload": shipped,
    "shipped with the workload, Ray": shipped_to_ray,
    "a new image": rebuilt,
}


def _change(package: Path, number: int) -> None:
    with (package / "train.py").open("a", encoding="utf-8") as file:
        file.write(f"# changed: {number}\n")


def main() -> int:
    """Measure, print the table, write the file; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3, help="how often a line is changed for each case")
    parser.add_argument("--keep", type=Path, help="folder of a cluster that stays for the next time")
    today = datetime.now(UTC).date().isoformat()
    parser.add_argument("--output", type=Path, default=Path(f"bench/results/code-change-{today}.json"))
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="xpk-bench-"))
    place = open_place((options.keep or folder / "kind").absolute(), options.keep.name if options.keep else "bench")
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in CASES}
    try:
        place.xpk(*place.create)
        with build_context() as context:
            shutil.copytree(context / "workloads" / "trainer", folder / "code" / "trainer")
            bench = Bench(place, folder / "code", context)
            for number in range(options.repeat):
                for name, turn in CASES.items():
                    turns[name].append(bench.measure(turn, number))
                    parts = ", ".join(f"{part} {seconds:.1f}" for part, seconds in turns[name][-1].items())
                    print(f"{name}, {number + 1} of {options.repeat}: {parts}", file=sys.stderr, flush=True)
    except (DrillError, AssertionError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        if not options.keep:
            place.remove()
        shutil.rmtree(folder, ignore_errors=True)
    print("\n".join(table(turns)))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    document = {"date": today, "machine": machine(), "slices": SLICES, "seconds": turns}
    options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


def table(cases: Mapping[str, Sequence[Mapping[str, float]]]) -> Iterator[str]:
    """Yield the lines of a Markdown table: medians in seconds, and totals relative to a new image."""
    yield f"| the changed code is | {' | '.join(f'{part}, s' for part in PARTS)} | whole, s | of a new image's |"
    yield f"|---|{'---:|' * (len(PARTS) + 2)}"
    whole = {name: statistics.median(sum(turn.values()) for turn in turns) for name, turns in cases.items()}
    for name, turns in cases.items():
        cells = [f"{statistics.median(t[part] for t in turns):.1f}" if part in turns[0] else "" for part in PARTS]
        share = whole[name] / whole["a new image"]
        yield f"| {name} | {' | '.join(cells)} | {whole[name]:.1f} | {share:.0%} |"


if __name__ == "__main__":
    sys.exit(main())
