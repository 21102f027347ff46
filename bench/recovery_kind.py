"""Time that all hosts of a job are away when one ends, on kind: our manifest against that of Google's xpk.

    eval "$(e2e/environment/up)" && python -m bench.recovery_kind [--repeat 3]

One cluster, one image, one run. A host's process is killed, and the node of a slice is frozen. The time runs from
there until every host of the next attempt runs. In one more case the node's machine is ended while
`xpk cluster fence` runs, in another the slices are elastic. See bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.upstream import VERSION, Upstream
from e2e.drill import TRAINER
from e2e.harness import DrillError, Workload
from e2e.kind_cluster import SLICES, TPU_TYPE, Place, docker, open_place
from e2e.machine import machine
from e2e.soak.slice_progress import SliceProgress
from xpk_shared.supervisor.restarts import SHORT_SECONDS

HOSTS = 4
NEVER_SECONDS = 240.0
START_SECONDS = 300.0
_SETTLED_SECONDS = SHORT_SECONDS + 2  # after shorter attempts the supervisors pause before a restart
_RESTARTS = 1000  # more than there are repetitions
OBEYS = "trap 'exit 143' TERM; echo up; sleep 100000 & wait"
# The state of a TPU program that waits for the others: it is in a collective, and JAX's own handler
# has replaced that of SIGTERM.
_PROGRAM = "; ".join(
    (
        "import os, time, jax",
        'name = os.environ["MEGASCALE_COORDINATOR_ADDRESS"].rpartition(":")[0]',
        'place = 2 * int(os.environ["MEGASCALE_SLICE_ID"]) + int(os.environ["TPU_WORKER_ID"])',
        'jax.distributed.initialize(name + ":8476", 4, place, cluster_detection_method="deactivate")',
        'print("up", flush=True)',
        "time.sleep(100000)",
    )
)
# In a pod: kills the first child of the first process, the supervisor's program; prints the time.
KILLS = (
    "import os, time; child = int(open('/proc/1/task/1/children').read().split()[0]); print(time.time()); "
    "os.kill(child, 9)"
)
WAITS = f"python -c '{_PROGRAM}'"  # on one line, because Google's template allows no more
# Google's xpk wraps the command in its own signal handler.
COMMANDS = {"obeys": {"ours": OBEYS, "upstream": "echo up; sleep 100000"}, "waits": {"ours": WAITS, "upstream": WAITS}}


@dataclass(frozen=True, slots=True)
class Case:
    """The program of the hosts, the tool, and the way in which a host ends."""

    name: str
    words: str
    side: str
    program: str
    dead_node: bool = False  # frozen, so that its state is unknown
    is_fenced: bool = False  # the node's machine is stopped while `xpk cluster fence` runs
    in_place: bool = False  # only the program is killed, and the supervisors restart it
    is_elastic: bool = False  # the other slice continues


CASES = (
    Case("obeys-upstream", "shells that end on SIGTERM", "upstream", "obeys"),
    Case("obeys-ours", "shells that end on SIGTERM", "ours", "obeys"),
    Case("waits-upstream", "a JAX program that waits", "upstream", "waits"),
    Case("waits-ours", "a JAX program that waits", "ours", "waits"),
    Case("waits-in-place", "a JAX program that waits, in place", "ours", "waits", in_place=True),
    Case("trainer-ours", "the bundled trainer", "ours", "trainer"),
    Case("trainer-in-place", "the bundled trainer, in place", "ours", "trainer", in_place=True),
    Case("trainer-elastic", "the bundled trainer, elastic", "ours", "trainer", in_place=True, is_elastic=True),
    Case("node-upstream", "a node dies (shells)", "upstream", "obeys", dead_node=True),
    Case("node-ours", "a node dies (shells)", "ours", "obeys", dead_node=True),
    Case("node-fenced", "a node dies and is fenced (shells)", "ours", "obeys", is_fenced=True),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds to each mark for every repetition, None where it was not reached."""

    case: Case
    times: tuple[dict[str, float | None], ...]


