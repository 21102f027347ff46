"""Versions of this program, of a cluster's API server, and of its controllers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xpk.api.base import ObjectApi, Versioned
from xpk.capacity.controllers import install
from xpk.model.errors import NotFoundError, XpkError
from xpk.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """The version of one component."""

    name: str  # xpk, or a component of the cluster
    version: str  # installed version
    installs: str = ""  # version that this xpk installs; empty if none


def client() -> Version:
    """Return the version of this program."""
    return Version(name="xpk", version=__version__)


def of_cluster(connect: Callable[[], ObjectApi]) -> list[Version]:
    """Return the versions on a cluster; unreadable ones are `unknown`, with the reason."""
    try:
        api = connect()
        server = api.server_version() if isinstance(api, Versioned) else "local"
    except XpkError as error:
        return [Version(name="API server", version=f"unknown: {error.message}")]
    component_versions = [Version(name="API server", version=server)]
    if isinstance(api, Versioned):
        component_versions += [_controller(api, controller) for controller in install.CONTROLLERS]
    return component_versions


def _controller(api: ObjectApi, controller: install.Controller) -> Version:
    try:
        numbers = install.version_of(api.get("Deployment", controller.deployment, controller.namespace))
        version = ".".join(map(str, numbers)) or "unknown: its image has no version"
    except NotFoundError:
        version = "not installed"
    except XpkError as error:
        version = f"unknown: {error.message}"
    return Version(name=controller.name, version=version, installs=controller.version)
