"""The `Provider` interface of all kinds of capacity, and a registry of its implementations."""

from __future__ import annotations

import os.path
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from xpk.api.base import ObjectApi
from xpk.capacity.options import ProviderOptions, check_types
from xpk.capacity.plan.plan import Plan
from xpk.capacity.state import state_dir
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
_FOLDERS = {"local": "clusters"}  # of their state, where it is not their name
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
    workload: str | None  # workload on the slice; null if it is free
    spare: bool = False  # whether it is outside of all quotas
    accelerator_type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """An existing cluster. `created` is an RFC 3339 time; `location` is text for display."""

    name: str  # name, unique on this machine
    provider: str  # provider: local, kind, gke or adapted
    accelerator_type: str  # accelerator type of all slices; `unknown` or several types if they differ
    num_slices: int  # number of existing slices, without spares
    hosts_per_slice: int  # hosts of a slice; 0 if slices differ
    chips: int  # chips of all slices
    state: str  # state: Ready, Incomplete, or one of the provider's own
    created: str  # time of the creation
    location: str  # location, as text for display
    slices: tuple[SliceInfo, ...] = ()  # slices with their workloads


class Provider(Protocol):
    """A kind of capacity. Plans are made from the present state; nothing changes until they are carried out.

    The class of a provider is called with `options` of its `options_type`, or without any.
    """

    name: str

    @property
    def options_type(self) -> type[ProviderOptions]:
        """Return the class of its options."""
        ...

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

    def describe(self, name: str, *, brief: bool = False) -> ClusterInfo:
        """Return a cluster's description. Raises NotFoundError.

        `brief`: without the workloads on its slices, for which all pods have to be read.
        """
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


@runtime_checkable
class Finds(Protocol):
    """Optional part of a provider that reaches clusters which this machine does not know."""

    def find(self, name: str) -> None:
        """Look for a cluster unless it is known, and store its location. Raises NotFoundError and UsageError."""
        ...


def provider_names() -> list[str]:
    """Return the values of `--provider`."""
    return sorted({*_BUILT_IN, *_plugins()})


def requested_provider(provider: str | None, options: ProviderOptions | None) -> str | None:
    """Return the given provider, else that of the options, else None. Raises UsageError for other objects."""
    if provider or options is None:
        return provider
    if not isinstance(options, ProviderOptions):
        raise UsageError(f"options must be xpk.GkeOptions or xpk.KindOptions, got {type(options).__name__}")
    return options.provider


def maker_names() -> list[str]:
    """Return the names of the providers that create clusters."""
    return [name for name in provider_names() if name != "adapted"]


def load_provider(name: str, options: ProviderOptions | None = None) -> Provider:
    """Return a provider by name.

    Raises UsageError for an unknown one, and for options of another one or of wrong types.
    """
    kind = provider_type(name)
    if options is not None and not isinstance(options, kind.options_type):
        raise UsageError(
            f"{type(options).__name__} is not supported by the {name} provider",
            hint=f"pass {kind.options_type.__name__}, or choose another provider",
        )
    if options is not None:
        check_types(options)
    provider: Provider = kind() if options is None else kind(options=options)
    return provider


def provider_type(name: str) -> Any:
    """Import a provider's class, on first use only. Raises UsageError for an unknown provider."""
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        return getattr(import_module(module), attribute)
    if name not in _plugins():
        raise UsageError(f"unknown provider '{name}'", hint=f"choose from {', '.join(provider_names())}")
    return _plugins()[name].load()


@cache
def _plugins() -> dict[str, EntryPoint]:
    """Return the providers of other installed packages."""
    from importlib.metadata import entry_points  # importing it takes as long as the rest of a short command

    return {point.name: point for point in entry_points(group=_GROUP) if point.name not in _BUILT_IN}


def cluster_names(provider: str | None = None) -> list[str]:
    """Return the existing clusters, of one provider or of all."""
    return [name for kind in ([provider] if provider else provider_names()) for name in load_provider(kind).names()]


def count_existing_slices(provider: Provider, name: str, shape: SliceShape) -> int | None:
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
    known_names: list[str] = []
    for provider in map(load_provider, [preferred] if preferred else _likely_first(cluster)):
        here = provider.names()
        if cluster in here:
            return provider
        known_names += here
    hint = (
        f"choose from {', '.join(sorted(known_names))}"
        if known_names
        else f"`xpk cluster create {cluster} ...` creates it"
    )
    raise no_cluster(cluster, hint)


def _likely_first(cluster: str) -> Iterator[str]:
    """Yield all providers, those with a folder of the cluster's name first: importing the others takes long."""
    state = state_dir()
    # os.path.isdir: Path.is_dir of Python 3.11 raises OSError for names that are too long.
    likely = [name for name in _BUILT_IN if os.path.isdir(state / _FOLDERS.get(name, name) / cluster)]
    yield from likely
    yield from (name for name in provider_names() if name not in likely)


def no_cluster(name: str, hint: str = "`xpk cluster list` lists the existing ones") -> NotFoundError:
    """Return the error for a cluster that does not exist."""
    return NotFoundError(f"cluster '{name}' not found", hint=hint, resource=f"cluster '{name}'")


def configured_provider(cluster: str, options: ProviderOptions) -> Provider:
    """Return the provider of a cluster, with options; it looks for a cluster that this machine does not know.

    Raises NotFoundError without the cluster, and UsageError if it is of another provider or in another project.
    """
    kind = requested_provider(None, options) or ""
    provider = load_provider(kind, options)
    if isinstance(provider, Finds):
        provider.find(cluster)
    else:
        provider_of(cluster, kind)
    return provider
