"""Choice of what a disrupted host costs: new pods for its slice, or for all slices."""

from __future__ import annotations

import re
from dataclasses import replace

from xpk.api.controller_config import JOBSET_CONFIG_MAP, JOBSET_NAMESPACE, RESTART_JOB, has_gate, read_config
from xpk.jobs.create.destination import Destination
from xpk.model.specs import WorkloadSpec

# Programs in a command by which its image is known to have Python.
_PYTHON = re.compile(r"""(?<![^\s/;&|("'])(?:python[\d.]*|torchrun|accelerate|deepspeed)(?![\w./-])""")


def choose(spec: WorkloadSpec, destination: Destination) -> WorkloadSpec:
    """Return a spec that replaces single slices if its hosts can wait for one and the cluster's JobSet can do that."""
    return replace(spec, replaces_slices=_can_wait(spec) and _restarts_slices(destination))


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


def _restarts_slices(destination: Destination) -> bool:
    """Return whether the cluster's JobSet is known to restart single slices, by at most one request.

    An argument of the controller that has the same effect would need another one: it is left out.
    """
    if destination.target.on_this_machine:
        return True
    config = read_config(destination.api, JOBSET_CONFIG_MAP, JOBSET_NAMESPACE) if destination.api else None
    return config is not None and has_gate(config, RESTART_JOB)
