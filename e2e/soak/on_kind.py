"""Random faults in one run on a kind cluster, one after another: pods are recreated only for lost supervisors.

    eval "$(e2e/environment/up)" && python -m e2e.soak.on_kind --faults 50 --seed 1 [--output FILE]

Fault N of a seed is always the same. After each one all hosts must train again, in the same pods unless a supervisor
was hit, and every loss must equal that of an undisturbed run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from e2e.harness import DrillError
from e2e.kind_cluster import SLICES, Place, open_place
from e2e.machine import machine
from e2e.soak.faults import HOSTS_PER_SLICE
from e2e.soak.injection import TRAINER, reference_losses
from e2e.soak.progress import Progress
from e2e.soak.report import differing_steps
from tests.waiting import until
from xpk_shared.supervisor.restarts import SHORT_SECONDS

HOSTS = SLICES * HOSTS_PER_SLICE
SETTINGS = [*TRAINER, "--set", "data.global_batch=16", "--set", "data.path=stdlib"]
# Kinds with their weights; the last three end a supervisor, so Kubernetes recreates all pods.
KINDS = {
    "kill-trainer": 8,
    "kill-two-trainers": 3,
    "kill-in-restart": 3,
    "terminate-trainer": 3,
    "stop-trainer": 1,
    "kill-supervisor": 2,
    "delete-pod": 2,
    "kill-trainer-and-supervisor": 1,
}
_PODS_STAY = frozenset(list(KINDS)[:5])
_LIMIT_SECONDS = 300.0
_STEPS = 5  # maximum number of steps that an attempt finishes before a fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One fault and its consequences."""

    number: int
    kind: str
    hosts: tuple[int, ...]
    seconds: float  # from its first signal to the next finished step of a later attempt
    pods_stay: bool
    step: int


