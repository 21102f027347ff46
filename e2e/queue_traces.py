"""Comparison of the simulated queue with Kueue itself, on random traces of workloads.

    eval "$(e2e/environment/up)"                 # once: etcd, kube-apiserver, Kueue
    python -m e2e.queue_traces --traces 500      # writes e2e-artifacts/queue-traces.md

A trace has up to three queues of a cohort with random quota, limits and rules of preemption. In each step, one workload
is submitted or ends; then both queues come to rest, and their admitted workloads and the preemptions of the step are
compared. No pod runs: this program plays the jobs, which end when they are preempted. A trace ends at its first
difference, because later ones follow from it.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from e2e.api_server import BINARIES, api_server, missing
from e2e.controllers import controllers
from e2e.workload_status import change_status, conditions_of, released, with_conditions
from xpk.api.base import Obj
from xpk.api.kubernetes import KubernetesApi
from xpk.capacity.controllers import install
from xpk.local.quota_model import model_of
from xpk.local.simulation import Job, Simulation

_API = "kueue.x-k8s.io/v1beta2"
_RESOURCE = "google.com/tpu"
_STEP_SECONDS = 10.0  # of simulated time
_QUIET_SECONDS = 1.3  # without a change, after which Kueue is at rest; creation times have whole seconds
_PATIENCE_SECONDS = 30.0  # for Kueue to come to rest
_LOOP = 6  # preemptions in a step, after which a trace counts as a loop
_THREADS = 16
_TRIES = 20  # of a change, if others change the workload as well
Preemptions = tuple[str, ...]  # sorted names, one for each preemption


@dataclass(frozen=True, slots=True)
class Step:
    """One step: a workload is submitted, or (`name` is "") one of the running workloads ends."""

    name: str = ""
    queue: str = ""
    slices: int = 0
    priority: int = 0
    choice: float = 0.0  # which of the running workloads ends


@dataclass(slots=True)
class Trace:
    """A trace with its queues, and the first step in which Kueue and the simulation differ."""

    number: int
    queues: list[Obj]
    steps: list[Step]
    simulation: Simulation
    uids: dict[str, str]  # by name
    running: set[str] = field(default_factory=set)  # on Kueue
    preempted: list[str] = field(default_factory=list)  # on Kueue, in this step
    compared: int = 0  # steps
    preemptions: int = 0  # on Kueue, in all steps
    difference: str = ""
    cause: str = ""  # of the difference, or why the trace ended early

    @property
    def prefix(self) -> str:
        """Return what the names of its objects begin with."""
        return f"t{self.number}-"


def make_trace(number: int, seed: int, count: int) -> Trace:
    """Return a trace of `count` steps."""
    rng = Random(f"{seed}/{number}")
    prefix, total = f"t{number}-", rng.randint(2, 8)
    queues, left = [], total
    how_many = rng.choice((1, 1, 2, 2, 3))
    for index in range(how_many):
        share = left if index == how_many - 1 else rng.randint(0, left)
        left -= share
        queues.append(_cluster_queue(rng, f"{prefix}q{index}", f"{prefix}cohort", share))
    steps, submitted = [], 0
    for _ in range(count):
        if submitted < 2 or rng.random() < 0.6:
            queue = rng.choice(queues)["metadata"]["name"]
            size, priority = rng.randint(1, max(1, total - 1)), rng.choice((100, 250, 500, 750))
            steps.append(Step(f"{prefix}w{submitted}", queue, size, priority))
            submitted += 1
        else:
            steps.append(Step(choice=rng.random()))
    jobs, uids = list[Job](), dict[str, str]()
    for at, step in enumerate(steps):
        if step.name:
            uids[step.name] = f"{at:04d}/{step.name}"
            needs = {_RESOURCE: step.slices}
            jobs.append(
                Job(uid=uids[step.name], queue=step.queue, priority=step.priority, needs=needs, seconds=math.inf,
                    arrival=at * _STEP_SECONDS)
            )  # fmt: skip
    models = {queue["metadata"]["name"]: model_of(queue) for queue in queues}
    return Trace(number, queues, steps, Simulation(models, jobs, stop_seconds=1.0), uids)


def _cluster_queue(rng: Random, name: str, cohort: str, nominal: int) -> Obj:
    quota: dict[str, Any] = {"name": _RESOURCE, "nominalQuota": nominal}
    if rng.random() < 0.5:
        quota["borrowingLimit"] = rng.randint(0, 3)
    if rng.random() < 0.5:
        quota["lendingLimit"] = rng.randint(0, nominal)
    reclaim = rng.choice(("Any", "Any", "LowerPriority", "Never"))
    borrowing = "Never" if reclaim == "Never" else rng.choice(("LowerPriority", "Never"))
    spec = {
        "namespaceSelector": {},
        "queueingStrategy": "BestEffortFIFO",
        "cohortName": cohort,
        "preemption": {
            "withinClusterQueue": rng.choice(("LowerPriority", "LowerPriority", "Never")),
            "reclaimWithinCohort": reclaim,
            "borrowWithinCohort": {"policy": borrowing},
        },
        "resourceGroups": [{"coveredResources": [_RESOURCE], "flavors": [{"name": "flavor", "resources": [quota]}]}],
    }
    return {"apiVersion": _API, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec}


class Kueue:
    """Workloads on Kueue, whose jobs this program plays."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self._api = KubernetesApi(kubeconfig=kubeconfig)
        self._executor = ThreadPoolExecutor(_THREADS)
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._traces: dict[str, Trace] = {}  # by the names of workloads
        self._versions: dict[str, int] = {}  # newest one of each workload
        self._evicted: set[str] = set()
        self._to_release: set[str] = set()
        self._last_change = time.monotonic()
        threading.Thread(target=self._watch, daemon=True).start()

    def add(self, traces: Sequence[Trace]) -> None:
        """Create the queues of traces."""
        self._each([queue for trace in traces for queue in trace.queues], self._api.create)
        local = [
            {
                "apiVersion": _API,
                "kind": "LocalQueue",
                "metadata": {"name": queue["metadata"]["name"], "namespace": "default"},
                "spec": {"clusterQueue": queue["metadata"]["name"]},
            }
            for trace in traces
            for queue in trace.queues
        ]
        self._each(local, self._api.create)
        for trace in traces:
            self._traces |= dict.fromkeys(trace.uids, trace)

    def remove(self, traces: Sequence[Trace]) -> None:
        """Delete the workloads and queues of traces."""
        names = {name for trace in traces for name in trace.uids}
        existing = [obj["metadata"]["name"] for obj in self._api.list("Workload") if obj["metadata"]["name"] in names]
        with self._lock:
            self._traces = {name: trace for name, trace in self._traces.items() if name not in names}
        self._each(existing, lambda name: self._api.delete("Workload", name))
        queues = [queue["metadata"]["name"] for trace in traces for queue in trace.queues]
        self._each(queues, lambda name: self._api.delete("LocalQueue", name))
        self._each(queues, lambda name: self._api.delete("ClusterQueue", name))

    def carry_out(self, actions: Sequence[tuple[Trace, Step, str]]) -> None:
        """Submit workloads and end others, and wait until Kueue is at rest, or preempts in a loop."""
        self._each(actions, lambda action: self._act(*action))
        end = time.monotonic() + _PATIENCE_SECONDS
        while (quiet := time.monotonic() - self._last_change) < _QUIET_SECONDS or self._to_release or not self._rests():
            if quiet > _QUIET_SECONDS / 3 and self._to_release:
                # All at once and after the last preemption, as jobs that stop within the same grace period.
                with self._lock:
                    names, self._to_release = sorted(self._to_release), set()
                self._each(names, self._release)
                self._last_change = time.monotonic()
            if time.monotonic() > end:
                return
            time.sleep(0.05)

    def _rests(self) -> bool:
        """Return whether a new list of the workloads shows nothing new, and Kueue has looked at all of them.

        It does not look at one that is like another that waits; then this takes longer.
        """
        before, listed = self._last_change, self._api.list("Workload")
        with self._lock:
            for obj in listed:
                self._note(obj)
        has_seen_all = all("QuotaReserved" in conditions_of(obj) for obj in listed)
        is_patient = time.monotonic() - before > 2 * _QUIET_SECONDS
        return (has_seen_all or is_patient) and self._last_change == before and not self._to_release

    def close(self) -> None:
        """Stop watching."""
        self._stopped.set()
        self._executor.shutdown()

    def _each(self, items: Sequence[Any], act: Any) -> None:
        for _ in self._executor.map(act, items):
            pass

    def _act(self, trace: Trace, step: Step, ends: str) -> None:
        if ends:
            change_status(self._api, ends, _finished, tries=_TRIES)
        elif step.name:
            container = {"name": "host", "image": "none", "resources": {"requests": {_RESOURCE: "1"}}}
            template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
            pod_sets = [{"name": "main", "count": step.slices, "template": template}]
            self._api.create(
                {
                    "apiVersion": _API,
                    "kind": "Workload",
                    "metadata": {"name": step.name, "namespace": "default"},
                    "spec": {"queueName": step.queue, "priority": step.priority, "podSets": pod_sets},
                }
            )
        self._last_change = time.monotonic()

    def _watch(self) -> None:
        api = KubernetesApi(kubeconfig=self._kubeconfig)
        while not self._stopped.is_set():
            for _, obj in api.watch("Workload", timeout=60.0):
                with self._lock:
                    self._note(obj)

    def _note(self, obj: Obj) -> None:
        name, conditions = obj["metadata"]["name"], conditions_of(obj)
        trace, version = self._traces.get(name), int(obj["metadata"]["resourceVersion"])
        if trace is None or version <= self._versions.get(name, 0):
            return
        self._versions[name] = version
        is_evicted = conditions.get("Evicted") == "True"
        runs = conditions.get("Admitted") == "True" and not is_evicted and conditions.get("Finished") != "True"
        if runs != (name in trace.running) or is_evicted != (name in self._evicted):
            self._last_change = time.monotonic()
        (trace.running.add if runs else trace.running.discard)(name)
        if is_evicted and name not in self._evicted:
            trace.preempted.append(name)
            self._to_release.add(name)
        (self._evicted.add if is_evicted else self._evicted.discard)(name)

    def _release(self, name: str) -> None:
        """Release the quota of a preempted workload, as its job's controller does once the pods have ended."""
        change_status(self._api, name, released, tries=_TRIES)


