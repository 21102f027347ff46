"""Access to the API server of a GKE cluster: a kubeconfig of its own, with tokens from google-auth."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from xpk.api.base import ObjectApi
from xpk.capacity.kubeconfig import write_private
from xpk.capacity.plan.executor import Step
from xpk.capacity.provider import load_provider, provider_names
from xpk.model.errors import NotFoundError, UsageError, XpkError

Connect = Callable[[Path | None], ObjectApi]

_KUBECONFIG, _PLACE = "kubeconfig", "cluster.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLocation:
    """A cluster's location: its project, the location of its control plane, the zone of its nodes."""

    project: str
    location: str
    zone: str


class KnownClusters:
    """The known clusters, each with a folder below `root`."""

    def __init__(self, root: Path, open_api: Connect, *, emulated: bool) -> None:
        self._root, self._open, self._emulated = root, open_api, emulated

    def names(self) -> list[str]:
        """Return the names of the known clusters."""
        return sorted(path.parent.name for path in self._root.glob(f"*/{_PLACE}"))

    def place(self, name: str) -> ClusterLocation | None:
        """Return a cluster's location, None if it is unknown."""
        file = self._root / name / _PLACE
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
            unknown = sorted({*record} - {field.name for field in fields(ClusterLocation)})
            if isinstance(record, dict) and unknown:
                raise XpkError(
                    f"{file} was written by a newer version of xpk (it has '{unknown[0]}')", hint="upgrade xpk"
                )
            return ClusterLocation(**record)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, TypeError) as error:
            raise XpkError(f"{file} is damaged: {error}", hint="remove it") from error

    def remember(self, name: str, place: ClusterLocation) -> None:
        """Store a cluster's location."""
        write_private(
            self._root / name / _PLACE,
            json.dumps({"project": place.project, "location": place.location, "zone": place.zone}),
        )

    def step(self, name: str, place: ClusterLocation, find: Callable[[], object] | None = None) -> Step:
        """Return the step that stores a cluster's location.

        A rollback undoes it last, unless `find` finds the cluster: as long as it exists, commands have to find it.
        """
        before = self.place(name)

        def undo() -> bool:
            if find and not _is_gone(find):
                return False
            if before and before != place:
                self.remember(name, before)
            else:
                self.forget(name)
            return True

        act = partial(self.remember, name, place)
        return Step(f"save the location of '{name}'", act, key="remember", undo=undo, undo_last=True)

    def forget(self, name: str) -> None:
        """Remove everything that is stored about a cluster."""
        folder = self._root / name
        # The location is removed last, so that an interrupted `forget` can be repeated.
        for file in folder.glob("*"):
            if file.name != _PLACE:
                file.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)

    def connect(self, name: str, cluster: Mapping[str, Any] | None) -> ObjectApi:
        """Return a cluster's API server; `cluster` is GKE's description, None if a kubeconfig is stored."""
        file = self._root / name / _KUBECONFIG
        if cluster is not None:
            write_private(self._root / name / _KUBECONFIG, self.kubeconfig(cluster))
        return self._open(file)

    def has_kubeconfig(self, name: str) -> bool:
        """Return whether a cluster's kubeconfig is stored."""
        return (self._root / name / _KUBECONFIG).exists()

    def kubeconfig(self, cluster: Mapping[str, Any]) -> str:
        """Return a kubeconfig for a cluster. kubectl runs this Python for tokens, not gcloud."""
        endpoints = cluster.get("control_plane_endpoints_config", {})
        dns = endpoints.get("dns_endpoint_config", {})
        endpoint: dict[str, Any]
        if dns.get("allow_external_traffic") and dns.get("endpoint") and not self._emulated:
            endpoint = {"server": f"https://{dns['endpoint']}"}
        else:
            authority = cluster.get("master_auth", {}).get("cluster_ca_certificate", "")
            endpoint = {"server": f"https://{cluster.get('endpoint', '')}", "certificate-authority-data": authority}
        name = f"gke_{cluster['name']}"
        user = {
            "exec": {
                "apiVersion": "client.authentication.k8s.io/v1",
                "command": sys.executable,
                "args": ["-m", "xpk.capacity.gke.token"],
                "interactiveMode": "Never",
            }
        }
        return yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": name,
                "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
                "clusters": [{"name": name, "cluster": endpoint}],
                "users": [{"name": name, "user": user}],
            },
            sort_keys=False,
        )


def _is_gone(find: Callable[[], object]) -> bool:
    """Return whether a cluster certainly does not exist."""
    try:
        find()
    except NotFoundError:
        return True
    except XpkError:  # it may exist
        return False
    return False


def check_project(name: str, location: ClusterLocation | None, project: str) -> None:
    """Raise UsageError if a known cluster is in another project than the requested one."""
    if location and project and location.project != project:
        raise UsageError(
            f"cluster '{name}' is in project {location.project} (requested {project})", hint="omit --project"
        )


def check_foreign(name: str) -> None:
    """Raise UsageError if another provider has a cluster of this name."""
    for other in provider_names():
        if other != "gke" and name in load_provider(other).names():
            raise UsageError(f"cluster '{name}' belongs to provider '{other}'", hint="omit --project and --zone")
