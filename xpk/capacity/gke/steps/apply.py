"""Steps of a plan from changes: each starts an operation and waits for it, and can be repeated after interruptions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from xpk.capacity.gke.cloud.client import Google, blocked, is_crowded, is_existing, maybe
from xpk.capacity.gke.cloud.failure import AGAIN, explained, of_operation
from xpk.capacity.gke.desired.request_bodies import needs_beta
from xpk.capacity.gke.planning.difference import Change
from xpk.capacity.gke.request.options import region_of
from xpk.capacity.gke.steps.gcloud_commands import commands_of
from xpk.capacity.gke.steps.vpc import Vpc
from xpk.capacity.plan.executor import Activity, Step
from xpk.model.errors import NotFoundError, TimedOutError, XpkError

Dict = dict[str, Any]

_POLL_SECONDS = 5.0
_FIRST_POLL, _GROWTH = 0.1, 0.25  # of the longest pause; of the time since the operation started


class Applier:
    """Applies changes to one cluster. All waiting steps share listings of operations.

    `timeout`: seconds of one operation. `poll`: longest pause between two polls, in seconds.
    """

    def __init__(
        self,
        google: Google,
        activity: Activity,
        *,
        project: str,
        location: str,
        cluster: str,
        timeout: float,
        poll: float = _POLL_SECONDS,
    ) -> None:
        self._google, self._activity = google, activity
        self._project, self._location, self._cluster = project, location, cluster
        self._timeout, self._poll = timeout, poll
        self._vpc = Vpc(google, project, region_of(location), self._again)
        self._lock, self._listed, self._listed_at = threading.Lock(), dict[str, Dict](), float("-inf")
        self._queue, self._advanced_at = threading.Lock(), float("-inf")
        # Titles of changes whose resource another client has created meanwhile; whether the cluster is among them.
        self._existing, self._is_foreign = set[str](), False

    @property
    def parent(self) -> str:
        """Return the resource name of the cluster's location."""
        return f"projects/{self._project}/locations/{self._location}"

    @property
    def name(self) -> str:
        """Return the resource name of the cluster."""
        return f"{self.parent}/clusters/{self._cluster}"

    def steps(self, changes: list[Change], *, may_fail: bool = False) -> list[Step]:
        """Return the steps that apply changes. `may_fail`: a node pool that fails does not block later steps."""
        makes_cluster = any(change.kind == "create-cluster" for change in changes)
        return [self._step(change, makes_cluster=makes_cluster, may_fail=may_fail) for change in changes]

    def _step(self, change: Change, *, makes_cluster: bool, may_fail: bool) -> Step:
        title, act = self._action_of(change)
        undo: Callable[[], object] | None = None
        if change.kind == "create-cluster":  # its node pools are deleted with it
            undo = partial(self._undo, "delete_cluster", {"name": self.name}, title, None)
        elif change.kind == "create-network" and not change.why:  # an incomplete network existed before
            undo = partial(self._vpc.remove_network, network_names(change.body))
        elif change.kind == "create-pool":
            request = {"name": self._pool(change.subject)}
            undo = partial(self._undo, "delete_node_pool", request, title, change.subject, with_cluster=makes_cluster)
        return Step(
            title,
            act,
            key=change.key,
            after=change.after,
            undo=undo,
            may_fail=may_fail and change.kind in ("create-pool", "wait"),
            commands=commands_of(change, self._project, self._location, self._cluster),
        )

    def _action_of(self, change: Change) -> tuple[str, Callable[[], None]]:
        """Return the title and the action of a change."""
        subject, title = change.subject, title_of(change, self._location)
        run = partial(self._run, title=title)
        if change.kind == "create-policy":
            return title, partial(self._vpc.make_policy, change.body)
        if change.kind == "create-network":
            return title, partial(self._vpc.make_network, change.body)
        if change.kind == "delete-network":
            return title, partial(self._vpc.remove_network, network_names(change.body))
        if change.kind == "create-cluster":
            request: Dict = {"parent": self.parent, "cluster": dict(change.body)}
            return title, partial(run, "create_cluster", request, subject=None)
        if change.kind == "delete-cluster":
            return title, partial(run, "delete_cluster", {"name": self.name}, subject=None)
        if change.kind == "update-cluster":
            update = {f"desired_{_UPDATES.get(subject, subject)}": change.body[subject]}
            return title, partial(run, "update_cluster", {"name": self.name, "update": update}, subject=None)
        if change.kind == "create-pool":
            request = {"parent": self.name, "node_pool": dict(change.body)}
            beta = needs_beta(change.body)
            return title, partial(run, "create_node_pool", request, subject=subject, beta=beta)
        if change.kind == "update-pool":
            request = {"name": self._pool(subject), **change.body}
            return title, partial(run, "update_node_pool", request, subject=subject)
        if change.kind == "delete-pool":
            return title, partial(run, "delete_node_pool", {"name": self._pool(subject)}, subject=subject)
        return title, partial(self._await_change, change, title)

    def _run(self, method: str, request: Dict, title: str, subject: str | None, *, beta: bool = False) -> None:
        """Start an operation and wait until it is done. Raises XpkError with the cause if it failed."""
        self._activity.update(title, "asking")
        try:
            operation = self._start(method, request, title, subject, beta=beta)
            if operation:
                self.wait(operation, title)
        finally:
            self._activity.clear(title)

    def _undo(self, method: str, request: Dict, title: str, subject: str | None, *, with_cluster: bool = False) -> bool:
        """Delete what a step has created; return False if another client has created it.

        `with_cluster`: it is deleted with the cluster, if this command has created that.
        """
        if title in self._existing or (with_cluster and not self._is_foreign):
            return False
        self._run(method, request, title, subject)
        return True

    def _start(self, method: str, request: Dict, title: str, subject: str | None, *, beta: bool) -> str | None:
        """Return the started operation, None if nothing is left to do. Waits for blocking operations first."""
        start = time.monotonic()
        while True:
            try:
                return self._begin(partial(self._google.call, method, request, beta=beta), title)
            except XpkError as error:
                if other := blocked(error):
                    self._activity.update(title, f"waiting for {other}")
                    self._wait_for_other(other)
                elif is_existing(error) and method.startswith("create"):
                    self._existing.add(title)
                    self._is_foreign |= method == "create_cluster"
                    self._await_state(subject, title)
                    return None
                elif isinstance(error, NotFoundError) and method.startswith("delete"):
                    return None
                else:
                    raise
            self._again(start)

    def _begin(self, ask: Callable[[], Dict], title: str) -> str:
        """Start an operation and return its name.

        GKE limits the number of operations on a cluster, without a way to read the limit. Once it is reached, one step
        at a time repeats its request. Their time limit starts again whenever an operation starts or ends.
        """
        start = time.monotonic()
        if not self._queue.locked():
            try:
                return str(ask()["name"])
            except XpkError as error:
                if not is_crowded(error):
                    raise
        self._activity.update(title, "waiting until other operations end")
        with self._queue:
            self._activity.pause(0)  # raises if the plan was interrupted meanwhile
            while True:
                try:
                    operation = str(ask()["name"])
                except XpkError as error:
                    if not is_crowded(error):
                        raise
                    self._again(max(start, self._advanced_at))
                else:
                    self._advanced_at = time.monotonic()
                    return operation

    def _await_state(self, subject: str | None, title: str) -> None:
        """Wait until a node pool, or the cluster, is neither being created nor deleted. Raises XpkError on failure."""
        start = time.monotonic()
        method, name = ("get_node_pool", self._pool(subject)) if subject else ("get_cluster", self.name)
        while True:
            resource = maybe(lambda: self._google.call(method, {"name": name}))
            status = resource.get("status", "RUNNING") if resource else "gone"
            if resource and status == "ERROR":
                raise explained("UNKNOWN", str(resource.get("status_message") or "GKE gave no reason"))
            if status not in ("PROVISIONING", "STOPPING"):
                return
            self._activity.update(title, status.lower())
            self._again(start)

    def wait(self, name: str, title: str) -> None:
        """Wait until an operation is done. Raises XpkError with the cause if it failed, TimedOutError."""
        start = time.monotonic()
        self._activity.update(title, "pending")
        while True:
            self._again(start)
            operation = self._look(name, start)
            if operation.get("status") == "DONE":
                self._advanced_at = time.monotonic()
                if error := of_operation(operation):
                    raise error
                return
            self._activity.update(title, _progress(operation))

    def _wait_for_other(self, name: str) -> None:
        """Wait for another client's operation; its result is not checked."""
        start = time.monotonic()
        while self._look(name, start).get("status", "DONE") != "DONE":
            self._again(start)

    def _await_change(self, change: Change, title: str) -> None:
        """Wait for operations that an earlier run or another client has started."""
        try:
            if change.body.get("name"):
                self.wait(str(change.body["name"]), title)
            else:
                self._await_state(None if change.subject == self._cluster else change.subject, title)
        finally:
            self._activity.clear(title)

    def _look(self, name: str, start: float) -> Dict:
        operation = self._list(start).get(name)
        if operation is None:
            operation = maybe(lambda: self._google.call("get_operation", {"name": f"{self.parent}/operations/{name}"}))
        return operation or {"status": "DONE"}

    def _list(self, start: float) -> Dict:
        """Return the operations, as listed after `start` and no longer ago than the current pause."""
        with self._lock:
            now = time.monotonic()
            if self._listed_at < max(start, now - self._pause_seconds(start)):
                listed = self._google.call("list_operations", {"parent": self.parent})
                self._listed = {operation["name"]: operation for operation in listed.get("operations", [])}
                self._listed_at = now
            return self._listed

    def _again(self, start: float) -> None:
        """Pause between two polls. Raises TimedOutError after the time limit."""
        if time.monotonic() - start > self._timeout:
            raise TimedOutError(
                f"timed out after {self._timeout:.0f}s",
                hint=f"{AGAIN}, and running operations continue; --timeout TIME waits longer",
            )
        self._activity.pause(self._pause_seconds(start))

    def _pause_seconds(self, start: float) -> float:
        """Return the pause before the next poll: short at first, then a share of the time since `start`."""
        return min(self._poll, max(self._poll * _FIRST_POLL, (time.monotonic() - start) * _GROWTH))

    def _pool(self, pool: str | None) -> str:
        return f"{self.name}/nodePools/{pool}"


