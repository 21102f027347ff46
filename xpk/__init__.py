"""Run and monitor multislice training jobs. The Python API is loaded on first use; docs/python-api.md describes it."""

from xpk.version import __version__

TYPE_CHECKING = False  # as in `typing`, whose import would cost more than this module
if TYPE_CHECKING:
    from xpk.capacity.gke.request.options import GkeOptions
    from xpk.capacity.kind.options import KindOptions
    from xpk.capacity.plan.plan import Plan
    from xpk.capacity.provider import ClusterInfo
    from xpk.checks import check_hosts, return_node
    from xpk.cli.translate.api import translate
    from xpk.cli.translate.flags import Translation
    from xpk.client import Cluster, WorkloadHandle, clusters, create_cluster
    from xpk.client.placement import locate, place, submit
    from xpk.jobs.create.notice import Notice
    from xpk.jobs.create.workload import Workload
    from xpk.jobs.deletion import Deletion
    from xpk.jobs.host_logs import HostLine
    from xpk.jobs.output.folder import Progress
    from xpk.jobs.preflight import CheckResult, HostChecks, Preflight
    from xpk.jobs.simulation.live import QueueSimulation
    from xpk.jobs.simulation.what_if import WhatIf
    from xpk.jobs.usage.figures import Usage
    from xpk.model.errors import (
        AuthorizationError,
        CapacityError,
        ConflictError,
        MissingToolError,
        Modified,
        NameTaken,
        NotAuthorized,
        NotFoundError,
        OutputExists,
        QuotaExceeded,
        TimedOutError,
        UnavailableError,
        UsageError,
        WorkloadFailedError,
        XpkError,
    )
    from xpk.model.forecast import QueueForecast, StartEstimate
    from xpk.model.status import Phase, WorkloadStatus
    from xpk.planning.capacity import search_capacity
    from xpk.planning.goodput import forecast_goodput

__all__ = [
    "AuthorizationError",
    "CapacityError",
    "CheckResult",
    "Cluster",
    "ClusterInfo",
    "ConflictError",
    "Deletion",
    "GkeOptions",
    "HostChecks",
    "HostLine",
    "KindOptions",
    "MissingToolError",
    "Modified",
    "NameTaken",
    "NotAuthorized",
    "NotFoundError",
    "Notice",
    "OutputExists",
    "Phase",
    "Plan",
    "Preflight",
    "Progress",
    "QueueForecast",
    "QueueSimulation",
    "QuotaExceeded",
    "StartEstimate",
    "TimedOutError",
    "Translation",
    "UnavailableError",
    "Usage",
    "UsageError",
    "WhatIf",
    "Workload",
    "WorkloadFailedError",
    "WorkloadHandle",
    "WorkloadStatus",
    "XpkError",
    "__version__",
    "check_hosts",
    "clusters",
    "create_cluster",
    "forecast_goodput",
    "locate",
    "place",
    "return_node",
    "search_capacity",
    "submit",
    "translate",
]

_MODULES = {
    "CheckResult": "xpk.jobs.preflight",
    "Cluster": "xpk.client",
    "ClusterInfo": "xpk.capacity.provider",
    "Deletion": "xpk.jobs.deletion",
    "GkeOptions": "xpk.capacity.gke.request.options",
    "HostChecks": "xpk.jobs.preflight",
    "HostLine": "xpk.jobs.host_logs",
    "KindOptions": "xpk.capacity.kind.options",
    "Notice": "xpk.jobs.create.notice",
    "Phase": "xpk.model.status",
    "Plan": "xpk.capacity.plan.plan",
    "Preflight": "xpk.jobs.preflight",
    "Progress": "xpk.jobs.output.folder",
    "QueueForecast": "xpk.model.forecast",
    "QueueSimulation": "xpk.jobs.simulation.live",
    "StartEstimate": "xpk.model.forecast",
    "Translation": "xpk.cli.translate.flags",
    "WhatIf": "xpk.jobs.simulation.what_if",
    "Usage": "xpk.jobs.usage.figures",
    "Workload": "xpk.jobs.create.workload",
    "WorkloadHandle": "xpk.client",
    "WorkloadStatus": "xpk.model.status",
    "check_hosts": "xpk.checks",
    "clusters": "xpk.client",
    "create_cluster": "xpk.client",
    "forecast_goodput": "xpk.planning.goodput",
    "locate": "xpk.client.placement",
    "place": "xpk.client.placement",
    "return_node": "xpk.checks",
    "search_capacity": "xpk.planning.capacity",
    "submit": "xpk.client.placement",
    "translate": "xpk.cli.translate.api",
}


if not TYPE_CHECKING:  # a type checker would take any name for an attribute

    def __getattr__(name):
        """Return an exported name from its module, on its first use."""
        if name.startswith("_") or name not in __all__:
            raise AttributeError(f"module 'xpk' has no attribute '{name}'")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(_MODULES.get(name, "xpk.model.errors")), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
