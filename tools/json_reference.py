"""JSON Schemas of what commands print with `-o json`, and docs/json.md, both from the types of the values."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import re
import tokenize
import types
import typing
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, NotRequired, TypedDict

from xpk.capacity.fencing.fencer import Fencing
from xpk.capacity.gke.desired.limits import Limit
from xpk.capacity.gke.planning.cost import Cost
from xpk.capacity.gke.planning.difference import Change
from xpk.capacity.images.cache import CacheOutcome
from xpk.capacity.inspect.doctor import Prerequisite
from xpk.capacity.inspect.versions import Version
from xpk.capacity.nodes.health import SliceHealth
from xpk.capacity.provider import ClusterInfo
from xpk.capacity.quarantine.listing import NodeInfo
from xpk.capacity.quarantine.verdict import Verdict
from xpk.capacity.queues.reading import QueueInfo
from xpk.capacity.queues.workloads import QueuedWorkload
from xpk.cli.config import EffectiveSetting, SavedSetting
from xpk.cli.info import ClusterQueue, LocalQueue
from xpk.cli.storage import StorageInfo
from xpk.cli.translate.flags import Translation
from xpk.cli.workload.diff import WorkloadDiff
from xpk.console.cluster_reader import ClusterView
from xpk.jobs.create.memory_estimate import Estimate
from xpk.jobs.forecast.forecast import GoodputForecast
from xpk.jobs.output.folder import Progress
from xpk.jobs.preflight import Preflight
from xpk.jobs.report.figures import Figures
from xpk.jobs.usage.figures import Usage
from xpk.model.accelerators import SliceShape
from xpk.model.forecast import QueueForecast
from xpk.model.status import Placement, WorkloadStatus
from xpk.planning.capacity import CapacitySearch

HEAD = """# JSON output

Generated from the program by `make golden`. `-o json` prints these objects, `-o yaml` the same as YAML. Times are RFC
3339, durations are seconds, `null` means that a value is unknown or does not apply. New fields may be added; no other
field is renamed or removed without an entry in the changelog.

