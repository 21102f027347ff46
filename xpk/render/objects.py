"""Specs in, plain dicts out.

Templates hold no logic: what they print is computed here, every value goes through `tojson`, an unknown
name is an error, and the text is parsed back before anybody uses it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import yaml

from xpk.model import names
from xpk.model.accelerators import NODEPOOL_LABEL
from xpk.model.specs import ClusterSpec, WorkloadSpec
from xpk.render.resources import manifests_dir

if TYPE_CHECKING:
    import jinja2

COORDINATOR_PORT = 8476  # JAX's default on TPU pods
MEGASCALE_PORT = 8080  # the DCN transport's default on GKE

_SURROGATES = re.compile(r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})")


def render_workload(spec: WorkloadSpec) -> list[dict[str, Any]]:
    """Return the objects of one workload: its JobSet."""
    return _render("jobset.yaml.j2", w=_WorkloadView.of(spec))


def render_queues(spec: ClusterSpec, *, namespace: str = "default") -> list[dict[str, Any]]:
    """Return the Kueue objects of a cluster: flavor, quota, queue and priorities."""
    view = {
        "flavor": spec.shape.name,
        "node_labels": dict(spec.shape.node_labels),
        "resource": spec.shape.resource,
        "quota": spec.num_slices * spec.shape.hosts * spec.shape.resource_per_host,
        "namespace": namespace,
        "priorities": names.PRIORITIES,
    }
    return _render("kueue/queues.yaml.j2", q=view)


def render_kind(spec: ClusterSpec, *, nodes_per_slice: int, spare_slices: int, shared_folder: str) -> dict[str, Any]:
    """Return kind's configuration: a control plane, and worker nodes labelled as GKE labels a slice's."""
    labels = {names.TYPE_ANNOTATION: spec.shape.name, **spec.shape.node_labels}
    workers = []
    for index in range(spec.num_slices + spare_slices):
        spare = {names.SPARE_LABEL: "true"} if index >= spec.num_slices else {}
        pool = {NODEPOOL_LABEL: names.node_pool_name(spec.name, index)}
        workers += [pool | labels | spare] * nodes_per_slice
    view = {
        "name": spec.name,
        "workers": workers,
        "resource": spec.shape.resource,
        "shared_folder": shared_folder,
    }
    (config,) = _render("kind/cluster.yaml.j2", k=view)
    return config


def to_yaml(objects: list[dict[str, Any]]) -> str:
    """Return objects as the multi-document YAML that `kubectl apply -f -` takes."""
    # ASCII: PyYAML folds U+0085 and its like when it may write them as they are.
    return yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=False, width=120, explicit_start=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _WorkloadView:
    """What `jobset.yaml.j2` prints."""

    name: str
    namespace: str
    queue: str
    priority: str
    annotations: Mapping[str, str]
    ttl_seconds: int
    max_restarts: int
    num_slices: int
    hosts_per_slice: int
    fatal_exit_codes: list[int]
    termination_grace_seconds: int
    node_selector: Mapping[str, str]
    resource: str
    resource_per_host: int
    image: str
    command: list[str]
    working_dir: str | None
    output_dir: str
    shared_folder: str | None
    coordinator_address: str
    sets_slice_environment: bool
    megascale_address: str
    worker_hostnames: str
    env: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, spec: WorkloadSpec) -> _WorkloadView:
        shape, coordinator = spec.shape, names.host_name(spec.name, 0, 0)
        hosts = (names.host_name(spec.name, "$(MEGASCALE_SLICE_ID)", host) for host in range(shape.hosts))
        annotations = {names.OUTPUT_ANNOTATION: spec.output_dir, names.TYPE_ANNOTATION: shape.name}
        if spec.user:
            annotations[names.USER_ANNOTATION] = spec.user
        return cls(
            name=spec.name,
            namespace=spec.namespace,
            queue=spec.queue,
            priority=spec.priority,
            annotations=annotations,
            ttl_seconds=spec.ttl_seconds,
            max_restarts=spec.max_restarts,
            num_slices=spec.num_slices,
            hosts_per_slice=shape.hosts,
            fatal_exit_codes=sorted(set(spec.fatal_exit_codes)),
            termination_grace_seconds=spec.termination_grace_seconds,
            node_selector=dict(shape.node_labels),
            resource=shape.resource,
            resource_per_host=shape.resource_per_host,
            image=spec.image,
            command=[_literal(part) for part in spec.command],
            working_dir=spec.working_dir,
            output_dir=_literal(spec.output_dir),
            shared_folder=spec.target.shared_folder,
            coordinator_address=f"{coordinator}:{COORDINATOR_PORT}",
            sets_slice_environment=spec.target.sets_slice_environment,
            megascale_address=f"{coordinator}:{MEGASCALE_PORT}",
            worker_hostnames=",".join(hosts),
            env={key: _literal(value) for key, value in _env(spec).items()},
        )


def _env(spec: WorkloadSpec) -> dict[str, str]:
    """Return the user's variables over ours; their XLA_FLAGS come after ours, where the later flag counts."""
    ours, theirs = _device_env(spec), dict(spec.env)
    if "XLA_FLAGS" in ours and "XLA_FLAGS" in theirs:
        theirs["XLA_FLAGS"] = f"{ours['XLA_FLAGS']} {theirs['XLA_FLAGS']}"
    return ours | theirs


def _device_env(spec: WorkloadSpec) -> dict[str, str]:
    """Return what a JAX program needs to find as many devices as the host has chips, and their peak."""
    env = {} if spec.shape.peak_bf16 is None else {"XPK_PEAK_FLOPS": f"{spec.shape.peak_bf16:.0f}"}
    if spec.target.emulated:
        env |= {
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(spec.shape.chips_per_host),
            "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
            # The other schedule starts independent collectives in a different order on each host: they deadlock.
            "XLA_FLAGS": "--xla_cpu_enable_concurrency_optimized_scheduler=false",
        }
    return env


def _literal(value: str) -> str:
    """Escape a value so that Kubernetes' expansion of `$(NAME)` gives it back unchanged."""
    return re.sub(r"\$(?=[$(])", "$$", value)


def _render(template: str, **values: Any) -> list[dict[str, Any]]:
    text = _environment().get_template(template).render(**values)
    return [document for document in yaml.safe_load_all(text) if document is not None]


@cache
def _environment() -> jinja2.Environment:
    import jinja2  # only commands that create something need it

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(manifests_dir()),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # YAML, not HTML; `tojson` below quotes every value
        keep_trailing_newline=True,
    )
    environment.filters["tojson"] = _to_json
    return environment


def _to_json(value: Any) -> str:
    """Return JSON that YAML reads back as the same value: YAML knows no surrogate pairs in escapes."""

    def join(match: re.Match[str]) -> str:
        high, low = int(match[1], 16), int(match[2], 16)
        return f"\\U{0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00):08x}"

    text = json.dumps(dict(value) if isinstance(value, Mapping) else value)
    return _SURROGATES.sub(join, text).replace("\x7f", "\\x7f")
