"""What every kind of capacity can do, and where the kinds are found."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol

from xpk.api.base import ObjectApi
from xpk.capacity.plan import Plan
from xpk.model.errors import ConflictError, NotFoundError, UsageError
from xpk.model.specs import ClusterSpec, Target

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# Known without installed metadata, so that a bare checkout works too; others come from the entry point group.
_BUILT_IN = {"kind": "xpk.capacity.kind:KindProvider", "local": "xpk.capacity.local:LocalProvider"}
_GROUP = "xpk.providers"


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceInfo:
    """One slice that exists: its node pool, its hosts and the workload that holds it, if any."""

    node_pool: str
    hosts: tuple[str, ...]
    workload: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """A cluster that exists. `created` is an RFC 3339 time; `location` is for people to read."""

    name: str
    provider: str
    accelerator_type: str
    num_slices: int
    hosts_per_slice: int
    chips: int
    state: str
    created: str
    location: str
    slices: tuple[SliceInfo, ...] = ()


class Provider(Protocol):
    """A kind of capacity. Plans are made from what exists; nothing changes until they are carried out."""

    name: str

    def plan_create(self, spec: ClusterSpec) -> Plan:
        """Plan a cluster; no steps if it is there. Raises ConflictError if it is there in another shape."""
        ...

    def plan_resize(self, name: str, num_slices: int, *, force: bool) -> Plan:
        """Plan another number of slices. Raises ConflictError if slices in use would go, unless forced."""
        ...

    def plan_delete(self, name: str, *, force: bool) -> Plan:
        """Plan its end. Raises NotFoundError, or ConflictError if workloads are on it, unless forced."""
        ...

    def names(self) -> list[str]:
        """Return the names of the clusters there are."""
        ...

    def describe(self, name: str) -> ClusterInfo:
        """Return what there is under a name. Raises NotFoundError."""
        ...

    def connect(self, name: str) -> ObjectApi:
        """Return the API server of a cluster. Raises NotFoundError."""
        ...

    def target(self, name: str) -> Target:
        """Return how workloads run on a cluster."""
        ...


def provider_names() -> list[str]:
    """Return the names that `--provider` takes."""
    return sorted({*_BUILT_IN, *_plugins()})


def load_provider(name: str) -> Provider:
    """Import a provider by name, on first use only. Raises UsageError for an unknown one."""
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        factory = getattr(__import__(module, fromlist=[attribute]), attribute)
    else:
        if name not in _plugins():
            raise UsageError(f"unknown provider '{name}'", hint=f"choose from {', '.join(provider_names())}")
        factory = _plugins()[name].load()
    provider: Provider = factory()
    return provider


@cache
def _plugins() -> dict[str, EntryPoint]:
    """Return the providers that other packages bring."""
    from importlib.metadata import entry_points  # costs as much as the rest of a short command

    return {point.name: point for point in entry_points(group=_GROUP) if point.name not in _BUILT_IN}


def cluster_names(provider: str | None = None) -> list[str]:
    """Return the clusters there are, of one provider or of all."""
    return [name for kind in ([provider] if provider else provider_names()) for name in load_provider(kind).names()]


def check_free(cluster: str, provider: str) -> None:
    """Raise ConflictError if another provider has a cluster of this name: commands could not tell them apart."""
    for other in provider_names():
        if other != provider and cluster in load_provider(other).names():
            raise ConflictError(
                f"there is a cluster '{cluster}' already, of provider '{other}'",
                hint=f"choose another name, or `xpk cluster delete {cluster} --provider {other}` first",
            )


def provider_of(cluster: str, preferred: str | None = None) -> Provider:
    """Return the provider that has a cluster, `preferred` if it is given. Raises NotFoundError."""
    candidates = [preferred] if preferred else provider_names()
    known: list[str] = []
    for provider in map(load_provider, candidates):
        here = provider.names()
        if cluster in here:
            return provider
        known += here
    hint = f"there are: {', '.join(sorted(known))}" if known else f"`xpk cluster create {cluster} ...` makes it"
    raise NotFoundError(f"there is no cluster '{cluster}'", hint=hint)
