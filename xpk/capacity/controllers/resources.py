"""Memory and CPU of JobSet's and Kueue's controllers by number of hosts. Pure.

docs/scale.md gives the sources of the numbers.
"""

from __future__ import annotations

import math

from xpk.api.base import Obj
from xpk.api.quantities import quantity

_SMALL = 256  # hosts, up to which a release's own requests are unchanged
_BASE_MIB, _MIB_PER_HOST, _STEP_MIB = 512, 1.2, 256
_HOSTS_PER_CPU = 1000

Amounts = dict[str, dict[str, str]]


def amounts(hosts: int) -> Amounts:
    """Return the minimum resources of a controller for this many hosts; empty if its release's own suffice."""
    if hosts <= _SMALL:
        return {}
    mebibytes = math.ceil((_BASE_MIB + _MIB_PER_HOST * hosts) / _STEP_MIB) * _STEP_MIB
    cpus = math.ceil(hosts / _HOSTS_PER_CPU)
    # The request is half the limit, so that the controller fits on a node with that much free.
    return {"limits": {"memory": f"{mebibytes}Mi", "cpu": str(cpus)}, "requests": {"memory": f"{mebibytes // 2}Mi"}}


def enlarge(deployment: Obj, hosts: int) -> None:
    """Raise a controller's resources to the minimum; resources without a limit stay unlimited."""
    for part, name, amount in _lacking(deployment, hosts):
        deployment["spec"]["template"]["spec"]["containers"][0]["resources"][part][name] = amount


def more_memory(deployment: Obj, hosts: int) -> str:
    """Return the resources that a controller needs for this many hosts if it has less; "" if it has enough."""
    shortfalls = _lacking(deployment, hosts)
    words = {"memory": "{} of memory", "cpu": "{} CPUs"}
    limits = [words[name].format(amount) for part, name, amount in shortfalls if part == "limits"]
    requests = [f"{words[name].format(amount)} guaranteed" for part, name, amount in shortfalls if part == "requests"]
    return " and ".join(limits or requests)


def _lacking(deployment: Obj, hosts: int) -> list[tuple[str, str, str]]:
    has = deployment["spec"]["template"]["spec"]["containers"][0].get("resources") or {}
    return [
        (part, name, amount)
        for part, minimums in amounts(hosts).items()
        for name, amount in minimums.items()
        if name in (has.get(part) or {}) and quantity(has[part][name]) < quantity(amount)
    ]
