"""Provider of existing clusters: JobSet, Kueue and queues are installed for the slices that they have."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import yaml

from xpk.api.base import ObjectApi, Objs
from xpk.api.kubefile import only_context
from xpk.capacity.adapted.options import AdaptedOptions
from xpk.capacity.apply import apply_all
from xpk.capacity.cluster_setup import (
    config_map,
    is_set_up,
    judge_queues,
    output_root_problems,
    record,
    recorded,
    remove_priorities,
    set_up,
    specs_of,
    target_of,
    whole_slices,
)
from xpk.capacity.controllers import install
from xpk.capacity.kubeconfig import connect, write_private
from xpk.capacity.nodes import emulated as emulate
from xpk.capacity.nodes.emulated import Adaptation
from xpk.capacity.nodes.inventory import (
    cluster_info,
    in_slices,
    in_use,
    live_workloads,
    slice_nodes,
)
from xpk.capacity.plan.plan import Plan, Step
from xpk.capacity.plan.summary import cluster_summary
from xpk.capacity.provider import CONTEXT, ClusterInfo, no_cluster
from xpk.capacity.queues.reading import maker_of
from xpk.capacity.queues.removal import remove_limits, team_objects
from xpk.capacity.state import state_of
from xpk.model import names
from xpk.model.errors import ConflictError, MissingToolError, NotFoundError, UsageError, XpkError
from xpk.model.specs import ClusterSpec, Target, cluster_problems
from xpk.render import render_queues

_KUBECONFIG = "kubeconfig"
_OF_TYPES = ("ResourceFlavor", "Topology", "ProvisioningRequestConfig", "AdmissionCheck")  # one for each type of slice


class AdaptedProvider:
    """Clusters that xpk did not create; a folder for each below `root` holds its kubeconfig."""

    name = "adapted"
    options_type: ClassVar[type[AdaptedOptions]] = AdaptedOptions

    def __init__(
        self,
        root: Path | None = None,
        *,
        options: AdaptedOptions | None = None,
        user_kubeconfig: Path | None = None,
        connect: Callable[[Path | None, str | None], ObjectApi] = connect,
        pause: install.Pause = time.sleep,
    ) -> None:
        self._root, self._user_kubeconfig = state_of(self.name, root), user_kubeconfig
        self._options = options or AdaptedOptions()
        self._open = connect
        self._pause = pause

    def plan_adapt(self, adaptation: Adaptation) -> Plan:
        """Plan the missing parts that a cluster needs to run workloads; no steps if none are missing.

        Raises UsageError with all problems, NotFoundError if the context does not exist.
        """
        kubeconfig = self._kubeconfig(adaptation)
        context = str(kubeconfig["current-context"])
        # A known cluster keeps its connection, even if the user's kubeconfig has changed since.
        is_known = adaptation.name in self.names() and not adaptation.context
        api = self.connect(adaptation.name) if is_known else self._open(None, context)
        nodes = api.list("Node")
        adaptation = emulate.with_recorded_values(adaptation, recorded(api), nodes)
        spec, steps = emulate.plan(api, nodes, adaptation) if adaptation.emulated else (_found(nodes, adaptation), [])
        note = record(api, [spec], adaptation)
        pinned = any(install.CONTROL_PLANE in node["metadata"].get("labels", {}) for node in nodes)
        hosts = len(nodes)
        notes = install.notes_of(api, hosts=hosts, fenced=adaptation.fenced)
        for controller in install.CONTROLLERS:
            if title := install.missing_step(api, controller, hosts=hosts):
                steps.append(Step(title, partial(self._install, api, controller, pinned=pinned, hosts=hosts)))
        if not is_set_up(api, spec):
            title = f"set up queue '{names.QUEUE}' with a quota of {spec.quota} {spec.shape.resource}"
            steps.append(Step(title, partial(set_up, api, [spec], take_over=adaptation.take_over)))
        if recorded(api) != note["data"]:
            steps.append(Step("record how workloads run on it", partial(apply_all, api, [note])))
        if not is_known and self._remembered(adaptation.name) != kubeconfig:
            steps.append(
                Step(f"save the connection to '{adaptation.name}'", partial(self._keep, adaptation.name, kubeconfig))
            )
            notes += _moved(adaptation.name, self._remembered(adaptation.name), kubeconfig)
        others = judge_queues(api, [spec], take_over=adaptation.take_over)
        summary = _summary(spec, context, emulated=adaptation.emulated)
        return Plan(summary, steps, notes=(*notes, *others.notes), refusal=others.refusal)

    def plan_create(self, spec: ClusterSpec) -> Plan:
        """See `Provider.plan_create`. This provider does not create clusters."""
        raise UsageError(
            "existing clusters are adapted, not created",
            hint=f"`xpk cluster adapt {spec.name} --context CONTEXT`; `kubectl config get-contexts` lists yours",
        )

    def plan_resize(self, name: str, num_slices: int, *, force: bool) -> Plan:
        """See `Provider.plan_resize`. xpk does not manage the nodes."""
        self._known(name)
        raise UsageError(
            f"xpk did not create the nodes of '{name}' and cannot add or remove any",
            hint=f"change them with the tool that created them, then run `xpk cluster adapt {name}`",
        )

    def plan_delete(self, name: str, *, force: bool) -> Plan:
        """See `Provider.plan_delete`. Existing objects stay, and so do JobSet and Kueue."""
        self._known(name)
        remembered = Step(f"remove the connection to '{name}'", partial(shutil.rmtree, self._root / name))
        try:
            api = self.connect(name)
            nodes = slice_nodes(api)
        except XpkError as error:
            if not force:
                raise ConflictError(
                    f"cannot reach cluster '{name}': {error.message}",
                    hint=f"`xpk cluster delete {name} --force` removes its connection anyway",
                ) from error
            return Plan(f"remove the connection to cluster '{name}'", [remembered])
        if not force:
            _check_unused(api, name)

        def remove() -> None:
            if not force:  # a workload may have been started since the plan was made, while a prompt waited
                _check_unused(api, name)
            _remove_queues(api)

        steps = [Step("remove its queues and priorities", remove)]
        if (recorded(api) or {}).get("emulated") == "true":
            steps.append(Step("remove the slice labels from its nodes", partial(emulate.undo, api, nodes)))
        settings = Step("remove the record of how workloads run on it", partial(_remove, api, [config_map({})]))
        summary = f"remove queues and the connection to cluster '{name}'; its nodes, JobSet and Kueue stay"
        return Plan(summary, [*steps, settings, remembered])

    def names(self) -> list[str]:
        """See `Provider.names`. A folder without a kubeconfig is left from an interrupted `cluster adapt`."""
        return sorted(file.parent.name for file in self._root.glob(f"*/{_KUBECONFIG}"))

    def describe(self, name: str, *, brief: bool = False) -> ClusterInfo:
        """See `Provider.describe`."""
        api = self.connect(name)
        nodes, kind = slice_nodes(api), (recorded(api) or {}).get("accelerator-type")
        spec = next((candidate for candidate in specs_of(name, nodes) if candidate.shape.name == kind), None)
        location = self._context_of(name)
        return cluster_info(api, spec, nodes, brief=brief, name=name, provider=self.name, location=location)

    def connect(self, name: str) -> ObjectApi:
        """See `Provider.connect`. `context:NAME` is a context of the user's kubeconfig."""
        if name.startswith(CONTEXT):
            context = str(only_context(name.removeprefix(CONTEXT), file=self._user_kubeconfig)["current-context"])
            return self._open(None, context)
        self._known(name)
        return self._open(self._root / name / _KUBECONFIG, None)

    def target(self, name: str) -> Target:
        """See `Provider.target`."""
        hint = f"`xpk cluster adapt NAME --context {name.removeprefix(CONTEXT)}`"
        return target_of(self.connect(name), hint)

    def kubeconfig(self, name: str) -> str:
        """See `Provider.kubeconfig`."""
        if name.startswith(CONTEXT):
            return yaml.safe_dump(only_context(name.removeprefix(CONTEXT), file=self._user_kubeconfig), sort_keys=False)
        self._known(name)
        return (self._root / name / _KUBECONFIG).read_text(encoding="utf-8")

    def _known(self, name: str) -> None:
        if name not in self.names():
            raise no_cluster(name)

    def _kubeconfig(self, adaptation: Adaptation) -> dict[str, Any]:
        shape, count = adaptation.shape, adaptation.num_slices
        problems = (
            names.cluster_name_problems(adaptation.name) if count is None else cluster_problems(adaptation.name, count)
        )
        problems += output_root_problems(adaptation.output_root)
        if adaptation.emulated and (shape is None or count is None):
            problems.append("--emulated requires --tpu-type and --num-slices: the slices to emulate")
        if adaptation.emulated and shape and shape.kind == "cpu":
            problems.append(f"--emulated: {shape.name} has no accelerator to advertise: use a TPU or GPU type")
        if not adaptation.emulated and count is not None:
            problems.append("--num-slices requires --emulated: otherwise the existing slices are counted")
        if problems:
            raise UsageError(
                f"cluster '{adaptation.name}' cannot be adapted",
                problems=problems,
                hint="see `xpk cluster adapt --help`",
            )
        if adaptation.name in self.names() and not adaptation.context:
            return self._remembered(adaptation.name)
        return only_context(adaptation.context, file=self._user_kubeconfig)

    def _remembered(self, name: str) -> dict[str, Any]:
        file = self._root / name / _KUBECONFIG
        try:
            config: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise _damaged(file, name) from error
        if not isinstance(config, dict) or "current-context" not in config:
            raise _damaged(file, name)
        return config

    def _context_of(self, name: str) -> str:
        return name if name.startswith(CONTEXT) else f"{CONTEXT}{self._remembered(name).get('current-context', '')}"

    def _keep(self, name: str, kubeconfig: dict[str, Any]) -> None:
        write_private(self._root / name / _KUBECONFIG, yaml.safe_dump(kubeconfig, sort_keys=False))

    def _install(self, api: ObjectApi, controller: install.Controller, *, pinned: bool, hosts: int) -> None:
        install.install(
            api,
            controller,
            pinned=pinned,
            hosts=hosts,
            source=self._options.manifest_of(controller.name),
            pause=self._pause,
        )