`xpk workload create --when` prints a [StartEstimate](#startestimate).

With `--dry-run`, `xpk workload create` and `xpk cluster cache-image` print Kubernetes objects; other commands with
`--dry-run` print the plan, as they do after it is carried out.

"""


@dataclasses.dataclass(frozen=True)
class WorkloadWithProgress(WorkloadStatus):
    """Status of a workload with its progress and the next command."""

    progress: Progress | None = None  # progress of the bundled trainer; null before the first step
    next: str = ""  # command to run next


@dataclasses.dataclass(frozen=True)
class QueueWithWorkloads(QueueInfo):
    """A queue with its workloads that have not finished."""

    workloads: tuple[QueuedWorkload, ...] = ()  # workloads that have not finished


@dataclasses.dataclass(frozen=True)
class NamedSliceHealth(SliceHealth):
    """Health of a slice, with its state."""

    name: str = ""  # same as `node_pool`
    state: str = ""  # Ready, or the reason for not being ready
    usable: bool = True  # whether a workload can start on it, or could if it were free


@dataclasses.dataclass(frozen=True)
class NamedFencing(Fencing):
    """An action of fencing, with its name."""

    name: str = ""  # same as `node`


@dataclasses.dataclass(frozen=True)
class NamedNode(NodeInfo):
    """A node of a slice, with its name."""

    name: str = ""  # same as `node`


@dataclasses.dataclass(frozen=True)
class NamedVerdict(Verdict):
    """An action on a slice, with the name of its node."""

    name: str = ""  # same as `node`


@dataclasses.dataclass(frozen=True)
class KeyedChange(Change):
    """A change, with its key."""

    key: str = ""  # key that `after` of other changes refers to


@dataclasses.dataclass(frozen=True)
class CheckedLimit(Limit):
    """A limit, with the result of its check."""

    fits: bool | None = None  # whether the amount is available; null if unknown


class PlanOutput(TypedDict):
    """Plan from the present to the requested state."""

    summary: str  # result in one line
    steps: list[str]  # titles of the steps; empty if there is nothing to do
    changes: NotRequired[list[KeyedChange]]  # gke: requests to the API
    limits: NotRequired[list[CheckedLimit]]  # gke: quotas and other limits
    cost: NotRequired[Cost]  # gke: cost of the slices
    asked: NotRequired[list[str]]  # gke: requested options, in words
    guess: NotRequired[bool]  # gke: whether the plan assumes an empty project, because credentials are missing
    objects: NotRequired[list[dict[str, Any]]]  # storages: Kubernetes objects to apply


class QueuesOutput(TypedDict):
    """Queues of a cluster, of the kinds that were requested."""

    local_queues: NotRequired[list[LocalQueue]]  # LocalQueues of all namespaces, or of the given one
    cluster_queues: NotRequired[list[ClusterQueue]]  # ClusterQueues of the cluster


OUTPUTS: Mapping[str, object] = {
    "xpk workload list": list[WorkloadStatus],
    "xpk workload status": WorkloadWithProgress,
    "xpk workload describe": WorkloadWithProgress,
    "xpk workload wait": WorkloadWithProgress,
    "xpk workload create": WorkloadStatus,
    "xpk workload place": list[Placement],
    "xpk workload report": Figures,
    "xpk workload estimate": Estimate,
    "xpk plan goodput": GoodputForecast,
    "xpk plan capacity": CapacitySearch,
    "xpk cluster list": list[ClusterInfo],
    "xpk cluster describe": ClusterInfo,
    "xpk top": list[ClusterView],
    "xpk queue list": list[QueueInfo],
    "xpk queue describe": QueueWithWorkloads,
    "xpk queue simulate": QueueForecast,
    "xpk info": QueuesOutput,
    "xpk usage": Usage,
    "xpk workload diff": WorkloadDiff,
    "xpk cluster health": list[NamedSliceHealth],
    "xpk cluster preflight": Preflight,
    "xpk cluster fence": list[NamedFencing],
    "xpk cluster cache-image": CacheOutcome,
    "xpk node list": list[NamedNode],
    "xpk node quarantine": list[NamedVerdict],
    "xpk node return": list[NamedVerdict],
    "xpk storage list": list[StorageInfo],
    "xpk accelerator list": list[SliceShape],
    "xpk accelerator describe": SliceShape,
    "xpk config list": list[EffectiveSetting],
    "xpk config explain": EffectiveSetting,
    "xpk config get": SavedSetting,
    "xpk config set": list[SavedSetting],
    "xpk config unset": list[SavedSetting],
    "xpk doctor": list[Prerequisite],
    "xpk version": list[Version],
    "xpk translate": list[Translation],
    **{f"xpk cluster {name}": PlanOutput for name in ("create", "adapt", "resize", "delete")},
    **{f"xpk queue {name}": PlanOutput for name in ("create", "delete")},
    **{f"xpk storage {name}": PlanOutput for name in ("attach", "create", "detach", "delete")},
}
_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of values of a type; objects have no other fields."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return {}
    if kind in _SIMPLE:
        return {"type": _SIMPLE[kind]}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [schema_of(item) for item in arguments]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (list, tuple):
        return {"type": "array", "items": schema_of(arguments[0])}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": schema_of(arguments[1])}
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return {"enum": [str(item) for item in kind]}
    properties = {name: schema_of(item) for name, item in fields_of(kind).items()}
    required = [name for name in properties if name not in optional_fields(kind)]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def fields_of(kind: type) -> dict[str, Any]:
    """Return the fields of a dataclass or a TypedDict with their types."""
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else [*hints]
    return {name: hints[name] for name in names}


def optional_fields(kind: type) -> frozenset[str]:
    """Return the fields of a TypedDict that may be absent."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return frozenset(name for name, hint in hints.items() if typing.get_origin(hint) is NotRequired)


def reference() -> str:
    """Return the expected content of docs/json.md."""
    parts, nested = [HEAD, "| command | output |", "|---|---|"], list[type]()
    for command, kind in OUTPUTS.items():
        parts.append(f"| `{command}` | {_described(kind, nested)} |")
    parts.append("")
    for kind in nested:  # grows while the fields of its types are described
        summary, _, _ = (inspect.getdoc(kind) or "").partition("\n\n")
        base = kind.__base__ if dataclasses.is_dataclass(kind.__base__) else None
        also = f" It has the fields of {_described(base, nested)}, and:" if base else ""
        parts += [f"## {kind.__name__}", " ".join(summary.split()) + also, ""]
        parts += ["| field | type | meaning |", "|---|---|---|"]
        meanings, known = meanings_of(kind), fields_of(base) if base else {}
        for name, item in fields_of(kind).items():
            if name in known:
                continue
            described = _described(item, nested) + (", or absent" if name in optional_fields(kind) else "")
            parts.append(f"| `{name}` | {described} | {meanings.get(name, '').replace('|', '/')} |")
        parts.append("")
    return "\n".join(parts)


def _described(kind: Any, nested: list[type]) -> str:
    """Return the description of a type; types with fields are linked and added to `nested`."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return "any value"
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_described(item, nested) for item in arguments)
    if origin is Literal:
        return " or ".join(f"`{item}`" for item in arguments)
    if origin in (list, tuple):
        return f"array of {_described(arguments[0], nested)}"
    if origin in (dict, Mapping):
        return f"object of {_described(arguments[1], nested)}"
    if issubclass(kind, StrEnum):
        return ", ".join(f"`{item}`" for item in kind)
    if kind not in nested:
        nested.append(kind)
    return f"[{kind.__name__}](#{kind.__name__.lower()})"


def meanings_of(kind: type) -> dict[str, str]:
    """Return the meanings of fields: comments beside them, or clauses of the docstring such as "`free`: available"."""
    meanings: dict[str, str] = {}
    for base in reversed([base for base in kind.__mro__ if base.__module__.startswith(("xpk.", "tools."))]):
        for names, meaning in re.findall(r"((?:`\w+`(?:, | and )?)+): (.+?)(?=[;.](?:\s|$))", _one_line(base)):
            meanings |= {name: meaning for name in re.findall(r"`(\w+)`", names)}
        meanings |= {name: text for name, text in comments_of(inspect.getsource(base)).items() if text}
    return meanings


def _one_line(kind: type) -> str:
    return " ".join((kind.__doc__ or "").split())


def words_of(source: str) -> Sequence[tokenize.TokenInfo]:
    """Return the words of a program, comments among them."""
    return list(tokenize.generate_tokens(io.StringIO(source).readline))


def comments_of(source: str) -> dict[str, str]:
    """Return the comment of each field of a class, which may have several lines."""
    (kind,) = ast.parse(source).body
    assert isinstance(kind, ast.ClassDef)
    text = {word.start[0]: word.string.lstrip("# ") for word in words_of(source) if word.type == tokenize.COMMENT}
    return {
        field.target.id: " ".join(text[n] for n in range(field.lineno, (field.end_lineno or 0) + 1) if n in text)
        for field in kind.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }
