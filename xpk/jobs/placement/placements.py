"""Placement of a workload as its status shows it, and its placer as its objects describe it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from xpk.api.base import Obj, ObjectApi
from xpk.jobs.output.roots import OutputRoots
from xpk.jobs.placement.placer import Connect, Placer, Scene
from xpk.jobs.status.jobset import copy_spec
from xpk.jobs.status.reader import not_found
from xpk.model import names
from xpk.model.errors import ConflictError, NotFoundError
from xpk.model.status import Placement
from xpk.storage import open_folder


class NotPlaced(ConflictError):
    """A workload that has only one cluster."""


@dataclass(frozen=True, slots=True)
class _Claim:
    """See `xpk.jobs.output.roots.Claim`."""

    name: str
    namespace: str
    output_dir: str


def placer_of(
    api: ObjectApi, roots: OutputRoots, name: str, namespace: str, connect: Connect, *, writes: bool = True
) -> Placer:
    """Return the placer of a workload, from the copy that one cluster has.

    Raises NotFoundError, NotPlaced for a workload of one cluster, ConflictError for output elsewhere than below `roots`
    unless the placer only reads.
    """
    try:
        jobset = api.get("JobSet", name, namespace)
    except NotFoundError:
        raise not_found(api, name, namespace) from None
    spec = copy_spec(jobset)
    if spec is None:
        raise NotPlaced(
            f"workload '{name}' has only one cluster", hint="`xpk workload create --clusters A,B` creates copies"
        )
    claim = _claim_of(jobset)
    folder = roots.to_write(name, namespace, claim.output_dir) if writes else roots.to_read(claim)
    return Placer(name, namespace, spec, open_folder(folder).slot(names.LEASE_FILE), cache(connect))


def _claim_of(jobset: Obj) -> _Claim:
    meta = jobset["metadata"]
    folder = str((meta.get("annotations") or {}).get(names.OUTPUT_ANNOTATION, ""))
    return _Claim(meta["name"], meta["namespace"], folder)


def chosen_cluster(scene: Scene, run: str) -> str:
    """Return the cluster that the lease names; the one where the workload runs or may run if there is no lease."""
    if scene.lease and scene.lease.run == run and scene.lease.cluster in scene.copies:
        return scene.lease.cluster
    released = [cluster for cluster, copy in scene.copies.items() if copy.view.is_released]
    return next(iter(released or scene.copies))


def placements(scene: Scene, run: str) -> tuple[Placement, ...]:
    """Return the copies, the preferred one first."""
    chosen = chosen_cluster(scene, run)
    return tuple(
        Placement(cluster=cluster, state=str(copy.view.state), reason=copy.view.reason, is_chosen=cluster == chosen)
        for cluster, copy in scene.copies.items()
    )
