"""Checks of this machine and of a cluster for everything that xpk requires. Reads only."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata

from xpk.api.base import ObjectApi
from xpk.api.kinds import EVERY_KIND
from xpk.api.paths import access_review
from xpk.capacity.controllers import install
from xpk.capacity.provider import CONTEXT
from xpk.model.errors import AuthorizationError, NotFoundError, XpkError
from xpk.proc import run_limited

_VERSION = re.compile(r"\d+(\.\d+)+")
_VERSION_SECONDS, _VERSION_BYTES = 5.0, 64 * 1024  # limits of a program that prints its version
_ON_KUBERNETES = ("adapted", "gke", "kind")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prerequisite:
    """The result of the check of a program, package, controller or permission."""

    name: str  # name of the program, package, controller or permission
    ok: bool | None  # whether it is present; null if unknown
    needed: bool  # whether the chosen provider requires it
    detail: str  # result in one line
    version: str = ""  # of a program, package or controller that is present; may be empty
    next: str = ""  # command or step that installs it; may be empty


@dataclass(frozen=True, slots=True)
class _Part:
    """A program or a package. `providers`: those that require it; `purpose`: its use for others."""

    name: str
    read_version: Callable[[], str | None]  # None if it is missing, "" if its version is unknown
    providers: tuple[str, ...]
    purpose: str
    next: str


def _program(name: str, providers: tuple[str, ...], purpose: str, hint: str, *, flags: tuple[str, ...]) -> _Part:
    def read_version() -> str | None:
        if shutil.which(name) is None:
            return None
        with suppress(XpkError, OSError):
            result = run_limited(
                [name, *flags], env=None, seconds=_VERSION_SECONDS, max_bytes=_VERSION_BYTES, interactive=False
            )
            return match[0] if (match := _VERSION.search(result.stdout)) else ""
        return ""

    return _Part(name, read_version, providers, purpose, hint)


def _package(distribution: str, extra: str, providers: tuple[str, ...], purpose: str) -> _Part:
    def read_version() -> str | None:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            return None

    return _Part(distribution, read_version, providers, purpose, f"pip install 'xpk-multislice[{extra}]'")


_PARTS = (
    _program(
        "docker", ("kind",), "clusters on kind", "install Docker: https://docs.docker.com/engine/install",
        flags=("--version",),
    ),
    _program(
        "kind", ("kind",), "clusters on kind", "install kind: https://kind.sigs.k8s.io", flags=("--version",)
    ),
    _program(
        "kubectl", (), "`workload exec` on Kubernetes", "install kubectl: https://kubernetes.io/docs/tasks/tools",
        flags=("version", "--client"),
    ),
    _package("kubernetes", "kubernetes", _ON_KUBERNETES, "clusters on Kubernetes"),
    _package("google-cloud-container", "gke", ("gke",), "clusters on GKE"),
    _package("jax", "trainer", (), "the trainer on this machine"),
    _package("ray", "ray", (), "`--launcher ray` on this machine"),
)  # fmt: skip
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
            ok=(version := part.read_version()) is not None,
            needed=provider in part.providers,
            detail=f"needed by provider {provider}" if provider in part.providers else f"for {part.purpose}",
            version=version or "",
            next=part.next if version is None else "",
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
    return [*checks, *_controllers(api, _install_hint(provider, cluster)), *_permissions(api, namespace)]


def _controllers(api: ObjectApi, hint: str) -> Iterator[Prerequisite]:
    for controller in install.CONTROLLERS:
        try:
            missing = install.missing_step(api, controller)
            version = "" if missing else _version(api, controller)
        except XpkError as error:  # users who run workloads may lack the permission to see controllers
            yield Prerequisite(name=controller.name, ok=None, needed=False, detail=error.message)
            continue
        yield Prerequisite(
            name=controller.name,
            ok=not missing,
            needed=True,
            detail=missing or f"controller in namespace {controller.namespace}",
            version=version,
            next=hint if missing else "",
        )


def _version(api: ObjectApi, controller: install.Controller) -> str:
    numbers = install.version_of(api.get("Deployment", controller.deployment, controller.namespace))
    return ".".join(map(str, numbers))


def _install_hint(provider: str, cluster: str) -> str:
    if cluster.startswith(CONTEXT):
        return f"`xpk cluster adapt NAME --context {cluster.removeprefix(CONTEXT)}`"
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
            name=f"permission to {verb} {kind.plural}",
            ok=allowed,
            needed=True,
            detail=f"{'yes' if allowed else 'no'}{where}",
            next="" if allowed else "ask an administrator for the roles of `xpk docs permissions`",
        )
