"""Checks of slices that workloads share by parts, or that are cubes, against those of the cluster. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from xpk.capacity.gke.observed.slices import is_cube, is_shared
from xpk.capacity.gke.observed.state import Observed, shape_of_pool
from xpk.capacity.gke.request.options import GkeOptions
from xpk.model import super_slices
from xpk.model.errors import ConflictError, UsageError
from xpk.model.specs import ClusterSpec


def check_slicing(spec: ClusterSpec, request: GkeOptions, have: Observed) -> None:
    """Raise ConflictError if slices cannot be shared or formed, or are used in another way by now."""
    for name, pool in have.pools.items():
        if shape_of_pool(pool) == spec.shape:
            _check_alike(spec, name, pool)
        elif spec.sub_slicing and is_shared(pool):
            raise ConflictError(
                f"slices of another type are shared already: {name}",
                hint="use another cluster: only one type of a cluster can be shared",
            )
    flag = "--super-slicing" if request.super_slicing else "--sub-slicing"
    for path, reservation in have.reservations.items():
        is_sliceable = reservation and "resource" not in reservation  # only such reservations have blocks
        if not (request.sub_slicing or request.super_slicing) or not is_sliceable or not reservation:
            continue
        if reservation.get("deploymentType") != "DENSE":
            raise ConflictError(
                f"reservation {path} is not a Cluster Director reservation, which {flag} requires",
                hint='`gcloud compute reservations list --filter="deploymentType=DENSE"` lists the existing ones',
            )


def _check_alike(spec: ClusterSpec, name: str, pool: Mapping[str, Any]) -> None:
    for flag, is_used, is_requested in (
        ("--sub-slicing", is_shared(pool), spec.sub_slicing),
        ("--super-slicing", is_cube(pool), spec.super_slicing),
    ):
        if is_used != is_requested:
            raise ConflictError(
                f"slice {name} was created {'with' if is_used else 'without'} {flag}",
                hint="use the same option, or another cluster",
            )


def check_version(spec: ClusterSpec, version: str | None, have: Observed) -> None:
    """Raise UsageError if the GKE version of the cluster is too old to form slices from cubes.

    `version`: of a new cluster, None if it is not known.
    """
    if not spec.super_slicing:
        return
    flags = "--super-slicing --sub-slicing" if spec.sub_slicing else "--super-slicing"
    least = super_slices.LEAST_VERSION_FOR_PARTS if spec.sub_slicing else super_slices.LEAST_VERSION
    current = str((have.cluster or {}).get("current_master_version") or version)
    is_whole = len(version_numbers(current)) == len(version_numbers(least))  # not a prefix such as 1.36, or `latest`
    if is_whole and version_numbers(current) < version_numbers(least):
        remedy = "upgrade the control plane" if have.cluster else f"--gke-version {least} --release-channel rapid"
        raise UsageError(f"{flags} requires GKE {least} or newer, got {current}", hint=remedy)


def version_numbers(version: str) -> list[int]:
    """Return the numbers in a version of GKE, by which versions compare."""
    return [int(part) for part in re.findall(r"\d+", version)]
