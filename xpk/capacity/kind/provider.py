"""Provider of kind clusters: nodes in Docker stand in for slices, with real controllers and real pods on CPUs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar

import yaml

from xpk.api.base import ObjectApi, Objs
from xpk.api.text import counted
from xpk.capacity.cluster_lock import locked
from xpk.capacity.cluster_setup import is_set_up, set_up
from xpk.capacity.controllers import install
from xpk.capacity.docker import Engine, control_plane_of
from xpk.capacity.fencing.machines import Machine
from xpk.capacity.images.trainer_image import TrainerImage, build_context, trainer_image
from xpk.capacity.kind.options import KindOptions
from xpk.capacity.kubeconfig import connect
from xpk.capacity.nodes.cordon import check_deletable, closing_step, opening_steps
from xpk.capacity.nodes.emulated import advertise_step
from xpk.capacity.nodes.health import lacking, wait_step
from xpk.capacity.nodes.inventory import (
    advertises,
    cluster_info,
    difference,
    pools_of,
    slice_nodes,
    spec_of,
)
from xpk.capacity.options import limit_problems
from xpk.capacity.plan.executor import Activity
from xpk.capacity.plan.plan import Plan, Step
from xpk.capacity.plan.summary import cluster_summary
from xpk.capacity.provider import ClusterInfo, no_cluster
from xpk.capacity.state import state_of
from xpk.model import names
from xpk.model.accelerators import SliceShape
from xpk.model.errors import ConflictError, UsageError, XpkError
from xpk.model.specs import ClusterSpec, Target
from xpk.proc import LocalRunner, Runner
from xpk.render import render_kind
from xpk.storage.private import make_folder

_MAX_NODES = 64  # each is a container with a kubelet and a container runtime of its own
_KUBECONFIG, _CONFIG, _OUTPUT, _IMAGE = "kubeconfig", "kind.yaml", "output", "trainer-image"


class KindProvider:
    """kind clusters, each with a folder below `root` for its kubeconfig and its workloads' output."""

    name = "kind"
    quiet_seconds = 0.0
    options_type: ClassVar[type[KindOptions]] = KindOptions

    def __init__(
        self,
        root: Path | None = None,
        *,
        runner: Runner | None = None,
        options: KindOptions | None = None,
        connect: Callable[[Path | None], ObjectApi] = connect,
        pause: install.Pause = time.sleep,
    ) -> None:
        self._root = state_of(self.name, root)
        self._engine = Engine(runner or LocalRunner())
        self._options = options or KindOptions()
        self._open = connect
        self._pause = pause
        self._activity = Activity()

    def plan_create(self, spec: ClusterSpec) -> Plan:
        """See `Provider.plan_create`. Skips the completed steps of an interrupted create."""
        # Without the lock, one command would take the nodes that another one creates for remains, and remove them.
        return locked(self._plan_create(spec), self._root, spec.name, lambda: self._plan_create(spec))

    def _plan_create(self, spec: ClusterSpec) -> Plan:
        options = self._checked(spec)
        self._engine.check()
        summary = _summary(spec, options)
        exists, ours = spec.name in self._engine.clusters(), spec.name in self.names()
        if exists and not ours:
            raise ConflictError(
                f"kind cluster '{spec.name}' already exists and was not created by xpk",
                hint=f"choose another name, or `kind delete cluster --name {spec.name}` first",
            )
        if not exists or not self._path(spec.name, _KUBECONFIG).exists():
            return Plan(summary, self._build_steps(spec, options, half_made=exists), activity=self._activity)
        api = self.connect(spec.name)
        nodes = slice_nodes(api)
        have = spec_of(spec.name, nodes)
        differs = difference(have, spec)
        have_options = _options_of(nodes) if not differs else options
        if differs := differs or _other_nodes(have_options, options):
            raise ConflictError(
                f"cluster '{spec.name}' exists with another shape: {differs}",
                hint=f"run `xpk cluster delete {spec.name}` first, or choose another name; kind cannot change nodes",
            )
        steps = self._archive_steps(spec.name, options) + self._missing_steps(spec, have_options, api, nodes)
        return Plan(_summary(spec, have_options), steps, activity=self._activity)

    def plan_adapt(self, name: str) -> Plan:
        """Plan the parts that an existing cluster lacks, such as newer controllers, by creating it again."""
        self._known(name)
        self._engine.check()
        whole = name in self._engine.clusters() and self._path(name, _KUBECONFIG).exists()
        spec = spec_of(name, slice_nodes(self.connect(name))) if whole else None
        if spec is None:
            raise ConflictError(
                f"cluster '{name}' is incomplete",
                hint=f"`xpk cluster create {name} --provider kind --tpu-type TYPE --num-slices N` completes it",
            )
        return self.plan_create(spec)

    def plan_resize(self, name: str, num_slices: int, *, force: bool) -> Plan:
        """See `Provider.plan_resize`. kind can neither add nor remove nodes."""
        have = self.describe(name)
        if num_slices == have.num_slices:
            api = self.connect(name)
            opened = opening_steps(api, slice_nodes(api))
            return Plan(f"cluster '{name}': {num_slices} x {have.accelerator_type}, unchanged", opened)
        raise UsageError(
            f"kind cannot add or remove nodes: cluster '{name}' keeps its {have.num_slices} slices",
            hint=f"`xpk cluster delete {name}`, then `xpk cluster create {name} --provider kind "
            f"--tpu-type {have.accelerator_type} --num-slices {num_slices}`",
        )

    def plan_delete(self, name: str, *, force: bool) -> Plan:
        """See `Provider.plan_delete`."""
        self._known(name)
        self._engine.check()
        exists, steps = name in self._engine.clusters(), list[Step]()
        if exists and not force and self._path(name, _KUBECONFIG).exists():
            api = self.connect(name)
            check_deletable(api, name)
            steps = [closing_step(api, name)]
        title = f"remove the containers, the network and the files of '{name}'"
        return Plan(f"delete cluster '{name}' and all output on it", [*steps, Step(title, partial(self._delete, name))])

    def names(self) -> list[str]:
        """See `Provider.names`. Those that xpk created: asking kind would cost every command a process."""
        return sorted(entry.name for entry in self._root.iterdir() if entry.is_dir()) if self._root.is_dir() else []

    def describe(self, name: str, *, brief: bool = False) -> ClusterInfo:
        """See `Provider.describe`."""
        api = self.connect(name)
        nodes = slice_nodes(api)
        spec = spec_of(name, nodes)
        location = str(self._root / name)
        return cluster_info(api, spec, nodes, brief=brief, name=name, provider=self.name, location=location)

    def connect(self, name: str) -> ObjectApi:
        """See `Provider.connect`."""
        self._known(name)
        kubeconfig = self._path(name, _KUBECONFIG)
        if not kubeconfig.exists():
            raise XpkError(f"cluster '{name}' is incomplete", hint="run its `xpk cluster create` command again")
        return self._open(kubeconfig)

    def kubeconfig(self, name: str) -> str:
        """See `Provider.kubeconfig`."""
        self.connect(name)
        return self._path(name, _KUBECONFIG).read_text(encoding="utf-8")

    def target(self, name: str) -> Target:
        """See `Provider.target`."""
        output = str(self._path(name, _OUTPUT))
        return Target(
            emulated=True,
            sets_slice_environment=True,
            output_root=output,
            shared_folder=output,
            exclusive=True,
            fenced=True,
            trainer_image=self._loaded_image(name),
        )

    def machines(self, name: str, nodes: Objs) -> Mapping[str, Machine]:
        """See `Machines.machines`. One Docker command returns all of them."""
        return self._engine.machines(name, [str(node["metadata"]["name"]) for node in nodes])

    def _path(self, name: str, file: str) -> Path:
        return self._root / name / file

    def _known(self, name: str) -> None:
        if name not in self.names():
            raise no_cluster(name)

    def _checked(self, spec: ClusterSpec) -> KindOptions:
        """Return the options for building it. Raises UsageError with all problems."""
        options = self._options
        problems, per_slice = [*spec.problems(), *limit_problems(options)], options.nodes_per_slice
        if spec.shape.kind == "cpu":
            problems.append(f"{spec.shape.name} has no accelerator for a kind node to advertise: use a TPU or GPU type")
        if not 1 <= per_slice <= spec.shape.hosts or spec.shape.hosts % per_slice:
            problems.append(f"a slice of {spec.shape.hosts} hosts cannot be spread evenly over {per_slice} nodes")
        elif (spec.num_slices + options.spare_slices) * per_slice > _MAX_NODES:
            problems.append(f"one machine runs at most {_MAX_NODES} kind nodes")
        problems += [f"image archive {file} not found" for file in options.image_archives if not file.is_file()]
        problems += install.source_problems(options)
        if problems:
            raise UsageError(
                f"cluster '{spec.name}' cannot be created", problems=problems, hint="see `xpk cluster create --help`"
            )
        return options

    def _build_steps(self, spec: ClusterSpec, options: KindOptions, *, half_made: bool) -> list[Step]:
        steps = []
        if half_made:
            undo = partial(self._engine.delete, spec.name, self._path(spec.name, _KUBECONFIG))
            steps.append(Step(f"remove the remains of an interrupted create of '{spec.name}'", undo))
        count = (spec.num_slices + options.spare_slices) * options.nodes_per_slice
        title = f"create kind cluster '{spec.name}': a control plane and {count} nodes"
        steps += [Step(title, partial(self._make, spec, options)), self._advertise_step(spec, options)]
        steps += self._archive_steps(spec.name, options)
        for controller in install.CONTROLLERS:
            steps.append(self._install_step(spec.name, controller, f"install {controller.name} {controller.version}"))
        image = trainer_image(self._options.trainer_image, base=self._options.base_image)
        # With the queue the cluster is complete.
        return [*steps, self._image_step(spec.name, image), self._queue_step(spec), self._hosts_step(spec)]

    def _missing_steps(self, spec: ClusterSpec, options: KindOptions, api: ObjectApi, nodes: Objs) -> list[Step]:
        steps = []
        if not all(advertises(node, spec.shape.resource, _units(spec, options)) for node in nodes):
            steps.append(self._advertise_step(spec, options))
        for controller in install.CONTROLLERS:
            if title := install.missing_step(api, controller):
                steps.append(self._install_step(spec.name, controller, title))
        image = trainer_image(self._options.trainer_image, base=self._options.base_image)
        if image.name != self._loaded_image(spec.name):
            steps.append(self._image_step(spec.name, image))
        if not is_set_up(api, spec):
            steps.append(self._queue_step(spec))
        return [*steps, self._hosts_step(spec)] if lacking(_types(spec, nodes), nodes) else steps

    def _make(self, spec: ClusterSpec, options: KindOptions) -> None:
        folder, output = self._root / spec.name, self._path(spec.name, _OUTPUT)
        existed = folder.exists()
        make_folder(output)
        output.chmod(0o1777)  # pods run as different users; the sticky bit protects their files from each other
        for stale in (_KUBECONFIG, _IMAGE):
            self._path(spec.name, stale).unlink(missing_ok=True)
        config = render_kind(
            spec,
            nodes_per_slice=options.nodes_per_slice,
            spare_slices=options.spare_slices,
            shared_folder=str(output),
        )
        file = self._path(spec.name, _CONFIG)
        file.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
        # Renamed only when complete: the kubeconfig's presence marks a complete cluster.
        fresh = self._path(spec.name, f"{_KUBECONFIG}.new")
        try:
            self._engine.create(
                spec.name, config=file, kubeconfig=fresh, image=options.node_image, retain=options.retain
            )
        except BaseException as error:
            # The remains stay recorded, so that the next `create` or `delete` handles them; nodes of others are none.
            is_foreign = isinstance(error, ConflictError)
            if not existed and (is_foreign or (not options.retain and self._is_gone(spec.name))):
                shutil.rmtree(folder, ignore_errors=True)
            raise
        fresh.rename(self._path(spec.name, _KUBECONFIG))

    def _is_gone(self, name: str) -> bool:
        try:
            return name not in self._engine.clusters()
        except XpkError:
            return False

    def _advertise_step(self, spec: ClusterSpec, options: KindOptions) -> Step:
        return advertise_step(lambda: self.connect(spec.name), spec, _units(spec, options), self._pause)

    def _install_step(self, name: str, controller: install.Controller, title: str) -> Step:
        def act() -> None:
            install.install(
                self.connect(name),
                controller,
                pinned=True,
                load=lambda images: self._engine.load(name, images, [control_plane_of(name)]),
                source=self._options.manifest_of(controller.name),
                pause=self._pause,
            )

        return Step(title, act)

    def _archive_steps(self, name: str, options: KindOptions) -> list[Step]:
        return [
            Step(f"load the images of {file} into the nodes", partial(self._engine.load_archive, name, file))
            for file in options.image_archives
        ]

    def _image_step(self, name: str, image: TrainerImage) -> Step:
        def act() -> None:
            if image.ours and not self._engine.has_image(image.name):
                with build_context() as folder:
                    self._engine.build(image.name, folder, image.arguments)
            nodes = [node["metadata"]["name"] for node in slice_nodes(self.connect(name))]
            self._engine.load(name, [image.name], nodes)
            self._path(name, _IMAGE).write_text(f"{image.name}\n", encoding="utf-8")

        return Step(f"load trainer image {image.name} into the nodes", act)

    def _loaded_image(self, name: str) -> str | None:
        try:
            return self._path(name, _IMAGE).read_text(encoding="utf-8").strip() or None
        except FileNotFoundError:
            return None

    def _queue_step(self, spec: ClusterSpec) -> Step:
        def act() -> None:
            set_up(self.connect(spec.name), [spec])

        return Step(f"set up queue '{names.QUEUE}' with a quota of {spec.quota} {spec.shape.resource}", act)

    def _hosts_step(self, spec: ClusterSpec) -> Step:
        connect = partial(self.connect, spec.name)
        return wait_step(
            connect, spec.name, lambda: _types(spec, slice_nodes(connect())), self._activity, pause=self._pause
        )

    def _delete(self, name: str) -> None:
        folder = self._root / name
        self._engine.empty_folder(name, self._path(name, _OUTPUT))
        self._engine.delete(name, self._path(name, _KUBECONFIG))
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise XpkError(f"cannot remove {folder}: {error.strerror}", hint="remove it by hand") from error


