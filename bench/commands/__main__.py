"""Commands next to Google's xpk: time, memory, API calls and child processes of each.

    python -m bench.commands [--repeat 5] [--only list] [--without-upstream]

xpk runs against a real API server on this machine, with up to 12,736 pods. Google's xpk runs with kubectl and gcloud
that answer at once. Writes bench/results/commands-<date>.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.commands import ours as xpk
from bench.commands.cluster import NAME, BenchCluster, bench_cluster, missing
from bench.commands.google_xpk import GoogleXpk
from bench.commands.ours import Ours
from bench.commands.process import Sample
from e2e.machine import machine
from xpk.api.base import Obj
from xpk.model.accelerators import find_shape

RESULTS = Path(__file__).parents[1] / "results"
LARGE, SMALL, SLICES = find_shape("v5litepod-256"), find_shape("v5litepod-8"), 199
_SLOW_SECONDS = 8.0  # a command of Google's xpk that takes longer runs once: most of it is pauses
_AT = ("--cluster", NAME)
_GKE = ("--provider", "gke", "--project", "p", "--zone", "us-central1-a")
_CREATE = ("workload", "create", "--cluster", "c", "--tpu-type", LARGE.name, "--command", "true")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A command of both tools. `{}` in an argument becomes the number of the run.

    `before` prepares a run; `upstream`: None if Google's xpk has no such command.
    """

    name: str
    ours: Sequence[str]
    upstream: Sequence[str] | None
    before: Callable[[], None] = field(default=lambda: None)


class Bench:
    """The cases, with what they run on."""

    def __init__(self, folder: Path, cluster: BenchCluster, upstream: GoogleXpk | None) -> None:
        self._folder, self._cluster, self.upstream = folder, cluster, upstream
        self.ours = Ours(folder / "ours", cluster)

    def cases(self) -> Iterator[Case]:
        """Yield the cases in the order of the table; the workloads are stored before each."""
        (code := self._folder / "code").mkdir()
        (code / "train.py").write_text("print('training')\n", encoding="utf-8")
        listed = ("workload", "list", "--cluster", "c")
        yield Case(name="--help", ours=["--help"], upstream=["--help"])
        for size, count in (("1 workload", 1), ("100 workloads", 100), ("1,000 workloads", 1000)):
            self._store(count)
            yield Case(name=f"workload list, {size}", ours=["workload", "list", *_AT], upstream=listed)
            yield Case(name=f"workload status, {size}", ours=["workload", "status", "run0", *_AT], upstream=None)
        self._store(1)
        with xpk.kubelet(self._cluster, [f"gke-bench-np-0-{host:04}" for host in range(SMALL.hosts)]):
            yield Case(name="workload logs, 2 hosts", ours=["workload", "logs", "run0", *_AT], upstream=None)
        yield Case(name="cluster list", ours=["cluster", "list"], upstream=["cluster", "list"])
        create = ["workload", "create", "new-{}", *_AT, "--command", "true", "--image", "i"]
        yield Case(
            name="workload create",
            ours=create,
            upstream=[*_CREATE, "--workload", "new-{}", "--docker-image", "i"],
            before=self._clear,
        )
        yield Case(
            name="workload create --script-dir",
            ours=[*create, "--script-dir", str(code)],
            upstream=[*_CREATE, "--workload", "new-{}", "--base-docker-image", "i", "--script-dir", str(code)],
            before=self._clear,
        )
        for count in (1, 100):
            yield Case(
                name=f"workload delete, {count}",
                ours=["workload", "delete", "--all", "--yes", "--no-wait", *_AT],
                upstream=["workload", "delete", "--cluster", "c", "--force"],
                before=lambda count=count: self._store(count),  # type: ignore[misc]
            )
        self._store(1, large=True)
        yield Case(name="workload list, 12,736 pods", ours=["workload", "list", *_AT], upstream=listed)
        yield Case(name="workload status, 12,736 pods", ours=["workload", "status", "run0", *_AT], upstream=None)
        json_ = ["workload", "status", "run0", *_AT, "-o", "json"]
        yield Case(name="workload status -o json, 12,736 pods", ours=json_, upstream=None)
        slices = ("--tpu-type", LARGE.name, "--num-slices", str(SLICES), "--on-demand", "--dry-run")
        yield Case(
            name="cluster create --dry-run, 199 slices",
            ours=["cluster", "create", "new", *_GKE, *slices],
            upstream=["cluster", "create", "--cluster", "new", *slices],
        )

    def measure(self, case: Case, repeat: int) -> dict[str, Any]:
        """Measure a case; runs of both tools take turns, so that other load affects both."""
        upstream = self.upstream if case.upstream is not None else None
        mine: list[Sample] = []
        theirs: list[Sample] = []
        for run in range(repeat + 1):  # the first one fills caches
            case.before()
            mine.append(self.ours.run(_numbered(case.ours, run)))
            if upstream and not (theirs and theirs[0].wall_seconds > _SLOW_SECONDS):
                theirs.append(upstream.run(_numbered(case.upstream or (), run)))
        case.before()
        processes, requests = self.ours.count(_numbered(case.ours, repeat + 1))
        row: dict[str, Any] = {"command": case.name, "load_average": round(os.getloadavg()[0], 1)}
        row["ours"] = {**_medians(mine), "api_calls": requests, "processes": processes}
        row["upstream"] = "no such command" if case.upstream is None else None
        if upstream:
            started, tools = upstream.count(_numbered(case.upstream or (), repeat + 1))
            row["upstream"] = {**_medians(theirs), "processes": started, "calls": tools}
            for measure in ("wall_seconds", "cpu_seconds"):
                row[f"{measure.partition('_')[0]}_ratio"] = round(row["upstream"][measure] / row["ours"][measure], 1)
        return row

    def _store(self, count: int, *, large: bool = False) -> None:
        self._clear()
        shape, slices = (LARGE, SLICES) if large else (SMALL, 1)
        objects: list[Obj] = self._cluster.add_workloads(count, shape, slices, "run")
        if self.upstream:
            self.upstream.set_workloads(objects)

    def _clear(self) -> None:
        self._cluster.remove_all()