def _moved(name: str, before: dict[str, Any], kubeconfig: dict[str, Any]) -> tuple[str, ...]:
    """Return a warning if a cluster's name gets the connection to another API server."""
    old, new = _server_of(before), _server_of(kubeconfig)
    if not old or old == new:
        return ()
    return (f"warning: '{name}' is the name of {old} until now, and of {new} from now on",)


def _server_of(kubeconfig: dict[str, Any]) -> str:
    clusters = kubeconfig.get("clusters") or [{}]
    return str((clusters[0].get("cluster") or {}).get("server", ""))


def _damaged(file: Path, name: str) -> XpkError:
    return XpkError(f"{file} is damaged", hint=f"remove it, then `xpk cluster adapt {name} --context CONTEXT`")


def _found(nodes: Objs, adaptation: Adaptation) -> ClusterSpec:
    """Return the slices of a cluster's nodes. Raises UsageError unless they are all of one type."""
    whole = whole_slices(in_slices(nodes))
    shapes = [shape for shape in whole if adaptation.shape in (None, shape)]
    if len(shapes) == 1:
        return ClusterSpec(name=adaptation.name, shape=shapes[0], num_slices=whole[shapes[0]])
    types = ", ".join(f"{count} x {shape.name}" for shape, count in whole.items()) or "none"
    if len(shapes) > 1:
        raise UsageError(f"the cluster has slices of several types: {types}", hint="choose one with --tpu-type")
    raise UsageError(
        f"the cluster has no whole slice{f' of {adaptation.shape.name}' if adaptation.shape else ''}; it has: {types}",
        hint="add node pools of an accelerator type, or emulate slices: --emulated --tpu-type TYPE --num-slices N",
    )


