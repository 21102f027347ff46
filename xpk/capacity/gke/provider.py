"""Provider of Google Kubernetes Engine: plans from a project's state, applied with many steps in parallel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from xpk.api.base import ObjectApi, Objs
from xpk.capacity.cluster_setup import autoprovisioned_of, target_of
from xpk.capacity.fencing.machines import Machine
from xpk.capacity.gke import description
from xpk.capacity.gke.api_access import ClusterLocation, Connect, KnownClusters, check_foreign, check_project
from xpk.capacity.gke.cloud.client import Google
from xpk.capacity.gke.cloud.configuration import Endpoints
from xpk.capacity.gke.cloud.machines import read_machines
from xpk.capacity.gke.desired.checks import check, fitted, lacks, warnings, with_room
from xpk.capacity.gke.desired.networks import data_network
from xpk.capacity.gke.observed import gpudirect
from xpk.capacity.gke.observed.slices import slices_of_pools, spec_like, specs_of_cluster
from xpk.capacity.gke.observed.state import Observed, find_cluster, is_there, observe, own_networks, running_operations
from xpk.capacity.gke.planning import adapting, offline_plans, resizing
from xpk.capacity.gke.planning.difference import Change
from xpk.capacity.gke.planning.plan import draft, grown, summary_of
from xpk.capacity.gke.request.option_lines import option_lines
from xpk.capacity.gke.request.option_problems import checked
from xpk.capacity.gke.request.options import GkeOptions, region_of
from xpk.capacity.gke.steps import controllers, shrinking
from xpk.capacity.gke.steps.apply import Applier
from xpk.capacity.kubeconfig import connect
from xpk.capacity.nodes.cordon import check_deletable, closing_step
from xpk.capacity.plan.executor import Activity, Step
from xpk.capacity.plan.plan import Plan
from xpk.capacity.provider import ClusterInfo
from xpk.capacity.queues.foreign import Judgment
from xpk.capacity.state import state_of
from xpk.model.accelerators import SliceShape
from xpk.model.errors import AuthorizationError, ConflictError, NotFoundError, UsageError, XpkError
from xpk.model.specs import ClusterSpec, Target

_CLOSED = "cordon"  # the key of the step before a cluster is deleted


class GkeProvider:
    """GKE clusters. A folder below `root` stores each known one; others are found by --project."""

    name = "gke"
    quiet_seconds = 12.0  # each machine is a request; kubelets renew their leases every 10 seconds
    options_type: ClassVar[type[GkeOptions]] = GkeOptions

    def __init__(
        self,
        root: Path | None = None,
        *,
        options: GkeOptions | None = None,
        endpoints: Endpoints | None = None,
        connect: Connect = connect,
    ) -> None:
        self._options, endpoints = options or GkeOptions(), endpoints or Endpoints.read()
        self._known = KnownClusters(state_of(self.name, root), connect, emulated=bool(endpoints.gke))
        self._activity = Activity()
        self._poll = endpoints.poll_seconds
        self._google = Google(endpoints, pause=self._activity.pause, unit=min(1.0, self._poll / 5))

    def check_create(self, spec: ClusterSpec | None, *, lenient: bool = False) -> None:
        """See `Checks.check_create`."""
        check(spec, self._options, lenient=lenient)

    def plan_create(self, spec: ClusterSpec) -> Plan:
        """See `Provider.plan_create`. Adds missing slices; slices of other types stay."""
        original = self._options
        check(spec, original, lenient=True)
        request = with_room(spec, original)
        spec = fitted(spec, request)
        refusal: XpkError | None = None
        try:
            self._google.check()
        except AuthorizationError as error:
            refusal = error
        have = offline_plans.NOTHING if refusal else self._observed(request, spec.name, spec.shape)
        made = draft(spec, request, have)
        controllers.check_limits(lambda: self._api(spec.name, have.cluster), have.cluster, made.specs)
        place = ClusterLocation(project=request.project, location=have.location or request.region, zone=request.zone)
        steps = self._steps(spec.name, place, made.changes, request, have, made.specs)
        makes = any(change.kind == "create-cluster" for change in made.changes)
        if steps and (makes or self._known.place(spec.name) != place):
            steps.insert(0, self._known.step(spec.name, place, partial(self._found, spec.name, place)))
        if steps and not made.refusal:
            made = replace(made, refusal=self._others(spec.name, have.cluster, made.specs, request).refusal)
        return Plan(
            summary_of(spec, request), steps, at_once=request.at_once, activity=self._activity,
            notes=(*warnings(original, request), *((offline_plans.CREATED,) if refusal else ()), *made.notes),
            facts=made.facts | {"guess": refusal is not None}, roll_back=request.roll_back,
            refusal=made.refusal or (refusal if steps else None), lacking=tuple(lacks(original)),
        )  # fmt: skip

    def plan_adapt(
        self,
        name: str,
        *,
        fenced: bool | None = None,
        take_over: bool = False,
        stated: ClusterSpec | None = None,
        counted: bool = False,
    ) -> Plan:
        """Plan the parts that a GKE cluster lacks to run workloads on its slices. Raises NotFoundError.

        `fenced`: a node that stays unreachable is certainly dead; None keeps the recorded value.
        `take_over`: change quotas that another tool manages.
        `stated`: expected slices; `counted`: compare their number too.
        """
        location = self._known.place(name)
        check_project(name, location, self._options.project)
        request = replace(
            self._request(location, "adapt") if location else checked(self._options, command="adapt"),
            fenced=fenced,
            take_over=take_over,
        )
        try:
            place, cluster = self._found(name)
        except AuthorizationError as error:
            specs, place = [stated] if stated else [], offline_plans.place_of(request)
            changes = adapting.addon_changes(name, request, offline_plans.NOTHING)
            steps = self._steps(name, place, changes, request, offline_plans.NOTHING, specs, shrinks=True)
            return offline_plans.adaptation(name, request, specs, [self._known.step(name, place), *steps], error)
        pools = {pool["name"]: pool for pool in cluster.get("node_pools", [])}
        specs = self._specs(name, cluster)
        if not specs:
            raise UsageError(
                f"cluster '{name}' has no slices: no node pool is of an accelerator type",
                hint=f"`xpk cluster create {name} --provider gke --tpu-type TYPE ...` adds some",
            )
        have = Observed(cluster=cluster, pools=pools)
        differs = adapting.difference(stated, counted, specs) if stated else ()
        steps = self._steps(name, place, adapting.addon_changes(name, request, have), request, have, specs)
        if location != place:
            steps.insert(0, Step(f"save the location of '{name}'", partial(self._known.remember, name, place)))
        types = ", ".join(f"{spec.num_slices} x {spec.shape.name}" for spec in specs)
        notes = controllers.notes_for(lambda: self._api(name, cluster), specs, request, is_reachable=is_there(cluster))
        others = self._others(name, cluster, specs, request)
        return Plan(
            f"cluster '{name}' in {place.location}: {types}", steps, activity=self._activity,
            notes=(*option_lines(request, {}), *differs, *notes, *others.notes), refusal=others.refusal,
        )  # fmt: skip

    def plan_resize(self, name: str, num_slices: int, *, force: bool) -> Plan:
        """See `Provider.plan_resize`. New slices are like existing ones."""
        try:
            place, cluster = self._found(name)
        except AuthorizationError as error:
            return offline_plans.resizing(name, self._known.place(name), num_slices, self._options, error)
        pools = {pool["name"]: pool for pool in cluster.get("node_pools", [])}
        shape = resizing.the_shape(name, pools, self._options.tpu_type)
        slices = Observed(cluster=cluster, pools=pools).slices(shape)
        limited = {other.shape: other.max_slices for other in self._specs(name, cluster)}.get(shape)
        spec = replace(spec_like(name, shape, slices, num_slices), max_slices=limited)
        if problems := spec.problems():
            raise UsageError(f"cluster '{name}' cannot be resized", problems=problems, hint="--num-slices N")
        summary = f"cluster '{name}': {num_slices} x {shape.name}, {spec.num_chips} chips"
        existing = [key for key, pool in slices.items() if pool.get("status") != "STOPPING"]
        if len(existing) <= num_slices:
            return self._grow(summary, spec, place, cluster)
        running = running_operations(self._google, place.project, place.location, name)
        have, request = Observed(cluster=cluster, pools=pools, operations=running), self._request(place, "resize")
        up = sum(pools[key].get("status") != "ERROR" for key in existing)
        specs = self._specs(name, cluster, resized=replace(spec, num_slices=min(num_slices, up)))
        spec = replace(spec, max_slices=next((other.max_slices for other in specs if other.shape == shape), None))
        steps = self._shrink(spec, place, request, have, existing, specs, force=force)
        pool_names = [step.key.partition(":")[2] for step in steps if step.key.startswith("delete-pool:")]
        return Plan(
            summary, steps, at_once=request.at_once, activity=self._activity, roll_back=request.roll_back,
            refusal=self._others(name, cluster, specs, request, ends=force).refusal,
            question=f"Delete node pools {', '.join(pool_names)} and release their capacity?" if pool_names else "",
        )  # fmt: skip

    def _grow(self, summary: str, spec: ClusterSpec, place: ClusterLocation, cluster: Mapping[str, Any]) -> Plan:
        """Return the plan of adding slices, with the limits and checks of a create."""
        name, shape = spec.name, spec.shape
        request = resizing.request_like(self._request(place, "resize"), cluster, shape)
        have = self._observed(request, name, shape)
        changes = resizing.growing(have, name, shape, spec.num_slices, partial(self._pool_of, name, place))
        made = grown(spec, request, have, changes)
        controllers.check_limits(lambda: self._api(name, cluster), cluster, made.specs)
        state = shrinking.read_pool_state(name, partial(self._api, name, cluster))
        steps = shrinking.uncordon_steps(state, list(have.slices(shape)))
        steps += self._steps(name, place, changes, request, have, made.specs)
        notes = controllers.notes_for(
            lambda: self._api(name, cluster), made.specs, request, is_reachable=bool(steps) and is_there(cluster)
        )
        return Plan(
            summary, steps, at_once=request.at_once, activity=self._activity, roll_back=request.roll_back,
            notes=(*made.notes, *notes), facts=made.facts,
            refusal=made.refusal or self._others(name, cluster, made.specs, request).refusal,
        )  # fmt: skip

    def plan_delete(self, name: str, *, force: bool) -> Plan:
        """See `Provider.plan_delete`."""
        place, changes = self._known.place(name), list[Change]()
        try:
            place, cluster = self._found(name)
            changes.append(self._deletion(name, cluster, force=force))
        except NotFoundError:
            if place is None:
                raise
        except AuthorizationError as error:
            request = self._request(place, "delete") if place else checked(self._options, command="delete")
            place = place or offline_plans.place_of(request)
            steps = self._applier(name, place, request).steps([Change("delete-cluster", name)])
            return offline_plans.deletion(name, place, steps, error)
        region, before = region_of(place.location), tuple(change.key for change in changes)
        for network in own_networks(self._google, place.project, name, place.location):
            parts = data_network(name, region, network.rpartition("-")[2]).parts
            changes.append(Change("delete-network", network, parts, before))
        request = self._request(place, "delete")
        steps = self._applier(name, place, request).steps(changes)
        if any(_CLOSED in change.after for change in changes):
            steps.insert(0, closing_step(self._api(name, cluster), name, key=_CLOSED))
        forget = partial(self._known.forget, name)
        steps.append(
            Step(f"remove the connection to '{name}'", forget, key="forget", after=tuple(step.key for step in steps))
        )
        return Plan(
            f"delete cluster '{name}'; output in buckets stays", steps, at_once=request.at_once, activity=self._activity
        )

    def _deletion(self, name: str, cluster: Mapping[str, Any], *, force: bool) -> Change:
        """Return the plan of deleting a cluster. Raises ConflictError if workloads run on it, unless forced."""
        if cluster.get("status") == "STOPPING":
            return Change("wait", name, {}, why="it is being deleted")
        if not force and cluster.get("status") not in ("ERROR", "PROVISIONING"):
            check_deletable(self._api(name, cluster), name)
            return Change("delete-cluster", name, {}, (_CLOSED,))
        return Change("delete-cluster", name)

    def names(self) -> list[str]:
        """See `Provider.names`. The known clusters; with --project, all of the project's."""
        cluster_names = set(self._known.names())
        if project := self._options.project:
            listed = self._google.call("list_clusters", {"parent": f"projects/{project}/locations/-"})
            cluster_names |= {str(cluster["name"]) for cluster in listed.get("clusters", [])}
        return sorted(cluster_names)

    def describe(self, name: str, *, brief: bool = False) -> ClusterInfo:
        """See `Provider.describe`. Slices are node pools; workloads are included if the cluster is reachable."""
        place, cluster = self._found(name)
        known = {"name": name, "provider": self.name, "location": f"{place.project}/{place.location} ({place.zone})"}
        api = partial(self._api, name, cluster)
        return description.describe(cluster, self._specs(name, cluster), api, brief=brief, **known)

    def slices_of(self, name: str, shape: SliceShape) -> int:
        """See `Counts.slices_of`. Excludes autoprovisioned ones."""
        return len(Observed(pools=self._pools_now(name)).slices(shape))

    def connect(self, name: str) -> ObjectApi:
        """See `Provider.connect`."""
        if self._known.place(name) and self._known.has_kubeconfig(name):
            return self._known.connect(name, None)
        return self._api(name, self._found(name)[1])

    def kubeconfig(self, name: str) -> str:
        """See `Provider.kubeconfig`. Its tokens come from google-auth: gcloud is not needed."""
        return self._known.kubeconfig(self._found(name)[1])

    def target(self, name: str) -> Target:
        """See `Provider.target`."""
        return target_of(self.connect(name), f"run `xpk cluster adapt {name} --provider gke` to continue")

    def machines(self, name: str, nodes: Objs) -> Mapping[str, Machine]:
        """See `Machines.machines`."""
        place = self._known.place(name) or self._found(name)[0]
        return read_machines(self._google, place.project, nodes)

    def find(self, name: str) -> None:
        """Keep where a cluster is, unless that is known here. Raises NotFoundError; UsageError if it is elsewhere."""
        location = self._known.place(name)
        check_project(name, location, self._options.project)
        if location is None:
            check_foreign(name)
            place, _ = self._found(name)
            self._known.remember(name, replace(place, zone=self._options.zone or place.zone))

    def _steps(
        self,
        name: str,
        place: ClusterLocation,
        changes: list[Change],
        request: GkeOptions,
        have: Observed,
        specs: list[ClusterSpec],
        *,
        shrinks: bool = False,
    ) -> list[Step]:
        steps = self._applier(name, place, request).steps(changes, may_fail=request.ignore_nodepool_creation_errors)
        steps += controllers.steps_for(
            name,
            specs,
            request,
            connect=lambda: self._api(name, self._found(name, place)[1]),
            # Slices that do not come up get no quota; those that are about to be removed have none already.
            specs=lambda: self._specs_now(name, place, specs) if changes else specs,
            # A slice that is about to be removed need not be ready.
            slices=None
            if shrinks
            else lambda: slices_of_pools(self._pools_now(name, place) if changes else have.pools, with_nodes=True),
            is_reachable=is_there(have.cluster),
            after=[change.key for change in changes],
            activity=self._activity,
            poll=self._poll,
            data_networks=gpudirect.network_configs([*have.pools.values(), *(change.body for change in changes)]),
        )
        return steps

    def _shrink(
        self,
        spec: ClusterSpec,
        place: ClusterLocation,
        request: GkeOptions,
        have: Observed,
        existing: list[str],
        specs: list[ClusterSpec],
        *,
        force: bool,
    ) -> list[Step]:
        """Return the plan of removing slices; uncordon those that an earlier run cordoned and that stay."""
        name = spec.name
        broken = frozenset(key for key in existing if have.pools[key].get("status") == "ERROR")
        state = replace(
            shrinking.read_pool_state(name, partial(self._api, name, have.cluster), must=not force), broken=broken
        )
        try:
            going = shrinking.choose(state, existing, spec, force=force)
        except ConflictError as error:
            return shrinking.abort_steps(state, existing, error)

        def delete(after: Mapping[str, tuple[str, ...]]) -> list[Step]:
            changes = [Change("delete-pool", pool, {}, keys) for pool, keys in after.items()]
            return self._applier(name, place, request).steps(changes)

        steps = shrinking.steps_of(
            state, spec, going, self._steps(name, place, [], request, have, specs, shrinks=True), delete,
            before=self._specs(name, have.cluster or {}), force=force, pause=self._activity.pause, poll=self._poll,
        )  # fmt: skip
        return [*shrinking.uncordon_steps(state, [pool for pool in existing if pool not in going]), *steps]

    def _others(
        self, name: str, cluster: Any, specs: list[ClusterSpec], request: GkeOptions, *, ends: bool = False
    ) -> Judgment:
        """Return the quota changes of queues that another tool made, for these slices."""
        connect = partial(self._api, name, cluster)
        return controllers.judge_others(connect, specs, request, is_reachable=is_there(cluster), ends=ends)

    def _applier(self, name: str, place: ClusterLocation, request: GkeOptions) -> Applier:
        return Applier(
            self._google, self._activity, project=place.project, location=place.location, cluster=name,
            timeout=request.timeout_seconds, poll=self._poll,
        )  # fmt: skip

    def _found(self, name: str, place: ClusterLocation | None = None) -> tuple[ClusterLocation, dict[str, Any]]:
        """Return a cluster's location and GKE's description of it. Raises NotFoundError."""
        place = place or self._known.place(name)
        project = place.project if place else self._options.project
        if not project:
            raise NotFoundError(f"cluster '{name}' not found", hint="`xpk cluster list --provider gke --project P`")
        self._google.check()
        cluster = find_cluster(self._google, project, name)
        if cluster is None:
            hint = f"`xpk cluster list --provider gke --project {project}`"
            raise NotFoundError(f"cluster '{name}' not found in project {project}", hint=hint)
        zone = place.zone if place else str(next(iter(cluster.get("locations", [])), ""))
        return ClusterLocation(project=project, location=str(cluster["location"]), zone=zone), cluster

    def _api(self, name: str, cluster: Mapping[str, Any] | None) -> ObjectApi:
        return self._known.connect(name, cluster)

    def _pool_of(self, name: str, place: ClusterLocation, pool: str) -> dict[str, Any]:
        """Return a node pool from v1beta1."""
        where = f"projects/{place.project}/locations/{place.location}/clusters/{name}"
        return self._google.call("get_node_pool", {"name": f"{where}/nodePools/{pool}"}, beta=True)

    def _observed(self, request: GkeOptions, name: str, shape: SliceShape) -> Observed:
        have = observe(self._google, request, name, shape)
        made = controllers.autoprovisioned(lambda: self._api(name, have.cluster), have.cluster)
        return replace(have, autoprovisioned=made)

    def _specs(self, name: str, cluster: Mapping[str, Any], resized: ClusterSpec | None = None) -> list[ClusterSpec]:
        made = controllers.autoprovisioned(lambda: self._api(name, cluster), cluster)
        return specs_of_cluster(name, cluster, made, resized)

    def _specs_now(self, name: str, place: ClusterLocation, planned: list[ClusterSpec]) -> list[ClusterSpec]:
        return specs_of_cluster(name, self._found(name, place)[1], autoprovisioned_of(planned))

    def _pools_now(self, name: str, place: ClusterLocation | None = None) -> dict[str, dict[str, Any]]:
        return {pool["name"]: pool for pool in self._found(name, place)[1].get("node_pools", [])}

    def _request(self, place: ClusterLocation, command: str) -> GkeOptions:
        return checked(replace(self._options, project=place.project, zone=place.zone), command=command)