def network_names(bodies: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the names of a data network, its subnetwork and its firewall rule."""
    return bodies["network"]["name"], bodies["subnetwork"]["name"], bodies["firewall"]["name"]


_UPDATES = {"autoscaling": "cluster_autoscaling"}  # fields with another name in UpdateCluster


_UPDATE_TITLES = {
    "control_plane_endpoints_config": "change access to the control plane",
    "workload_identity_config": "enable workload identity",
    "addons_config": "enable the add-ons",
    "autoscaling": "set the limits of autoprovisioning",
}


def title_of(change: Change, location: str) -> str:
    """Return the title of a change."""
    subject, body = change.subject, change.body
    if change.kind == "create-policy":
        return f"create workload policy {subject}"
    if change.kind == "create-network":
        subnetwork = body["subnetwork"]
        if change.why:
            return f"complete network {subject}{_because(change)}"
        return f"create network {subject} with subnetwork {subnetwork['name']}, {subnetwork['ipCidrRange']}"
    if change.kind == "delete-network":
        return f"delete network {subject}"
    if change.kind == "create-cluster":
        default = body["node_pools"][0]
        return (
            f"create cluster '{subject}' in {location}: control plane, "
            f"{default['initial_node_count']} x {default['config']['machine_type']} in {body['locations'][0]}"
        )
    if change.kind == "create-pool":
        config, count = body["config"], body.get("initial_node_count", 0)
        max_nodes = body.get("autoscaling", {}).get("max_node_count")
        nodes = f"up to {max_nodes}" if not count and max_nodes else str(count)
        return f"create node pool {subject}: {nodes} x {config['machine_type']}{_capacity(config)}"
    if change.kind == "update-cluster":
        return _UPDATE_TITLES.get(subject, f"change {subject} of the cluster")
    if change.kind == "update-pool":
        return f"change node pool {subject}{_because(change)}"
    if change.kind == "delete-pool":
        return f"delete node pool {subject}{_because(change)}"
    if change.kind == "delete-cluster":
        return f"delete cluster '{subject}' with its node pools"
    return f"wait for {subject}{_because(change)}"


def _because(change: Change) -> str:
    return f": {change.why}" if change.why else ""


def _capacity(config: Mapping[str, Any]) -> str:
    values = config.get("reservation_affinity", {}).get("values")
    if values:
        return f", reservation {values[0]}"
    return ", spot" if config.get("spot") else ", flex-start" if config.get("flex_start") else ""


def _progress(operation: Mapping[str, Any]) -> str:
    metrics = {metric.get("name"): metric for metric in operation.get("progress", {}).get("metrics", [])}
    done, total = (int(metrics.get(f"nodes {word}", {}).get("int_value", 0)) for word in ("done", "total"))
    state = str(operation.get("status", "PENDING")).lower()
    return f"{state}, {done}/{total} nodes" if total else state
