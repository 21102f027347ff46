"""Changes of nodes that others change, too, such as the node controller and other clients."""

from __future__ import annotations

from collections.abc import Callable

from xpk.api.base import Obj, ObjectApi
from xpk.model.errors import Modified, NotFoundError

_TRIES = 5


def change_node(api: ObjectApi, name: str, patch_of: Callable[[Obj], Obj | None]) -> bool:
    """Patch a node by its present state; return False if it was deleted, or if `patch_of` returns None.

    With the version, since a patch replaces all taints: another client may have added one meanwhile. Raises Modified
    if others change the node again and again.
    """
    for tries_left in range(_TRIES, 0, -1):
        try:
            node = api.get("Node", name)
            patch = patch_of(node)
            if patch is None:
                return False
            meta = {"resourceVersion": node["metadata"].get("resourceVersion"), **patch.get("metadata", {})}
            api.patch("Node", name, {**patch, "metadata": meta})
        except NotFoundError:
            return False
        except Modified:
            if tries_left == 1:
                raise
        else:
            return True
    return False
