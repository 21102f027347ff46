"""Creation of clusters, and the list of all."""

from __future__ import annotations

from collections.abc import Callable

from xpk.capacity import clusters as capacity
from xpk.capacity.options import ProviderOptions
from xpk.capacity.plan.plan import Plan
from xpk.capacity.provider import ClusterInfo
from xpk.jobs.create.notice import Notice, ignore


def create_cluster(
    name: str,
    accelerator_type: str,
    *,
    num_slices: int | None = None,
    num_nodes: int | None = None,
    provider: str | None = None,
    options: ProviderOptions | None = None,
    dry_run: bool = False,
    on_progress: Callable[[Notice], None] = ignore,
) -> Plan:
    """Create a cluster, or the missing parts of one, and return the plan; with `dry_run`, only plan.

    `num_slices`: None keeps the slices of an existing cluster; 1 in a new one. `provider`: the default is
    that of `options`, or "local". `options`: such as `xpk.GkeOptions(project="p", zone="us-east5-b", spot=True)`.
    `on_progress` gets a line for each step, and the warnings. Raises

    * UsageError: the request is invalid; `problems` has all of them
    * ConflictError: a cluster of this name exists in another shape or of another provider
    * AuthorizationError, CapacityError, QuotaExceeded: the cloud does not allow it, or has not enough capacity
    * MissingToolError: this machine lacks a package or a program
    """
    shape = name, accelerator_type, num_slices
    _, plan = capacity.plan_create(*shape, num_nodes=num_nodes, provider=provider, options=options, is_dry=dry_run)
    return plan if dry_run else carry_out(plan, on_progress)


def clusters(
    *,
    provider: str | None = None,
    options: ProviderOptions | None = None,
    on_progress: Callable[[Notice], None] = ignore,
) -> list[ClusterInfo]:
    """Return all clusters, or those of one provider; `xpk.GkeOptions(project="p")` for all of a project.

    `on_progress` gets a warning for each cluster that cannot be described.
    """
    return capacity.find_clusters(provider, options, warn=warn(on_progress))


def carry_out(plan: Plan, on_progress: Callable[[Notice], None]) -> Plan:
    """Carry out a plan and return it."""
    plan.carry_out(lambda title: on_progress(Notice(title)), warn=warn(on_progress))
    return plan


def warn(on_progress: Callable[[Notice], None]) -> Callable[[str], None]:
    """Return a function that passes a text on as a warning."""
    return lambda text: on_progress(Notice(text, is_warning=True))
