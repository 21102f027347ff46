"""How much memory and CPU JobSet's and Kueue's controllers may take, by the number of hosts they look after. Pure.

docs/scale.md says where the numbers are from.
"""

from __future__ import annotations

import math

from xpk.api.base import Obj
from xpk.api.quantities import quantity

_SMALL = 256  # hosts, up to which what a release asks for is left as it is
_BASE_MIB, _MIB_PER_HOST, _STEP_MIB = 512, 1.2, 256
_HOSTS_PER_CPU = 1000

Amounts = dict[str, dict[str, str]]


def amounts(hosts: int) -> Amounts:
    """Return the least that a controller gets for so many hosts; nothing where a release's own will do."""
    if hosts <= _SMALL:
        return {}
    mebibytes = math.ceil((_BASE_MIB + _MIB_PER_HOST * hosts) / _STEP_MIB) * _STEP_MIB
    cpus = math.ceil(hosts / _HOSTS_PER_CPU)
    # Half is asked for: no more has to be free on one node before the controller may start there.
    return {"limits": {"memory": f"{mebibytes}Mi", "cpu": str(cpus)}, "requests": {"memory": f"{mebibytes // 2}Mi"}}


def enlarge(deployment: Obj, hosts: int) -> None:
    """Give a controller what it needs, never less than its release does; what has no limit gets none."""
    for part, name, amount in _lacking(deployment, hosts):
        deployment["spec"]["template"]["spec"]["containers"][0]["resources"][part][name] = amount


def more_memory(deployment: Obj, hosts: int) -> str:
    """Return how much a controller may take for so many hosts, if it may take less now; "" if it is enough."""
    lacking = _lacking(deployment, hosts)
    words = {"memory": "{} of memory", "cpu": "{} CPUs"}
    most = [words[name].format(amount) for part, name, amount in lacking if part == "limits"]
    asked = [f"{words[name].format(amount)} for certain" for part, name, amount in lacking if part == "requests"]
    return " and ".join(most or asked)


def _lacking(deployment: Obj, hosts: int) -> list[tuple[str, str, str]]:
    has = deployment["spec"]["template"]["spec"]["containers"][0].get("resources") or {}
    return [
        (part, name, amount)
        for part, wanted in amounts(hosts).items()
        for name, amount in wanted.items()
        if name in (has.get(part) or {}) and quantity(has[part][name]) < quantity(amount)
    ]
