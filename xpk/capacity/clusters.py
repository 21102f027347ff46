"""Requests for clusters, checked as a whole, and the list of all clusters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from xpk.capacity.options import ProviderOptions
from xpk.capacity.plan.plan import Plan
from xpk.capacity.provider import (
    Checks,
    ClusterInfo,
    Provider,
    check_free,
    count_existing_slices,
    load_provider,
    maker_names,
    provider_names,
    requested_provider,
)
from xpk.model.accelerators import SliceShape, find_shape
from xpk.model.errors import Problems, UsageError, XpkError
from xpk.model.specs import ClusterSpec, cluster_problems, count_slices

_HINT = "see `xpk cluster create --help`"


def plan_create(
    name: str,
    accelerator_type: str | None,
    num_slices: int | None,
    *,
    num_nodes: int | None = None,
    provider: str | None = None,
    options: ProviderOptions | None = None,
    problems: Problems | None = None,
    is_dry: bool = False,
) -> tuple[ClusterSpec, Plan]:
    """Return the spec of a cluster, and the plan that creates it or completes its missing parts.

    `num_slices`: None keeps the slices of an existing cluster; 1 in a new one. `provider`: None stands for that
    of `options`, or for local. `problems`: found before. `is_dry`: values that only a real run needs may be missing.
    Raises UsageError with all problems, and ConflictError if a cluster of this name exists in another shape or of
    another provider.
    """
    problems = problems or Problems()
    shape: SliceShape | None = problems.read(None, _find_shape, accelerator_type)
    count = problems.read(
        1 if num_slices is None else num_slices, count_slices, num_slices, num_nodes, shape.kind if shape else ""
    )
    source: Provider | None = problems.read(None, _load_maker, provider, options)
    spec = ClusterSpec(name=name, shape=shape, num_slices=count) if shape else None
    if isinstance(source, Checks):
        problems.read(None, partial(source.check_create, lenient=is_dry), spec)
    if not spec or not source:  # not checked by the provider
        may_be_empty = isinstance(options, ProviderOptions) and options.may_be_empty
        problems.read(None, _check_named, name, count or int(may_be_empty))
    problems.check(f"cluster '{name}' cannot be created", hint=_HINT)
    assert spec and source
    if num_slices is None and num_nodes is None:  # keep the existing number of slices
        spec = replace(spec, num_slices=count_existing_slices(source, spec.name, spec.shape) or spec.num_slices)
    check_free(spec.name, source.name)
    return spec, source.plan_create(spec)


def find_clusters(
    provider: str | None = None,
    options: ProviderOptions | None = None,
    *,
    brief: bool = False,
    warn: Callable[[str], None] = lambda text: None,
) -> list[ClusterInfo]:
    """Return the descriptions of all clusters, or of those of one provider; `warn` gets the errors of broken ones.

    `brief`: see `Provider.describe`.
    """
    clusters = []
    provider = requested_provider(provider, options)
    for kind in [provider] if provider else provider_names():
        source = load_provider(kind, options)
        for name in source.names():
            try:
                clusters.append(source.describe(name, brief=brief))
            except XpkError as error:  # a broken cluster must not hide the others
                warn(error.message)
    return clusters


def _find_shape(accelerator_type: str | None) -> SliceShape:
    if not accelerator_type:
        raise UsageError(
            "no accelerator type given", hint="--tpu-type v5litepod-8; `xpk accelerator list` shows all types"
        )
    return find_shape(accelerator_type)


def _load_maker(provider: str | None, options: ProviderOptions | None) -> Provider:
    kind = requested_provider(provider, options) or "local"
    if kind not in provider_names():
        raise UsageError(f"unknown provider '{kind}'", hint=f"choose from {', '.join(maker_names())}")
    return load_provider(kind, options)


def _check_named(name: str, num_slices: int) -> None:
    if problems := cluster_problems(name, num_slices):
        raise UsageError(f"cluster '{name}' cannot be created", problems=problems, hint=_HINT)