class KindSoak:
    """One disturbed run."""

    def __init__(self, place: Place, name: str = "soak") -> None:
        self._place = place
        self._run = place.lab.create_workload(name, num_slices=SLICES, max_restarts=10_000, trainer=SETTINGS)
        self.progress = Progress(self._run.folder, SLICES, HOSTS_PER_SLICE)
        self._await_training(0.0)

    def inject(self, number: int, rng: Random) -> Outcome:
        """Inject a fault and wait until all hosts train again. Raises DrillError if they do not, or in other pods."""
        (kind,) = rng.choices(list(KINDS), list(KINDS.values()))
        hosts = tuple(rng.sample(range(HOSTS), 2))
        self._await_steps(rng.randint(1, _STEPS))
        before, at = self._pods(), time.time()
        self._strike(kind, hosts, at)
        self._await_training(at)
        ended = self.progress.stepped_after(at)
        pods_stay = before == self._pods()
        if pods_stay != (kind in _PODS_STAY):
            raise DrillError(f"fault {number} ({kind}): the pods {'stayed' if pods_stay else 'were recreated'}")
        used = hosts if "two" in kind or kind in ("kill-in-restart", "kill-trainer-and-supervisor") else hosts[:1]
        seconds = round((ended or time.time()) - at, 3)
        step = self.progress.steps[-1]["step"]
        return Outcome(number=number, kind=kind, hosts=used, seconds=seconds, pods_stay=pods_stay, step=step)

    def stop(self) -> None:
        """End the run; its output stays."""
        self._place.end(self._run.name)
        self.progress.read()

    def _strike(self, kind: str, hosts: Sequence[int], at: float) -> None:
        first, second = (self._host(host) for host in hosts)
        if kind in ("kill-supervisor", "delete-pod"):
            if kind == "delete-pod":
                self._place.kubectl("delete", "pod", first["pod"], "--wait=false")
            else:
                self._place.lab.kill(first, signal.SIGKILL)
            return
        number = {"terminate-trainer": signal.SIGTERM, "stop-trainer": signal.SIGSTOP}.get(kind, signal.SIGKILL)
        self._signal(hosts[0], first, number)
        if kind == "kill-in-restart":
            self._await(lambda: self.progress.started_after(at) is not None)
        if kind in ("kill-in-restart", "kill-two-trainers"):
            self._signal(hosts[1], second, signal.SIGKILL)
        elif kind == "kill-trainer-and-supervisor":
            self._place.lab.kill(second, signal.SIGKILL)

    def _signal(self, number: int, host: dict[str, Any], what: signal.Signals) -> None:
        """Send a signal to the newest trainer of a host, unless it has ended."""
        try:
            self._place.lab.kill_program(host, self.progress.pid(number), what)
        except ProcessLookupError:
            say(f"  the trainer of host {number} has ended before")

    def _host(self, number: int) -> dict[str, Any]:
        slice_id, host = divmod(number, HOSTS_PER_SLICE)
        return next(one for one in self._pod_objects() if (one["slice"], one["host"]) == (slice_id, host))

    def _pods(self) -> set[str]:
        return {one["pod"] for one in self._pod_objects()}

    def _pod_objects(self) -> list[dict[str, Any]]:
        """Return the pods that run, with their places and nodes."""
        label = f"jobset.sigs.k8s.io/jobset-name={self._run.name}"
        items = json.loads(self._place.kubectl("get", "pods", "-l", label, "-o", "json") or '{"items": []}')["items"]
        return [
            {
                "pod": item["metadata"]["name"],
                "node": item["spec"].get("nodeName", ""),
                "slice": int(item["metadata"]["labels"]["jobset.sigs.k8s.io/job-index"]),
                "host": int(item["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]),
            }
            for item in items
            if item["status"]["phase"] == "Running" and "deletionTimestamp" not in item["metadata"]
        ]

    def _await_training(self, at: float) -> None:
        """Wait until all hosts of an attempt that began after a time have finished a step together."""

        def trains() -> bool:
            newest = [starts[-1].time if starts else 0.0 for starts in self.progress.starts.values()]
            return self.progress.is_complete and min(newest) > at and len(self._pod_objects()) == HOSTS

        self._await(trains)

    def _await_steps(self, steps: int) -> None:
        """Wait until the newest attempt has finished so many steps, and ends too late to cause a pause."""

        def is_ready() -> bool:
            age = time.time() - max(starts[-1].time for starts in self.progress.starts.values())
            return self.progress.steps_of_attempt >= steps and age >= SHORT_SECONDS

        self._await(is_ready)

    def _await(self, holds: Any) -> None:
        def read() -> bool:
            self.progress.read()
            return bool(holds())

        until(read, seconds=_LIMIT_SECONDS, report=self._place.what_is_there)


def soak(place: Place, seed: int, faults: int) -> tuple[list[Outcome], list[int], str]:
    """Return the outcomes, the steps with another loss than in an undisturbed run, and why it has stopped or ""."""
    run, outcomes, reason = KindSoak(place), list[Outcome](), ""
    for number in range(1, faults + 1):
        try:
            outcomes.append(run.inject(number, Random(f"{seed}/{number}")))
        except (DrillError, AssertionError) as error:
            reason = str(error)
            say(f"error: {reason}")
            place.lab.collect(place.folder / "artifacts")
            break
        last = outcomes[-1]
        pods = "in place" if last.pods_stay else "new pods"
        say(f"{number:4} {last.kind} {last.hosts}: {last.seconds:.1f} s, {pods}, step {last.step}")
    run.stop()
    finished = run.progress.steps
    last_step = max(line["step"] for line in finished)
    reference = reference_losses(place.lab, "calm", SLICES, last_step, 600 + 5 * last_step, trainer=SETTINGS)
    return outcomes, differing_steps(finished, reference), reason


def main() -> int:
    """Run the soak on a cluster of its own, and print and write the result; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m e2e.soak.on_kind", description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=50, help="number of faults [default: 50]")
    parser.add_argument("--seed", type=int, default=1, help="seed of the plan [default: 1]")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    options = parser.parse_args()
    folder, began = Path(tempfile.mkdtemp(prefix="xpk-soak-")), time.monotonic()
    try:
        place = open_place(folder, "soak")
    except DrillError as error:
        say(f'error: {error}\n  hint: eval "$(e2e/environment/up)"')
        return 1
    try:
        place.xpk(*place.create)
        outcomes, differing, reason = soak(place, options.seed, options.faults)
    finally:
        place.remove()
    stayed = [one.seconds for one in outcomes if one.pods_stay]
    print(
        f"{len(outcomes)} of {options.faults} faults survived, {len(stayed)} in place; {len(differing)} losses differ"
    )
    if stayed:
        print(f"in place: median {statistics.median(stayed):.1f} s, maximum {max(stayed):.1f} s to the next step")
    if options.output:
        today = datetime.now(UTC).date().isoformat()
        document = {
            **{"date": today, "machine": machine(), "seed": options.seed, "faults": options.faults},
            **{"survived": len(outcomes), "in_place": len(stayed), "steps_with_another_loss": len(differing)},
            **{"seconds": round(time.monotonic() - began), "reason": reason},
            "outcomes": [asdict(one) for one in outcomes],
        }
        options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if not reason:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if reason or differing else 0


def say(text: str) -> None:
    """Print a line to stderr."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