def _check_unused(api: ObjectApi, name: str) -> None:
    """Raise ConflictError if workloads are on a cluster."""
    if running := live_workloads(api, name):
        raise in_use(name, running, "leave them without a queue")


def _remove(api: ObjectApi, objects: Objs) -> None:
    """Delete objects that exist and that xpk created."""
    for obj in reversed(objects):
        key = (obj["kind"], obj["metadata"]["name"], obj["metadata"].get("namespace", "default"))
        try:
            if maker_of(api.get(*key)) == "xpk":
                api.delete(*key)
        except (NotFoundError, MissingToolError):
            continue


def _remove_queues(api: ObjectApi) -> None:
    # The queues may differ from the present slices, which may have changed or been removed.
    remove_limits(api)  # while the queues tell which there are
    of_types = [obj for kind in _OF_TYPES for obj in _xpk_objects(api, kind)]
    _remove(api, [*of_types, *render_queues(), *team_objects(api)])
    remove_priorities(api)


def _xpk_objects(api: ObjectApi, kind: str) -> Objs:
    try:
        return api.list(kind)
    except MissingToolError:
        return []


def _summary(spec: ClusterSpec, context: str, *, emulated: bool) -> str:
    how = ", emulated by its nodes' CPUs" if emulated else ""
    return f"{cluster_summary(spec, where=f' (context {context})')}{how}"
