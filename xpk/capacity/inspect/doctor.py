"""Checks of this machine and of a cluster for everything that xpk requires. Reads only."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec

from xpk.api.base import ObjectApi
from xpk.api.kinds import EVERY_KIND
from xpk.api.paths import access_review
from xpk.capacity.controllers import install
from xpk.capacity.provider import CONTEXT
from xpk.model.errors import AuthorizationError, NotFoundError, XpkError

_ON_KUBERNETES = ("adapted", "gke", "kind")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prerequisite:
    """The result of the check of a program, package, controller or permission."""

    name: str  # of what is checked
    ok: bool | None  # whether it is present; null if unknown
    needed: bool  # the chosen provider requires it
    detail: str  # result in one line
    next: str = ""  # command or step that installs it; may be empty


@dataclass(frozen=True, slots=True)
class _Part:
    """A program or a package. `providers`: those that require it; `purpose`: its use for others."""

    name: str
    is_there: Callable[[], bool]
    providers: tuple[str, ...]
    purpose: str
    next: str


def _program(name: str, providers: tuple[str, ...], purpose: str, hint: str) -> _Part:
    return _Part(name, lambda: shutil.which(name) is not None, providers, purpose, hint)


def _package(module: str, extra: str, providers: tuple[str, ...], purpose: str) -> _Part:
    def is_there() -> bool:
        try:
            return find_spec(module) is not None
        except ModuleNotFoundError:  # nor its parent package
            return False

    return _Part(module, is_there, providers, purpose, f"pip install 'xpk-multislice[{extra}]'")


_PARTS = (
    _program("docker", ("kind",), "clusters on kind", "install Docker: https://docs.docker.com/engine/install"),
    _program("kind", ("kind",), "clusters on kind", "install kind: https://kind.sigs.k8s.io"),
    _program(
        "kubectl", (), "`xpk workload exec` on Kubernetes", "install kubectl: https://kubernetes.io/docs/tasks/tools"
    ),
    _package("kubernetes", "kubernetes", _ON_KUBERNETES, "clusters on Kubernetes"),
    _package("google.cloud.container_v1", "gke", ("gke",), "clusters on GKE"),
    _package("jax", "trainer", (), "the bundled trainer on this machine"),
    _package("ray", "ray", (), "`--launcher ray` on this machine"),
)
# Permissions to run workloads in a namespace; `xpk docs permissions` lists the roles.
_VERBS = (
    ("create", "JobSet"),
    ("list", "JobSet"),
    ("delete", "JobSet"),
    ("create", "Secret"),
    ("list", "Pod"),
    ("list", "Workload"),
    ("get", "LocalQueue"),
    ("get", "ClusterQueue"),
    ("list", "Node"),
)


def of_machine(provider: str) -> list[Prerequisite]:
    """Check programs and packages; those that `provider` requires are needed."""
    return [
        Prerequisite(
            name=part.name,
            ok=(ok := part.is_there()),
            needed=provider in part.providers,
            detail=f"needed by provider {provider}" if provider in part.providers else f"for {part.purpose}",
            next="" if ok else part.next,
        )
        for part in _PARTS
    ]


def of_cluster(connect: Callable[[], ObjectApi], provider: str, cluster: str, namespace: str) -> list[Prerequisite]:
    """Check that a cluster answers, has its controllers, and allows this user to run workloads."""
    try:
        api = connect()
        with suppress(AuthorizationError):  # a refusal shows that it answers; permissions are checked below
            api.list("Pod", namespace)
    except NotFoundError:  # the cluster does not exist
        raise
    except XpkError as error:
        return [Prerequisite(name="cluster", ok=False, needed=True, detail=error.message, next=error.hint)]
    checks = [Prerequisite(name="cluster", ok=True, needed=True, detail=f"'{cluster}' answers")]
    if provider not in _ON_KUBERNETES:  # the local control plane includes its controllers and has no permissions
        return checks
    return [*checks, *_controllers(api, _how_to_install(provider, cluster)), *_permissions(api, namespace)]


def _controllers(api: ObjectApi, hint: str) -> Iterator[Prerequisite]:
    for controller in install.CONTROLLERS:
        try:
            missing = install.whats_missing(api, controller)
            detail = missing or _version(api, controller)
        except XpkError as error:  # users who run workloads may lack the permission to see controllers
            yield Prerequisite(name=controller.name, ok=None, needed=False, detail=error.message)
            continue
        yield Prerequisite(
            name=controller.name, ok=not missing, needed=True, detail=detail, next=hint if missing else ""
        )


def _version(api: ObjectApi, controller: install.Controller) -> str:
    numbers = install.version_of(api.get("Deployment", controller.deployment, controller.namespace))
    return ".".join(map(str, numbers)) or "of unknown version: its image has no version tag"


def _how_to_install(provider: str, cluster: str) -> str:
    if cluster.startswith(CONTEXT):
        return f"`xpk cluster adapt NAME --context {cluster.removeprefix(CONTEXT)}`"
    if provider == "kind":
        return f"`xpk cluster create {cluster}`, with its original flags"
    return f"`xpk cluster adapt {cluster}`"


def _permissions(api: ObjectApi, namespace: str) -> Iterator[Prerequisite]:
    for verb, name in _VERBS:
        kind = EVERY_KIND[name]
        what = {"verb": verb, "resource": kind.plural, "group": kind.api_version.rpartition("/")[0]}
        if kind.namespaced:
            what["namespace"] = namespace
        where = f" in namespace '{namespace}'" if kind.namespaced else ""
        try:
            allowed = bool(api.create(access_review(**what)).get("status", {}).get("allowed"))
        except XpkError as error:
            yield Prerequisite(name="permissions", ok=None, needed=False, detail=error.message)
            return
        yield Prerequisite(
            name=f"may I {verb} {kind.plural}",
            ok=allowed,
            needed=True,
            detail=f"{'yes' if allowed else 'no'}{where}",
            next="" if allowed else "ask an administrator for the roles of `xpk docs permissions`",
        )
