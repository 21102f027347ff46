"""The cluster that a workload is for; in a dry run also one that nobody here can ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xpk.api import storages
from xpk.api.base import ObjectApi
from xpk.capacity.provider import provider_of
from xpk.cli.target import the_cluster
from xpk.cli.terminal.output import Console
from xpk.jobs.create import create as creating
from xpk.model import names
from xpk.model.accelerators import find_shape
from xpk.model.errors import (
    AuthorizationError,
    MissingToolError,
    NotFoundError,
    TimedOutError,
    UnavailableError,
    UsageError,
)
from xpk.model.mounts import Mount
from xpk.model.specs import Target

# Why a cluster cannot be asked.
OUT_OF_REACH = (AuthorizationError, MissingToolError, NotFoundError, TimedOutError, UnavailableError)


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster, how workloads run on it, and the queue there. `api`: None if nobody can be asked."""

    cluster: str
    target: Target
    queue: creating.Queue
    api: ObjectApi | None

    def reached(self) -> ObjectApi:
        """Return the API of a cluster that was asked."""
        if self.api is None:
            raise UsageError(f"cluster '{self.cluster}' was not reached")
        return self.api

    def storages(self, console: Console, wanted: tuple[str, ...], namespace: str) -> tuple[Mount, ...]:
        """Return the mounts of the storages that a workload names, and of those that all mount."""
        if self.target.on_this_machine:
            if wanted:
                raise UsageError(
                    "--storage: hosts are processes of this machine, and nothing can be mounted for them alone",
                    hint="leave it out: they see all folders of this machine at their own paths",
                )
            return ()
        if self.api is None:
            if wanted:
                console.warn(f"--storage {', '.join(wanted)} is left out: the cluster knows what it is")
            return ()
        return tuple(each.mount for each in storages.choose(self.api, namespace, wanted))


def find_place(console: Console, cluster: str | None, given: dict[str, Any]) -> Place:
    """Return the cluster that is meant. In a dry run one that cannot be reached is taken for a new one on GKE."""
    is_dry = given["dry_run"] == "client"
    try:
        name = the_cluster(cluster)
        provider = provider_of(name)
        api = provider.connect(name)
        queue = creating.read_queue(api, given["queue"], given["namespace"], cluster=name)
        return Place(name, provider.target(name), queue, api)
    except OUT_OF_REACH as error:
        if not is_dry or cluster is None:
            raise
        if not given["accelerator_type"]:
            raise type(error)(error.message, hint="a dry run without the cluster requires --tpu-type TYPE") from error
        console.warn(f"a run would be refused: {error.message}; shown is what a new cluster on GKE would get")
        return _imagined(cluster, given)


def _imagined(cluster: str, given: dict[str, Any]) -> Place:
    """Return a cluster on GKE that makes slices of the type and capacity that are asked for."""
    kind = find_shape(given["accelerator_type"]).name
    target = Target(emulated=False, sets_slice_environment=False, output_root="", autoprovisioned={kind: ""})
    queue = creating.Queue(given["queue"] or names.QUEUE, {kind: {}}, is_judged=False)
    return Place(cluster, target, queue, None)
