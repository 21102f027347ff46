"""Choice of what a disrupted host costs: new pods for its slice, or for all slices."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from xpk.api.base import ObjectApi
from xpk.api.controller_config import RESTART_JOB
from xpk.jobs.create.destination import Destination
from xpk.model.errors import XpkError
from xpk.model.specs import WorkloadSpec
from xpk.render import render_workload

Created = TypeVar("Created")

# Programs in a command by which its image is known to have Python.
_PYTHON = re.compile(r"""(?<![^\s/;&|("'])(?:python[\d.]*|torchrun|accelerate|deepspeed)(?![\w./-])""")


def choose(spec: WorkloadSpec, destination: Destination) -> WorkloadSpec:
    """Return a spec that replaces single slices if its hosts can wait for one; JobSet may still refuse it."""
    is_known = destination.api is not None or destination.target.on_this_machine
    return replace(spec, replaces_slices=is_known and _can_wait(spec))


def accepted(spec: WorkloadSpec, create: Callable[[WorkloadSpec], Created]) -> tuple[WorkloadSpec, Created]:
    """Return a spec that the cluster's JobSet accepts, and what `create` has created of it.

    A JobSet without the feature gate, or of a version without it, refuses a spec that replaces single slices; then all
    slices get new pods. Nobody has to read its configuration beforehand, which few users may.
    """
    try:
        return spec, create(spec)
    except XpkError as error:
        if not _is_about_slices(spec, error):
            raise
    spec = replace(spec, replaces_slices=False)
    return spec, create(spec)


def try_out(spec: WorkloadSpec, api: ObjectApi | None) -> WorkloadSpec:
    """Return a spec that the cluster's JobSet accepts, as a dry run says; errors for other reasons do not matter."""
    if spec.replaces_slices and api:
        try:
            api.create(render_workload(spec)[-1], dry_run=True)
        except XpkError as error:
            return replace(spec, replaces_slices=not _is_about_slices(spec, error))
    return spec


def _is_about_slices(spec: WorkloadSpec, error: XpkError) -> bool:
    """Return whether an error refuses a spec because it replaces single slices."""
    return spec.replaces_slices and RESTART_JOB in error.message


def _can_wait(spec: WorkloadSpec) -> bool:
    """Return whether the hosts of other slices can stay in their pods, because supervisors run there."""
    is_placed_anew = spec.within is not None or spec.copy is not None  # by Kueue as a whole, or on another cluster
    has_others = spec.num_slices > 1 and not spec.min_slices
    # Supervisors need the slice's variables, which GKE's webhook may leave out for a TPU slice of one host.
    has_place = spec.shape.hosts > 1 or spec.target.sets_slice_environment
    return spec.restart_in_place and has_others and has_place and not is_placed_anew and _has_python(spec)


def _has_python(spec: WorkloadSpec) -> bool:
    """Return whether the hosts are known to have Python: without supervisors, nobody would end the other slices."""
    return spec.target.on_this_machine or any(map(_PYTHON.search, spec.command))