def _types(spec: ClusterSpec, nodes: Objs) -> dict[str, SliceShape]:
    """Return the type of each slice by its node pool; spare ones are of the same type."""
    return dict.fromkeys(pools_of(nodes) | pools_of(nodes, spare=True), spec.shape)


def _options_of(nodes: Objs) -> KindOptions:
    """Return the options with which a cluster was created; they stay in force."""
    spare = pools_of(nodes, spare=True)
    return KindOptions(nodes_per_slice=len(nodes) // len(pools_of(nodes) | spare), spare_slices=len(spare))


def _other_nodes(have: KindOptions, options: KindOptions) -> str:
    """Return how the nodes of a cluster differ from the requested ones, as text; defaults keep what it has."""
    parts = []
    if options.nodes_per_slice not in (KindOptions().nodes_per_slice, have.nodes_per_slice):
        parts.append(f"{counted(have.nodes_per_slice, 'node')} per slice (requested {options.nodes_per_slice})")
    if options.spare_slices not in (KindOptions().spare_slices, have.spare_slices):
        parts.append(f"{counted(have.spare_slices, 'spare slice')} (requested {options.spare_slices})")
    return ", ".join(parts)


def _units(spec: ClusterSpec, options: KindOptions) -> int:
    """Return the number of accelerators of a node."""
    return spec.shape.hosts // options.nodes_per_slice * spec.shape.resource_per_host


def _summary(spec: ClusterSpec, options: KindOptions) -> str:
    return f"{cluster_summary(spec, spare_slices=options.spare_slices)}, emulated by kind on this machine's CPUs"