class Bench:
    """The cluster with Google's xpk."""

    def __init__(self, place: Place, upstream: Upstream) -> None:
        self.place, self.upstream = place, upstream

    def measure(self, case: Case, repeat: int) -> Measured:
        """Start the case's workload, end one of its hosts repeatedly, and remove it."""
        say(f"{case.name}: {case.words}")
        name = f"b-{case.name}"
        self._start(case, name)
        times = []
        for attempt in range(1 if case.dead_node else repeat):
            self._await_up(case, name, attempt)
            time.sleep(_SETTLED_SECONDS if case.in_place else 0)
            pods = self._pods(name, 0 if case.in_place else attempt)
            pod = next(pod for pod in pods if _place_of(pod) == (1, 1))
            with self.place.fencing() if case.is_fenced else nullcontext():
                times.append(self._lose(case, name, pod, attempt))
            reached = (f"{key} {value:.1f}" for key, value in times[-1].items() if value is not None)
            say(f"  {attempt + 1}: {', '.join(reached)}")
        self._remove(name)
        return Measured(case, tuple(times))

    def _lose(self, case: Case, name: str, pod: dict[str, Any], attempt: int) -> dict[str, float | None]:
        """End a host, or its node, and return the marks; the node is restored afterwards."""
        if case.is_elastic:
            return self._continued(name, pod["metadata"]["name"])
        if case.in_place:
            return self._restarted_in_place(name, pod["metadata"]["name"], attempt)
        watch, node = time.monotonic(), str(pod["spec"]["nodeName"])
        if case.dead_node:
            docker("pause", node)
        elif case.is_fenced:
            docker("kill", node)
        else:
            self.place.lab.kill({"pod": pod["metadata"]["name"], "node": node}, signal.SIGKILL)
        marks = self._marks(name, node, attempt, watch)
        if case.dead_node:
            docker("unpause", node)
        elif case.is_fenced:
            docker("start", node)
            until(lambda: not self._is_tainted(node), START_SECONDS, f"{node} is not released")
        return marks

    def _restarted_in_place(self, name: str, pod: str, attempt: int) -> dict[str, float | None]:
        """Kill the program of a host; return the time until the last host has restarted its own, from their logs."""
        killed = self._kill_program(pod)
        pods, line = [item["metadata"]["name"] for item in self._pods(name, 0)], f"restart {attempt + 1} in place"
        started: dict[str, float] = {}

        def all_started() -> bool:
            for item in pods:
                log = self.place.kubectl("logs", item, "--timestamps", "--tail=200").splitlines()
                times = [text.split()[0] for text in log if line in text]
                if times:  # datetime does not parse nanoseconds
                    started[item] = datetime.fromisoformat(times[0][:26] + "+00:00").timestamp()
            return len(started) == HOSTS

        until(all_started, START_SECONDS, f"not every host of {name} has started again")
        return {"node not ready": None, "old hosts gone": None, "all run": max(started.values()) - killed}

    def _continued(self, name: str, pod: str) -> dict[str, float | None]:
        """Kill the program of a host; return how long the other slice's steps pause, and when both slices train again.

        The pause is the longest one, less a usual step. Raises DrillError if a step is lost.
        """
        progress = SliceProgress(Workload(self.place.lab, name).folder, SLICES, HOSTS // SLICES)

        def trains_since(time: float) -> bool:
            progress.read()
            return progress.is_complete and progress.stepped_after(time) is not None

        until(lambda: trains_since(0.0), START_SECONDS, f"not all slices of {name} train")
        last, killed = progress.steps[-1]["step"], self._kill_program(pod)
        until(lambda: trains_since(killed), START_SECONDS, f"not all slices of {name} train again")
        if lost := progress.undone(last, killed):
            raise DrillError(f"{lost} steps of {name} were lost")
        return {"stall": progress.stall(killed), "all run": (progress.stepped_after(killed) or killed) - killed}

    def _kill_program(self, pod: str) -> float:
        """Kill the program of a pod's supervisor; return the time in Unix seconds."""
        return float(self.place.kubectl("exec", pod, "--", "python3", "-c", KILLS))

    def _is_tainted(self, node: str) -> bool:
        return "out-of-service" in self.place.kubectl("get", "node", node, "-o", "jsonpath={.spec.taints}")

    def _start(self, case: Case, name: str) -> None:
        if case.side == "upstream":
            image = self.place.state.joinpath("trainer-image").read_text().strip()
            command = COMMANDS[case.program][case.side]
            jobset = self.upstream.render(name, command=command, image=image, num_slices=SLICES, max_restarts=_RESTARTS)
            self._apply(jobset)
            return
        size = ("--cluster", self.place.cluster, "--num-slices", str(SLICES))
        limit = ("--max-restarts", str(_RESTARTS), "--fresh", *(("--min-slices", "1") if case.is_elastic else ()))
        if case.program == "trainer":
            what = ["--", *TRAINER, "--set", "run.steps=100000"]
        else:
            what = ["--command", COMMANDS[case.program][case.side]]
        self.place.xpk("workload", "create", name, *size, *limit, *what)

    def _apply(self, obj: dict[str, Any]) -> None:
        kubectl = ("kubectl", f"--kubeconfig={self.place.state / 'kubeconfig'}", "apply", "-f", "-")
        subprocess.run(kubectl, input=json.dumps(obj), text=True, check=True, capture_output=True)

    def _await_up(self, case: Case, name: str, attempt: int) -> None:
        """Wait until every host has started its work."""
        run = Workload(self.place.lab, name)

        def up() -> bool:
            if case.program == "trainer":
                run.read()
                current = 0 if case.is_elastic else attempt  # of the slice that continues
                return bool(run.steps and run.steps[-1]["attempt"] == current and run.saved(current) > 0)
            pods = self._pods(name, 0 if case.in_place else attempt)
            logs = (self.place.kubectl("logs", pod["metadata"]["name"], "--all-containers") for pod in pods)
            return len(pods) == HOSTS and all(
                log.split().count("up") > (attempt if case.in_place else 0) for log in logs
            )

        until(up, START_SECONDS, f"not every host of {name} is up")

    def _marks(self, name: str, node: str, attempt: int, watch: float) -> dict[str, float | None]:
        """Watch until every host of the next attempt runs, or the attempt fails."""
        marks: dict[str, float | None] = dict.fromkeys(("node not ready", "old hosts gone", "all run"))
        while marks["all run"] is None and time.monotonic() - watch < NEVER_SECONDS:
            ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
            away = self.place.kubectl("get", "node", node, "-o", ready) not in ("True", "")
            old, new = self._pods(name, attempt), self._pods(name, attempt + 1)
            now = time.monotonic() - watch
            for mark, reached in {
                "node not ready": away,
                "old hosts gone": not old,
                "all run": sum(_runs(pod) for pod in new) == HOSTS,
            }.items():
                marks[mark] = now if reached and marks[mark] is None else marks[mark]
            time.sleep(0.2)
        return marks

    def _pods(self, name: str, attempt: int) -> list[dict[str, Any]]:
        labels = f"jobset.sigs.k8s.io/jobset-name={name},jobset.sigs.k8s.io/restart-attempt={attempt}"
        result = json.loads(self.place.kubectl("get", "pods", "-l", labels, "-o", "json") or '{"items": []}')
        pods: list[dict[str, Any]] = result["items"]
        return pods

    def _remove(self, name: str) -> None:
        self.place.kubectl("delete", "jobset", name, "--wait=false")
        label = f"jobset.sigs.k8s.io/jobset-name={name}"

        def gone() -> bool:
            self.place.kubectl("delete", "pod", "-l", label, "--force", "--grace-period=0", "--wait=false")
            return not self.place.kubectl("get", "pods", "-l", label, "-o", "name")

        until(gone, START_SECONDS, f"{name} does not go")
        until(lambda: "NotReady" not in self.place.kubectl("get", "nodes"), START_SECONDS, "a node is not ready")


def until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait for a condition. Raises DrillError."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise DrillError(f"{what} after {seconds:.0f} s")
        time.sleep(0.5)


def _place_of(pod: dict[str, Any]) -> tuple[int, int]:
    meta = pod["metadata"]
    index = meta["annotations"]["batch.kubernetes.io/job-completion-index"]
    return int(meta["labels"]["jobset.sigs.k8s.io/job-index"]), int(index)


def _runs(pod: dict[str, Any]) -> bool:
    return any("running" in item["state"] for item in pod["status"].get("containerStatuses") or [])


def main() -> int:
    """Measure, print the table, write the file; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3, help="how often a host is killed in each case")
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES], help="only this one")
    parser.add_argument("--keep", type=Path, help="folder of a cluster and of Google's xpk that stay for the next time")
    today = datetime.now(UTC).date().isoformat()
    parser.add_argument("--output", type=Path, default=Path(f"bench/results/recovery-kind-{today}.json"))
    given = parser.parse_args()
    chosen = [case for case in CASES if given.case is None or case.name in given.case]
    folder = Path(tempfile.mkdtemp(prefix="xpk-bench-"))
    place = open_place((given.keep or folder / "kind").absolute(), given.keep.name if given.keep else "bench")
    upstream = Upstream((given.keep or folder).absolute() / "upstream")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # removes the cluster, too
    try:
        if any(case.side == "upstream" for case in chosen):
            say(f"installing Google's xpk {VERSION}")
            upstream.install()
        place.xpk(*place.create)
        bench = Bench(place, upstream)
        measured = [bench.measure(case, given.repeat) for case in chosen]
    except (DrillError, subprocess.CalledProcessError) as error:
        say(f"error: {error}")
        return 1
    finally:
        if not given.keep:
            place.remove()
        shutil.rmtree(folder, ignore_errors=True)
    print(table(measured))
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(document(measured, today), indent=1) + "\n", encoding="utf-8")
    say(f"written to {given.output}")
    return 0


def table(measured: Sequence[Measured]) -> str:
    """Return the medians as a Markdown table: seconds until all hosts run, with a row for each case."""
    rows = ["| what the hosts run | manifest | seconds until all run | until the old ones are gone | stall |"]
    rows.append("|---|---|---:|---:|---:|")
    for one in measured:
        side = "ours" if one.case.side == "ours" else f"Google's xpk {VERSION}"
        gone = "" if one.case.in_place else shown(_median(one, "old hosts gone"))
        stall = shown(_median(one, "stall")) if one.case.is_elastic else ""
        cells = [one.case.words, side, shown(_median(one, "all run")), gone, stall]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _median(measured: Measured, mark: str) -> float | None:
    result = [times[mark] for times in measured.times]
    reached = [seconds for seconds in result if seconds is not None]
    return statistics.median(reached) if len(reached) == len(result) else None


def shown(seconds: float | None) -> str:
    """Return seconds as the table shows them."""
    return f"never ({NEVER_SECONDS:.0f} s watched)" if seconds is None else f"{seconds:.1f}"


def document(measured: Sequence[Measured], today: str) -> dict[str, Any]:
    """Return the content of the output file: every measurement, and the machine."""
    return {
        "date": today,
        "machine": machine(),
        "size": {"slices": SLICES, "type": TPU_TYPE, "hosts": HOSTS},
        "upstream": VERSION,
        "watched_seconds": NEVER_SECONDS,
        "cases": {
            one.case.name: {
                "what": one.case.words,
                "manifest": one.case.side,
                "seconds": [
                    {mark: None if value is None else round(value, 2) for mark, value in times.items()}
                    for times in one.times
                ],
            }
            for one in measured
        },
    }


def say(text: str) -> None:
    """Print a line to stderr."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
