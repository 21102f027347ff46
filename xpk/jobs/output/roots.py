"""Output roots of workloads that the cluster or the user permits.

The output folder in a workload's objects is an untrusted claim, since anybody who may create or annotate a JobSet can
set it. It is only compared with the folder derived from a root, a namespace and a name (docs/security.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from xpk.jobs.output.folder import at_root
from xpk.model import names
from xpk.model.errors import AuthorizationError, ConflictError, NotFoundError
from xpk.model.specs import Target
from xpk.model.terminal import printable
from xpk.storage import in_bucket

_UNKNOWN = Target(emulated=False, sets_slice_environment=False, output_root="")
_SHOWN = 300  # characters of a claim


class Claim(Protocol):
    """A workload and the output folder that its objects name, such as its status."""

    @property
    def name(self) -> str:
        """Return the name of the workload."""
        ...

    @property
    def namespace(self) -> str:
        """Return the namespace of the workload."""
        ...

    @property
    def output_dir(self) -> str:
        """Return the folder, "" if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class OutputRoots:
    """Output roots of a cluster's workloads: `stated` is --output-root, `target()` returns the cluster's own."""

    target: Callable[[], Target]
    stated: str | None = None

    def to_read(self, status: Claim) -> str:
        """Return the folder from which a workload's output may be read, "" if it has none.

        A bucket is read with the user's own credentials, and objects of clusters on this machine are the user's own.
        On other clusters, a local folder must be the workload's own. Raises ConflictError if it is not.
        """
        claim = status.output_dir
        if not claim or in_bucket(claim):
            return claim
        target = self._asked()
        if target.on_this_machine:
            return claim
        return self._checked(claim, status.name, status.namespace, target, [target.output_root], "read")

    def to_remove(self, name: str, namespace: str, claim: str) -> str:
        """Return the folder to delete for a workload whose objects name `claim`; "" if they name none.

        A local folder is deleted if xpk keeps the cluster's output on this machine, or if it is below the user's own
        root. Raises ConflictError if `claim` is another folder.
        """
        return self._to_change(name, namespace, claim, "removed")

    def to_write(self, name: str, namespace: str, claim: str) -> str:
        """Return the folder of a workload to write into, "" if its objects name none.

        Objects of clusters on this machine are the user's own; elsewhere the rules are those of `to_remove`.
        """
        return claim if self._asked().on_this_machine else self._to_change(name, namespace, claim, "written")

    def _to_change(self, name: str, namespace: str, claim: str, verb: Literal["removed", "written"]) -> str:
        if not claim:
            return ""
        target = self._asked()
        keeps_here = target.on_this_machine or target.exclusive
        own_roots = [target.output_root] if keeps_here or in_bucket(target.output_root) else []
        return self._checked(claim, name, namespace, target, own_roots, verb)

    def _asked(self) -> Target:
        try:
            return self.target()
        except (NotFoundError, AuthorizationError):  # the cluster's settings are missing or unreadable
            return _UNKNOWN

    def _checked(
        self,
        claim: str,
        name: str,
        namespace: str,
        target: Target,
        roots: list[str],
        verb: Literal["read", "removed", "written"],
    ) -> str:
        folder = names.output_folder(name, namespace)
        is_name = names.is_folder_name(folder)
        if is_name and claim in [f"{root}/{folder}" for root in roots if root]:
            return claim
        if is_name and self.stated and claim == f"{at_root(target, self.stated).output_root}/{folder}":
            return claim
        root, _, last = claim.rpartition("/")
        raise ConflictError(
            f"the output of '{name}' is not {verb}: its objects name '{printable(claim, limit=_SHOWN)}', "
            "which is not below the output root of its cluster",
            hint=f"pass --output-root {printable(root, limit=_SHOWN)} if you trust this location"
            if is_name and last == folder
            else "check who created it: `xpk workload describe` shows its user",
        )