def _finished(obj: Obj) -> Obj:
    return {"conditions": with_conditions(obj, Finished=("True", "Succeeded"))}


def run_batch(kueue: Kueue, traces: Sequence[Trace], count: int) -> None:
    """Run traces side by side, step by step."""
    kueue.add(traces)
    for at in range(count):
        active = [trace for trace in traces if not trace.cause]
        actions = []
        for trace in active:
            trace.preempted.clear()
            ends = _ending(trace, trace.steps[at])
            if ends:
                trace.simulation.end(trace.uids[ends], at * _STEP_SECONDS)
            actions.append((trace, trace.steps[at], ends))
        kueue.carry_out(actions)
        for trace in active:
            trace.simulation.run(until=(at + 0.9) * _STEP_SECONDS)
            _compare(trace, at)
    kueue.remove(traces)


def _ending(trace: Trace, step: Step) -> str:
    """Return the workload that ends in a step, "" if none does."""
    running = sorted(trace.running)
    return "" if step.name or not running else running[int(step.choice * len(running))]


def _compare(trace: Trace, at: int) -> None:
    """Record the difference between Kueue and the simulation after a step."""
    names = {uid: name for name, uid in trace.uids.items()}
    simulated = {names[uid] for uid in trace.simulation.running}
    begin = at * _STEP_SECONDS
    stops = sorted(
        names[uid]
        for uid, course in trace.simulation.courses.items()
        for time_, _ in course.stops
        if begin <= time_ < begin + _STEP_SECONDS
    )
    preempted = sorted(trace.preempted)
    trace.compared += 1
    trace.preemptions += len(preempted)
    if trace.simulation.loops or len(preempted) >= _LOOP:
        is_both = bool(trace.simulation.loops) and len(preempted) >= _LOOP
        trace.difference = "" if is_both else f"step {at}: {_pair(preempted, stops)} preempted"
        trace.cause = "both preempt in a loop" if is_both else "only one preempts in a loop"
    elif simulated != trace.running or stops != preempted:
        trace.difference = f"step {at}: {_pair(trace.running, simulated)} running; {_pair(preempted, stops)} preempted"
        trace.cause = _cause(trace, preempted, stops)


