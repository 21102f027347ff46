"""Creation of a workload that may run on several clusters: a held copy on each, after all of them were checked."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from xpk.api.base import ObjectApi
from xpk.jobs.create import create, submit
from xpk.jobs.create.destination import Destination
from xpk.jobs.create.notice import Notice, Report, ignore
from xpk.jobs.create.resolve import Resolved, resolve
from xpk.jobs.create.submit import Price, no_price
from xpk.jobs.create.workload import Workload
from xpk.jobs.placement.lease import LeaseFile
from xpk.jobs.placement.placer import Placer
from xpk.model.errors import MissingToolError, Problems, UsageError, XpkError
from xpk.model.specs import CopySpec, WorkloadSpec
from xpk.proc import Runner
from xpk.storage import in_bucket

MOVE_AFTER_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class ResolvedCopies:
    """The checked copies of a workload, the preferred one first, and their destinations."""

    copies: tuple[Resolved, ...]
    destinations: tuple[Destination, ...]

    @property
    def spec(self) -> WorkloadSpec:
        """Return the spec of the preferred copy."""
        return self.copies[0].spec

    @property
    def copy(self) -> CopySpec:
        """Return what the preferred copy states about all."""
        if self.spec.copy is None:
            raise ValueError("the workload has one cluster")
        return self.spec.copy


def check_clusters(clusters: Sequence[str], move_after: float = MOVE_AFTER_SECONDS) -> None:
    """Raise UsageError for a list of clusters, or a time, that no workload can have."""
    if twice := sorted({one for one in clusters if clusters.count(one) > 1}):
        raise UsageError(f"--clusters names {', '.join(twice)} twice", hint="name each cluster once")
    if not move_after >= 0:
        raise UsageError(f"--move-after must not be negative, got {move_after:g}", hint="use 30s")
    if len(clusters) < 2:
        raise UsageError("--clusters requires at least two clusters", hint="use --cluster for a single one")


def resolve_copies(
    request: Workload,
    clusters: Sequence[str],
    find: Callable[[str], Destination],
    *,
    move_after: float = MOVE_AFTER_SECONDS,
    report: Report = ignore,
    problems: Problems | None = None,
    runner: Runner | None = None,
    price: Price = no_price,
) -> ResolvedCopies:
    """Check a workload on all its clusters; `find` returns a cluster as a destination. Creates nothing.

    Raises UsageError with everything that is wrong, each line with the cluster that it is about.
    """
    wrong = problems or Problems()
    wrong.read(None, check_clusters, clusters, move_after)
    run, resolved, destinations = secrets.token_hex(8), list[Resolved](), list[Destination]()
    refusals: dict[str, XpkError] = {}
    for cluster in filter(None, dict.fromkeys(clusters)):
        try:
            destination, tell = find(cluster), ignore if resolved else report  # the others have the same warnings
            one = resolve(request, destination, tell, Problems(), runner)
            copy = CopySpec(
                run=run,
                cluster=cluster,
                clusters=tuple(clusters),
                queue=one.spec.queue,
                move_after_seconds=move_after,
            )
            # A run moves with the hosts of all its slices.
            one = replace(one, spec=replace(one.spec, copy=copy, replaces_slices=False))
            _check(one, destination, price, tell)
            destinations.append(destination)
            resolved.append(one)
        except MissingToolError:
            raise
        except XpkError as error:
            refusals[cluster] = error
    if not refusals and resolved:
        wrong.read(None, _check_output, resolved)
    _raise(request.name, refusals, wrong)
    return ResolvedCopies(tuple(resolved), tuple(destinations))


def preflight(resolved: ResolvedCopies, report: Report = ignore, runner: Runner | None = None) -> None:
    """Check the copies on this machine, once for each shape of slices; see `submit.preflight`."""
    for one in {copy.spec.shape.name: copy for copy in reversed(resolved.copies)}.values():
        submit.preflight(one, report, runner)


def create_copies(resolved: ResolvedCopies, *, report: Report = ignore, price: Price = no_price) -> None:
    """Create all copies, which are held; if one cannot be created, those before it are deleted again."""
    created: list[ObjectApi] = []
    try:
        for one, destination in zip(resolved.copies, resolved.destinations, strict=True):
            # Only the first one may find, or move aside, the output of an earlier workload of the name.
            request = one.request if not created else replace(one.request, resume=True, fresh=False)
            submit.create_resolved(replace(one, request=request), destination, report=report, price=price)
            created.append(destination.reached())
            report(Notice(f"held copy created on '{destination.cluster}'"))
    except BaseException:
        _delete(resolved.spec, created)
        raise


def delete_created(resolved: ResolvedCopies) -> None:
    """Delete copies that were created and cannot be released; those that cannot be deleted stay held."""
    _delete(resolved.spec, [destination.reached() for destination in resolved.destinations])


def _delete(spec: WorkloadSpec, apis: Sequence[ObjectApi]) -> None:
    for api in apis:
        with suppress(XpkError):
            api.delete("JobSet", spec.name, spec.namespace)


def placer_of(resolved: ResolvedCopies, file: LeaseFile) -> Placer:
    """Return the placer of copies that were created."""
    apis = {destination.cluster: destination.reached() for destination in resolved.destinations}
    return Placer(resolved.spec.name, resolved.spec.namespace, resolved.copy, file, apis.__getitem__)


def _check(one: Resolved, destination: Destination, price: Price, report: Report) -> None:
    """Check what needs the cluster. Raises XpkError."""
    api, spec = destination.reached(), one.spec
    create.check_fits(api, destination.queue, spec, cluster=destination.cluster)
    create.check_free(api, spec, cluster=destination.cluster)
    price(spec, one.request.max_cost)
    submit.check_folders(api, one, destination.cluster, report)


def _check_output(resolved: Sequence[Resolved]) -> None:
    """Raise UsageError unless all copies write to one place that all clusters see."""
    places = {one.spec.copy.cluster: one.spec for one in resolved if one.spec.copy}
    here = all(spec.target.on_this_machine for spec in places.values())
    hint = "pass --output-root " + ("with a folder that all of them share" if here else "gs://BUCKET/PATH")
    if without := [cluster for cluster, spec in places.items() if not spec.output_dir]:
        raise UsageError(f"{', '.join(without)} without an output root: copies need a common one", hint=hint)
    folders = {spec.output_dir for spec in places.values()}
    if len(folders) > 1:
        listed = ", ".join(f"{spec.target.output_root} on {cluster}" for cluster, spec in places.items())
        raise UsageError(f"the clusters have different output roots: {listed}", hint=hint)
    if not here and not in_bucket(next(iter(folders))):
        raise UsageError("several clusters do not share a folder", hint=hint)


def _raise(name: str, refusals: Mapping[str, XpkError], wrong: Problems) -> None:
    """Raise UsageError for all problems, with the clusters that they are about unless all have them.

    An exit code that all errors share is kept.
    """
    clusters_of: dict[tuple[str, str], list[str]] = {}
    for cluster, error in refusals.items():
        for problem in error.problems if isinstance(error, UsageError) else (error.message,):
            clusters_of.setdefault((problem, error.hint), []).append(cluster)
    codes = {error.exit_code for error in refusals.values()} | ({UsageError.exit_code} if wrong else set())
    for (problem, hint), clusters in clusters_of.items():
        names_it = f"'{clusters[0]}'" in problem or len(clusters) == len(refusals) > 1
        wrong.add(problem if names_it else f"cluster '{clusters[0]}': {problem}", hint=hint)
    try:
        wrong.check(f"workload '{name}' cannot be created", hint=create.HELP)
    except UsageError as error:
        if len(codes) == 1:
            error.exit_code = codes.pop()
        raise
