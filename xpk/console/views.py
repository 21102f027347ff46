"""The parts of the page as HTML: values computed here, markup in page/parts.html.j2."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xpk.console import run_views
from xpk.console.cluster_reader import ClusterView, RunLine, obstacles, waiting_in
from xpk.console.feed import Parts, Readings, Selection
from xpk.console.run_reader import RunKey
from xpk.jobs.report.page import templates
from xpk.jobs.report.wording import duration, loss, percent
from xpk.model.forecast import StartEstimate
from xpk.model.status import Phase, WorkloadStatus

PHASES: Mapping[Phase, tuple[str, str]] = {  # class and sign: no phase is told by its color alone
    Phase.RUNNING: ("good", "▶"),
    Phase.SUCCEEDED: ("good", "✓"),
    Phase.FAILED: ("bad", "✗"),
    Phase.RESTARTING: ("warn", "↻"),
    Phase.STARTING: ("neutral", "…"),
    Phase.QUEUED: ("neutral", "○"),
    Phase.SUSPENDED: ("neutral", "‖"),
    Phase.UNKNOWN: ("warn", "?"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A row of the table of runs, as text."""

    key: str
    status: WorkloadStatus
    step: str
    share: float | None  # of the steps that are done, 0 to 1
    loss: str
    step_time: str
    goodput: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """A row of the table of queues. `shares`: (accelerator type, use); `waiting`: workloads in order.

    `obstacles`: why workloads have no estimated start, one line each.
    """

    cluster: str
    name: str
    namespaces: str
    shares: tuple[tuple[str, str], ...]
    admitted: int
    pending: int
    waiting: tuple[tuple[int, str, str, StartEstimate | None], ...]  # position, key, name and estimated start
    obstacles: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCard:
    """Use of a cluster: slices of each type (type, used, quota), and runs by phase (class, sign, phase, number)."""

    name: str
    problem: str
    slices: tuple[tuple[str, float, float], ...]
    phases: tuple[tuple[str, str, str, int], ...]


class Views:
    """Renders parts of the page; `clusters`: names of all clusters, in the order of the page."""

    def __init__(self, clusters: tuple[str, ...]) -> None:
        self._clusters = clusters
        environment = templates(Path(__file__).parent / "page")
        environment.filters["phase_class"] = lambda phase: PHASES[phase][0]
        environment.filters["phase_sign"] = lambda phase: PHASES[phase][1]
        self._markup: Any = environment.get_template("console.html.j2").module

    def __call__(self, selection: Selection, readings: Readings) -> Parts:
        """Return the parts of a selection, those of its runs that have been read."""
        try:
            parts = self._parts(selection, readings)
        except Exception as error:  # odd objects of one run must not end the page without a word
            return {"problem": str(self._markup.failure(f"{type(error).__name__}: {error}"))}
        return {"problem": "", **{name: str(html) for name, html in parts.items()}} if parts else {}

    def _parts(self, selection: Selection, readings: Readings) -> dict[str, Any]:
        runs = [readings.runs[key] for key in selection.runs if key in readings.runs]
        if not selection.runs:
            return self._overview(readings)
        if len(selection.runs) > 1:
            return run_views.comparison_parts(self._markup, runs, selection.is_narrow)
        return run_views.run_parts(self._markup, runs[0], selection.is_narrow) if runs else {}

    def _overview(self, readings: Readings) -> dict[str, Any]:
        views = [readings.clusters[name] for name in self._clusters if name in readings.clusters]
        if not views:
            return {}
        rows = [row(view.name, line) for view in views for line in view.runs]
        return {
            "clusters": self._markup.clusters([card(view) for view in views]),
            "runs": self._markup.runs(rows, sum(view.num_hidden_runs for view in views), len(self._clusters) > 1),
            "queues": self._markup.queues([one for view in views for one in queue_rows(view)]),
        }


def row(cluster: str, line: RunLine) -> RunRow:
    """Return the row of a run."""
    progress, status = line.progress, line.status
    total = progress.total_steps if progress else None
    return RunRow(
        key=str(RunKey(cluster=cluster, namespace=status.namespace, name=status.name)),
        status=status,
        step="" if progress is None else f"{progress.step:,}" + (f" / {total:,}" if total else ""),
        share=min(1.0, progress.step / total) if progress and total else None,
        loss="" if progress is None else "not finite" if progress.loss is None else loss(progress.loss),
        step_time="" if progress is None or progress.step_seconds is None else duration(progress.step_seconds),
        goodput="" if progress is None or progress.goodput is None else percent(progress.goodput),
    )


def queue_rows(view: ClusterView) -> list[QueueRow]:
    """Return the rows of a cluster's queues, with the workloads that wait in each."""
    rows = []
    for queue in view.queues:
        waiting = waiting_in(view, queue)
        rows.append(
            QueueRow(
                cluster=view.name,
                name=queue.name,
                namespaces=", ".join(queue.namespaces) or "–",
                shares=tuple((share.type, _use(share.used, share.quota)) for share in queue.shares),
                admitted=queue.admitted,
                pending=queue.pending,
                waiting=tuple(
                    (
                        status.position or 0,
                        str(RunKey(cluster=view.name, namespace=status.namespace, name=status.name)),
                        status.name,
                        status.start if status.start and status.start.expected else None,
                    )
                    for status in waiting
                ),
                obstacles=obstacles(waiting),
            )
        )
    return rows


def _use(used: float, quota: float) -> str:
    borrowed = f", {used - quota:g} borrowed" if used > quota else ""
    return f"{used:g} of {quota:g} slices{borrowed}"


def card(view: ClusterView) -> ClusterCard:
    """Return the summary of a cluster."""
    used, quota = Counter[str](), Counter[str]()
    for share in (share for queue in view.queues for share in queue.shares):
        used[share.type] += share.used  # type: ignore[assignment]  # a Counter of floats
        quota[share.type] += share.quota  # type: ignore[assignment]
    phases = Counter(line.status.phase for line in view.runs)
    return ClusterCard(
        name=view.name,
        problem=view.problem,
        slices=tuple((kind, used[kind], quota[kind]) for kind in sorted(quota)),
        phases=tuple((*PHASES[phase], str(phase), phases[phase]) for phase in Phase if phases[phase]),
    )
