"""Checks of --min-slices: only the bundled trainer has elastic slices, and JobSet must be able to restart one alone."""

from __future__ import annotations

from xpk.api.base import ObjectApi
from xpk.api.controller_config import (
    JOBSET_CONFIG_MAP,
    JOBSET_DEPLOYMENT,
    JOBSET_NAMESPACE,
    RESTART_JOB,
    has_gate,
    has_gate_argument,
    read_config,
)
from xpk.jobs.create.destination import Destination
from xpk.jobs.create.notice import Notice, Report
from xpk.jobs.create.workload import Workload
from xpk.model.errors import AuthorizationError, MissingToolError, NotFoundError, UsageError


def check_program(request: Workload) -> None:
    """Raise UsageError if --min-slices is set for other programs than the bundled trainer."""
    others = [
        *([] if request.runs_trainer else ["--command"]),
        *(["--launcher ray"] if request.launcher == "ray" else []),
    ]
    if request.min_slices is not None and others:
        words = " and ".join(others)
        raise UsageError(
            f"--min-slices and {words} exclude each other: only the bundled trainer has elastic slices",
            hint=f"omit --min-slices, or {words}",
        )


def check_jobset(request: Workload, destination: Destination, report: Report) -> None:
    """Raise MissingToolError if the cluster's JobSet cannot restart a slice alone; warn if that is not known."""
    if request.min_slices is None or destination.api is None or destination.target.on_this_machine:
        return
    needed = f"feature gate {RESTART_JOB}, which --min-slices requires"
    is_on = _restarts_jobs(destination.api)
    if is_on is None:
        place = f"ConfigMap '{JOBSET_CONFIG_MAP}' or Deployment '{JOBSET_DEPLOYMENT}' in namespace '{JOBSET_NAMESPACE}'"
        report(Notice(f"cannot read {place}: JobSet may lack {needed}", is_warning=True))
    elif not is_on:
        raise MissingToolError(
            f"JobSet of cluster '{destination.cluster}' lacks {needed}",
            hint=f"`xpk cluster adapt {destination.cluster}` enables it",
        )


def _restarts_jobs(api: ObjectApi) -> bool | None:
    """Return whether JobSet has the gate; None if its settings do not exist or this user may not read them."""
    config = read_config(api, JOBSET_CONFIG_MAP, JOBSET_NAMESPACE)
    if config is None:
        return None
    if has_gate(config, RESTART_JOB):
        return True
    try:
        return has_gate_argument(api.get("Deployment", JOBSET_DEPLOYMENT, JOBSET_NAMESPACE), RESTART_JOB)
    except (NotFoundError, AuthorizationError):
        return None
