"""Checks of --min-slices: only the bundled trainer has elastic slices, and JobSet must be able to restart one alone."""

from __future__ import annotations

from xpk.api.controller_config import JOBSET_CONFIG_MAP, JOBSET_NAMESPACE, RESTART_JOB, enabled_gates, read_config
from xpk.jobs.create.destination import Destination
from xpk.jobs.create.notice import Notice, Report
from xpk.jobs.create.workload import Workload
from xpk.model.errors import MissingToolError, UsageError


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
    config = read_config(destination.api, JOBSET_CONFIG_MAP, JOBSET_NAMESPACE)
    if config is None:
        place = f"ConfigMap '{JOBSET_CONFIG_MAP}' in namespace '{JOBSET_NAMESPACE}'"
        report(Notice(f"cannot read {place}: JobSet may lack {needed}", is_warning=True))
    elif RESTART_JOB not in enabled_gates(config):
        raise MissingToolError(
            f"JobSet of cluster '{destination.cluster}' lacks {needed}",
            hint=f"`xpk cluster adapt {destination.cluster}` enables it",
        )
