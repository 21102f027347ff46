"""Machines of a GKE cluster's nodes: Compute Engine instances on the emulator."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest

from tests.capacity.gke.conftest import MakeSite
from tests.capacity.gke.site import Site
from tools.gke_emulator.faults import CallFault
from xpk.api.base import Obj
from xpk.capacity.fencing.machines import Machine, Machines, MachineState
from xpk.model.errors import AuthorizationError


class Project:
    """Cluster `c` with one slice, and a node object for each instance."""

    def __init__(self, site: Site) -> None:
        self.site = site
        site.create(1)
        self.names = [item["name"] for item in self.rest("GET", "").get("items", []) if "default" not in item["name"]]

    def rest(self, method: str, path: str) -> Any:
        """Send a request about instances."""
        url = f"{self.site.gke.http_url}/compute/v1/projects/p/zones/us-central1-a/instances{path}"
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=30) as answer:
            return json.load(answer)

    def node(self, name: str, instance_id: str | None = None, project: str = "p") -> Obj:
        """Return the node of an instance."""
        own = instance_id or str(self.rest("GET", f"/{name}")["id"])
        meta = {"name": name, "annotations": {"container.googleapis.com/instance_id": own}}
        return {"metadata": meta, "spec": {"providerID": f"gce://{project}/us-central1-a/{name}"}}

    def read(self, *nodes: Obj) -> dict[str, Machine]:
        """Return the machines of nodes."""
        provider = self.site.provider()
        assert isinstance(provider, Machines)
        return dict(provider.machines("c", list(nodes)))


@pytest.fixture
def project(site: Site) -> Project:
    return Project(site)


def test_a_stopped_instance_counts_as_lost_since_its_stop(project: Project) -> None:
    first, second = project.names[:2]
    nodes = [project.node(first), project.node(second)]
    assert {item.state for item in project.read(*nodes).values()} == {MachineState.RUNNING}
    project.rest("POST", f"/{first}/stop")
    machines = project.read(*nodes)
    assert (machines[first].state, machines[first].words) == (MachineState.GONE, "its instance is TERMINATED")
    assert machines[first].stopped is not None and machines[second].state == MachineState.RUNNING


@pytest.mark.parametrize("status", ["STOPPING", "SUSPENDED", "REPAIRING", "STAGING", "PROVISIONING", "of the future"])
def test_an_instance_that_may_continue_does_not_count_as_lost(project: Project, status: str) -> None:
    name = project.names[0]
    project.site.gke.plane.compute.set_instance("p", "us-central1-a", name, status=status)
    assert project.read(project.node(name))[name].state == MachineState.UNKNOWN


def test_a_deleted_or_replaced_instance_counts_as_lost(project: Project) -> None:
    (name,) = project.names[:1]
    assert project.read(project.node(name, "123"))[name].words == "its instance was replaced"
    machines = project.read(project.node("gke-none", "123"))
    assert (machines["gke-none"].state, machines["gke-none"].words) == (MachineState.GONE, "its instance was deleted")


@pytest.mark.parametrize(
    "provider_id", ["", "gce://q/us-central1-a/{}", "aws:///a/i-1", "gce://p/../../{}", "kind://docker/c/{}"]
)
def test_instances_of_other_projects_are_not_queried(project: Project, provider_id: str) -> None:
    name = project.names[0]
    node = project.node(name)
    node["spec"]["providerID"] = provider_id.format(name)
    calls = len(project.site.gke.calls)
    assert project.read(node)[name].state == MachineState.UNKNOWN
    assert len(project.site.gke.calls) == calls


def test_missing_permission_to_read_instances_is_an_error(make_site: MakeSite) -> None:
    project = Project(make_site())
    node = project.node(project.names[0])
    fault = CallFault(
        "GET *instances/*", "PERMISSION_DENIED", probability=1.0, message="Required 'compute.instances.get'"
    )
    project.site.gke.plane.faults.add(fault)
    with pytest.raises(AuthorizationError, match=r"compute\.instances\.get"):
        project.read(node)