def _numbered(arguments: Sequence[str], run: int) -> list[str]:
    return [argument.replace("{}", str(run)) for argument in arguments]


def _medians(samples: Sequence[Sample]) -> dict[str, float]:
    """Return medians without the first sample, unless it is the only one."""
    counted = samples[1:] or samples
    return {
        "wall_seconds": round(statistics.median(sample.wall_seconds for sample in counted), 3),
        "cpu_seconds": round(statistics.median(sample.cpu_seconds for sample in counted), 3),
        "peak_mb": round(max(sample.peak_mb for sample in counted), 1),
        "runs": len(counted),
    }


def line(row: dict[str, Any]) -> str:
    """Return a line of the table in bench/README.md."""
    mine, theirs = row["ours"], row["upstream"]
    cells = [row["command"], *(f"{mine[key]:.2f}" for key in ("wall_seconds", "cpu_seconds"))]
    cells += [f"{mine['peak_mb']:.0f}", str(mine["api_calls"]), str(mine["processes"])]
    if not isinstance(theirs, dict):
        return "| " + " | ".join(["", "", *cells, theirs or "not measured", "", "", "", ""]) + " |"
    cells += [*(f"{theirs[key]:.2f}" for key in ("wall_seconds", "cpu_seconds")), f"{theirs['peak_mb']:.0f}"]
    cells += [str(theirs["calls"]["kubectl"]), str(theirs["processes"])]
    return "| " + " | ".join([f"{row['wall_ratio']:.1f}", f"{row['cpu_ratio']:.1f}", *cells]) + " |"


def main() -> int:
    """Measure the cases, print the table and write the results."""
    parser = argparse.ArgumentParser(prog="python -m bench.commands", description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", default="", help="measure only commands whose names contain this")
    parser.add_argument("--without-upstream", action="store_true")
    options = parser.parse_args()
    if why := missing():
        print(f"error: {why}", file=sys.stderr)
        return 1
    if not options.without_upstream:
        GoogleXpk.install()
    rows = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="xpk-bench-")))
        (folder / "server").mkdir()
        cluster = stack.enter_context(bench_cluster(folder / "server", LARGE, SLICES))
        upstream = None if options.without_upstream else GoogleXpk(folder / "upstream", cluster.kubeconfig)
        bench = Bench(folder, cluster, upstream)
        click = [xpk.python_and_click() for _ in range(options.repeat + 1)]
        for case in bench.cases():
            if options.only in case.name:
                rows.append(bench.measure(case, options.repeat))
                print(line(rows[-1]), flush=True)
                # After each row, as the last ones take minutes.
                _write(rows, click, None if upstream is None else upstream.version)
    return 0


def _write(rows: list[dict[str, Any]], click: Sequence[Sample], version: str | None) -> None:
    """Write the rows; those of other commands in today's file stay."""
    today = datetime.now(UTC).date().isoformat()
    file = RESULTS / f"commands-{today}.json"
    earlier = json.loads(file.read_text(encoding="utf-8"))["commands"] if file.exists() else []
    all_rows = {row["command"]: row for row in [*earlier, *rows]}
    report = {
        "date": today, "machine": machine(), "upstream": version, "import_click": _medians(click),
        "commands": list(all_rows.values()),
    }  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
