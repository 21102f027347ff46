"""The `Provider` interface of all kinds of capacity, and a registry of its implementations."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from xpk.api.base import ObjectApi
from xpk.capacity.plan.plan import Plan
from xpk.model.accelerators import SliceShape
from xpk.model.errors import ConflictError, NotFoundError, UsageError, XpkError
from xpk.model.specs import ClusterSpec, Target

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# Known without installed metadata, so that a bare checkout works too; others come from the entry point group.
_BUILT_IN = {
    "adapted": "xpk.capacity.adapted.provider:AdaptedProvider",
    "gke": "xpk.capacity.gke.provider:GkeProvider",
    "kind": "xpk.capacity.kind.provider:KindProvider",
    "local": "xpk.capacity.local.provider:LocalProvider",
}
_GROUP = "xpk.providers"
CONTEXT = "context:"  # prefix of a context of the user's kubeconfig that is used as a cluster's name


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceInfo:
    """An existing slice: its node pool, its hosts and the workload on it, if any.

    `spare`: not part of any quota; a workload moves there if one of its nodes fails.
    `accelerator_type`: "" if unknown.
    """

    node_pool: str  # name of its node pool
    hosts: tuple[str, ...]  # names of its nodes
    workload: str | None  # that holds the slice; null if it is free
    spare: bool = False
    accelerator_type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """An existing cluster. `created` is an RFC 3339 time; `location` is text for display."""

    name: str  # unique on this machine
    provider: str  # local, kind, gke or adapted
    accelerator_type: str  # of all slices; `unknown` or several types if they differ
    num_slices: int  # existing slices, without spares
    hosts_per_slice: int  # 0 if slices differ
    chips: int  # of all slices
    state: str  # Ready, Incomplete, or that of the provider
    created: str  # time of the creation
    location: str  # text for display
    slices: tuple[SliceInfo, ...] = ()  # each slice with its workload


class Provider(Protocol):
    """A kind of capacity. Plans are made from the present state; nothing changes until they are carried out.

    `settings`: the flags of `xpk cluster create` that only this provider has, and the variable of each.
    """

    name: str
    settings: ClassVar[Mapping[str, str]]

    def plan_create(self, spec: ClusterSpec) -> Plan:
        """Plan a cluster; no steps if it exists. Raises ConflictError if it exists in another shape."""
        ...

    def plan_resize(self, name: str, num_slices: int, *, force: bool) -> Plan:
        """Plan another number of slices. Raises ConflictError if slices in use would be removed, unless forced."""
        ...

    def plan_delete(self, name: str, *, force: bool) -> Plan:
        """Plan a deletion. Raises NotFoundError, or ConflictError if workloads are on the cluster, unless forced."""
        ...

    def names(self) -> list[str]:
        """Return the names of the existing clusters."""
        ...

    def describe(self, name: str) -> ClusterInfo:
        """Return a cluster's description. Raises NotFoundError."""
        ...

    def connect(self, name: str) -> ObjectApi:
        """Return the API server of a cluster. Raises NotFoundError."""
        ...

    def kubeconfig(self, name: str) -> str:
        """Return a cluster's kubeconfig. Raises NotFoundError if it has none."""
        ...

    def target(self, name: str) -> Target:
        """Return how workloads run on a cluster."""
        ...


@runtime_checkable
class Checks(Protocol):
    """Optional part of a provider that validates a request before any existing state is read."""

    def check_create(self, spec: ClusterSpec | None, *, lenient: bool = False) -> None:
        """Raise UsageError with all problems; None: the type is unknown, but other parts are checked.

        `lenient`: skip requirements for carrying a plan out that showing it does not have; they are its refusal.
        """
        ...


@runtime_checkable
class Counts(Protocol):
    """Optional part of a provider that knows more exactly than `describe` which slices a create has to keep."""

    def slices_of(self, name: str, shape: SliceShape) -> int:
        """Return the number of slices of a type that were requested."""
        ...


def provider_names() -> list[str]:
    """Return the values of `--provider`."""
    return sorted({*_BUILT_IN, *_plugins()})


def maker_names() -> list[str]:
    """Return the names of the providers that create clusters."""
    return [name for name in provider_names() if name != "adapted"]


def load_provider(name: str, flags: Mapping[str, str] | None = None) -> Provider:
    """Import a provider by name, on first use only, and configure it with `flags`.

    Raises UsageError for an unknown provider, or for flags that it does not support.
    """
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        factory = getattr(__import__(module, fromlist=[attribute]), attribute)
    else:
        if name not in _plugins():
            raise UsageError(f"unknown provider '{name}'", hint=f"choose from {', '.join(provider_names())}")
        factory = _plugins()[name].load()
    provider: Provider = factory(environ=environment(name, factory.settings, flags)) if flags else factory()
    return provider


def environment(provider: str, settings: Mapping[str, str], flags: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment with the variables that flags set. Raises UsageError for unknown flags."""
    strange = [flag for flag in flags if flag not in settings]
    if strange:
        problems = [f"{flag} is not supported by the {provider} provider" for flag in strange]
        raise UsageError(problems[0], problems=problems, hint="omit it, or choose another --provider")
    return {**os.environ, **{settings[flag]: value for flag, value in flags.items()}}


@cache
def _plugins() -> dict[str, EntryPoint]:
    """Return the providers of other installed packages."""
    from importlib.metadata import entry_points  # importing it takes as long as the rest of a short command

    return {point.name: point for point in entry_points(group=_GROUP) if point.name not in _BUILT_IN}


def cluster_names(provider: str | None = None) -> list[str]:
    """Return the existing clusters, of one provider or of all."""
    return [name for kind in ([provider] if provider else provider_names()) for name in load_provider(kind).names()]


def slices_there(provider: Provider, name: str, shape: SliceShape) -> int | None:
    """Return a cluster's number of slices of a type; None if unknown, where a plan will report why."""
    try:
        if name not in provider.names():
            return None
        if isinstance(provider, Counts):
            return provider.slices_of(name, shape)
        info = provider.describe(name)
    except XpkError:
        return None
    return info.num_slices if info.accelerator_type == shape.name else 0


def check_free(cluster: str, provider: str) -> None:
    """Raise ConflictError if another provider has a cluster of this name: commands could not distinguish them."""
    for other in provider_names():
        if other != provider and cluster in load_provider(other).names():
            raise ConflictError(
                f"cluster '{cluster}' already exists, of provider '{other}'",
                hint=f"choose another name, or `xpk cluster delete {cluster} --provider {other}` first",
            )


def provider_of(cluster: str, preferred: str | None = None) -> Provider:
    """Return the provider of a cluster, `preferred` if given. Raises NotFoundError."""
    if cluster.startswith(CONTEXT):
        return load_provider("adapted")
    candidates = [preferred] if preferred else provider_names()
    known: list[str] = []
    for provider in map(load_provider, candidates):
        here = provider.names()
        if cluster in here:
            return provider
        known += here
    hint = f"there are: {', '.join(sorted(known))}" if known else f"`xpk cluster create {cluster} ...` creates it"
    raise NotFoundError(f"cluster '{cluster}' not found", hint=hint)
