"""A cluster for the fencer: nodes of slices with leases, machines, and hosts of a workload."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.capacity.adapted.nodes import node
from xpk.api.base import Obj, Objs
from xpk.capacity.fencing.budget import Budget
from xpk.capacity.fencing.fencer import LEASES, Fencer, Fencing
from xpk.capacity.fencing.machines import Machine, MachineState
from xpk.testing import FakeApi

START = datetime(2026, 11, 24, 12, tzinfo=UTC)
VOUCHED = {"kueue.x-k8s.io/safe-to-forcefully-delete": "true"}


class Site:
    """A cluster of slices with one node each, `n0`, `n1` and so on. Time advances only in `pass_time`."""

    def __init__(self, slices: int = 3, *, api: FakeApi | None = None) -> None:
        self.now, self.api = START, api or FakeApi()
        self.machines: dict[str, Machine] = {}
        self.quiet: set[str] = set()  # nodes that do not renew their lease
        self.asked: list[str] = []
        for index in range(slices):
            self.api.create(node(f"n{index}", f"np-{index}", 4))
        self.api.create(node("control-plane"))
        self.pass_time(0)

    def pass_time(self, seconds: float) -> None:
        """Advance the time; at the end, running kubelets renew their leases."""
        self.now += timedelta(seconds=seconds)
        for item in [*self.api.list("Node")]:
            name = item["metadata"]["name"]
            if name not in self.quiet:
                meta = {"name": name, "namespace": LEASES}
                stamp = self.now.isoformat(timespec="microseconds").replace("+00:00", "Z")
                self.api.apply({"kind": "Lease", "metadata": meta, "spec": {"renewTime": stamp}})

    def end_machine(self, name: str, words: str = "its container has ended") -> None:
        """Stop a node's machine."""
        self.quiet.add(name)
        self.machines[name] = Machine(MachineState.GONE, words, self.now)

    def lose(self, name: str) -> None:
        """Make a node unreachable, with an unknown machine state."""
        self.quiet.add(name)
        self.api.patch("Node", name, {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}})

    def start_machine(self, name: str) -> None:
        """Start a node's machine again; its kubelet returns with the next lease."""
        self.quiet.discard(name)
        self.machines[name] = Machine(MachineState.RUNNING, "its container is running")

    def add_host(self, slice_id: int, on: str, *, jobset: str = "lm", attempt: int = 0, **fields: Any) -> str:
        """Place a workload's host on a node; return the pod's name."""
        name = f"{jobset}-slice-job-{slice_id}-0-abcde"
        prefix = "jobset.sigs.k8s.io"
        labels = {f"{prefix}/jobset-name": jobset, f"{prefix}/job-index": str(slice_id)}
        labels[f"{prefix}/restart-attempt"] = str(attempt)
        annotations = {"batch.kubernetes.io/job-completion-index": "0", **VOUCHED}
        meta = {"name": name, "namespace": "default", "labels": labels, "annotations": annotations}
        owner = [{"kind": "Job", "name": f"{jobset}-slice-job-{slice_id}", "uid": "j"}]
        pod = {"kind": "Pod", "metadata": {**meta, "ownerReferences": owner}, "spec": {"nodeName": on}}
        self.api.create({**pod, "status": {"phase": "Running"}, **fields})
        return name

    def fencer(self, budget: Budget | None = None, *, vouches: bool = False, quiet_seconds: float = 0.0) -> Fencer:
        """Return a fencer of this cluster."""
        return Fencer(
            self.api, self._read, budget=budget, vouches=vouches, quiet_seconds=quiet_seconds, clock=lambda: self.now
        )

    def actions(self, *fencers: Fencer) -> list[tuple[str, str]]:
        """Run a round; return each action with its node."""
        return short((fencers[0] if fencers else self.fencer()).run())

    def taints(self, name: str) -> list[str]:
        """Return the keys of a node's taints."""
        return [item["key"] for item in self.api.get("Node", name)["spec"].get("taints") or []]

    def pods(self) -> list[str]:
        """Return the names of all pods."""
        return [str(pod["metadata"]["name"]) for pod in self.api.list("Pod", None)]

    def _read(self, nodes: Objs) -> Mapping[str, Machine]:
        running = Machine(MachineState.RUNNING, "its container is running")
        self.asked = [str(item["metadata"]["name"]) for item in nodes]
        return {name: self.machines.get(name, running) for name in self.asked}


def short(actions: list[Fencing]) -> list[tuple[str, str]]:
    """Return actions with their nodes."""
    return [(item.action, item.node) for item in actions]


def report(jobset: str, host: str, time: datetime, code: int = 75) -> Obj:
    """Return the event of a Job with a failed host."""
    about = {"kind": "Job", "name": f"{jobset}-slice-job-0", "namespace": "default"}
    words = f"Container host for pod default/{host} failed with exit code {code} matching FailJob rule at index 3"
    return {
        "kind": "Event", "metadata": {"name": f"{host}.{code}", "namespace": "default"}, "involvedObject": about,
        "message": words, "lastTimestamp": time.isoformat(),
    }  # fmt: skip