def _cause(trace: Trace, preempted: Sequence[str], stops: Sequence[str]) -> str:
    """Return why Kueue may have chosen other victims: it orders those of one priority and second by random UIDs."""
    step_of = {step.name: step for step in trace.steps if step.name}
    only = {*preempted} ^ {*stops}
    priorities = {step_of[name].priority for name in only}
    courses = [trace.simulation.courses[trace.uids[name]] for name in only]
    starts = {start.time // _STEP_SECONDS for course in courses for start in course.starts[-2:]}
    return "victims of one second" if only and len(priorities) == 1 and len(starts) < 2 * len(only) else "unexplained"


def _pair(kueue: Sequence[str] | set[str], simulated: Sequence[str] | set[str]) -> str:
    return f"Kueue {_short(kueue)}, simulation {_short(simulated)}"


def _short(names: Sequence[str] | set[str]) -> str:
    return ", ".join(sorted(name.partition("-")[2] for name in names)) or "none"


def table(traces: Sequence[Trace], seconds: float) -> str:
    """Return the result as Markdown."""
    equal = [trace for trace in traces if not trace.difference]
    steps, preemptions = (sum(getattr(trace, of) for trace in traces) for of in ("compared", "preemptions"))
    lines = [
        "# Traces on the simulated queue and on Kueue",
        "",
        f"{len(equal)} of {len(traces)} traces are equal ({100 * len(equal) / len(traces):.1f} %): {steps} steps with "
        f"{preemptions} preemptions, {seconds:.0f} s, {datetime.now(UTC):%Y-%m-%d}.",
        "",
        "| trace | difference | cause |",
        "|---|---|---|",
    ]
    lines += [f"| {trace.number} | {trace.difference} | {trace.cause} |" for trace in traces if trace.difference]
    return "\n".join(lines) + "\n"


@contextmanager
def real_kueue(folder: Path) -> Iterator[Kueue]:
    """Run an API server with Kueue; yield it with a flavor."""
    (server := folder / "server").mkdir()
    with (
        api_server(server, BINARIES) as kubeconfig,
        controllers(folder / "controllers", kubeconfig) as manifests,
    ):
        api = KubernetesApi(kubeconfig=kubeconfig)
        for controller in install.CONTROLLERS:
            source = manifests[f"XPK_{controller.name.upper()}_MANIFEST"]
            install.install(api, controller, pinned=False, source=source)
        api.create({"apiVersion": _API, "kind": "ResourceFlavor", "metadata": {"name": "flavor"}, "spec": {}})
        kueue = Kueue(kubeconfig)
        try:
            yield kueue
        finally:
            kueue.close()


def main() -> int:
    """Run traces and write the table; return 1 if fewer than the required share are equal."""
    parser = argparse.ArgumentParser(prog="python -m e2e.queue_traces", description=__doc__)
    parser.add_argument("--traces", type=int, default=500, help="[default: 500]")
    parser.add_argument("--steps", type=int, default=12, help="of each trace [default: 12]")
    parser.add_argument("--seed", type=int, default=1, help="[default: 1]")
    parser.add_argument("--at-once", type=int, default=50, help="traces side by side [default: 50]")
    parser.add_argument("--required", type=float, default=0.99, help="share of equal traces [default: 0.99]")
    parser.add_argument("--output", type=Path, default=Path("e2e-artifacts/queue-traces.md"), help="file of the table")
    options = parser.parse_args()
    if why := missing("etcd", "kube-apiserver", "jobset", "kueue"):
        print(f"error: {why}", file=sys.stderr)
        return 1
    traces = [make_trace(number, options.seed, options.steps) for number in range(options.traces)]
    with tempfile.TemporaryDirectory(prefix="xpk-traces-") as folder, real_kueue(Path(folder)) as kueue:
        began = time.monotonic()
        for first in range(0, len(traces), options.at_once):
            batch = traces[first : first + options.at_once]
            run_batch(kueue, batch, options.steps)
            unequal = sum(bool(trace.difference) for trace in batch)
            print(f"{first + len(batch)} traces, {unequal} differ, {time.monotonic() - began:.0f} s", file=sys.stderr)
        text = table(traces, time.monotonic() - began)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(text, encoding="utf-8")
    print(text, end="")
    return int(sum(not trace.difference for trace in traces) < options.required * len(traces))


if __name__ == "__main__":
    sys.exit(main())
