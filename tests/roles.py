"""An API server in memory that permits what a role of docs/permissions.md permits, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from xpk.api.base import Obj
from xpk.api.kinds import EVERY_KIND
from xpk.model.errors import NotAuthorized
from xpk.testing import FakeApi

DOCS = Path(__file__).parents[1] / "docs" / "permissions.md"
_VERBS = {"apply": ("get", "create", "patch"), "exec": ("create",)}
_RESOURCES = {"evict": ("create", "pods/eviction"), "exec": ("create", "pods/exec")}


def roles() -> dict[str, Obj]:
    """Return the roles of the documentation, by name."""
    blocks = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    documents = [role for block in blocks for role in yaml.safe_load_all(block)]
    return {role["metadata"]["name"]: role for role in documents}


def without(role: Obj, verb: str, resource: str, name: str) -> Obj:
    """Return a role without one verb of one resource, such as `jobsets.jobset.x-k8s.io`."""
    plural, _, group = resource.partition(".")
    rules: list[dict[str, Any]] = []
    for rule in role["rules"]:
        hit = plural in rule["resources"] and group in rule["apiGroups"]
        others = [item for item in rule["resources"] if not hit or item != plural]
        if others:
            rules.append({**rule, "resources": others})
        if hit and (left := [item for item in rule["verbs"] if item != verb]):
            rules.append({**rule, "resources": [plural], "verbs": left})
    return {**role, "metadata": {"name": name}, "rules": rules}


class RoleApi(FakeApi):
    """The objects, for a user with these roles in the whole cluster. Errors are those of a real server."""

    def __init__(self, objects: Sequence[Obj], permitted: Sequence[Obj]) -> None:
        super().__init__(objects)
        self.permitted = permitted

    def _note(self, verb: str, kind: str, name: str) -> None:
        super()._note(verb, kind, name)
        about = EVERY_KIND[kind]
        group = about.api_version.rpartition("/")[0]
        name, _, part = name.partition("/")
        plural = f"{about.plural}/{part}" if part else about.plural
        for needed in _VERBS.get(verb, (verb,)):
            needed, plural = _RESOURCES.get(verb, (needed, plural))
            rules = [rule for role in self.permitted for rule in role["rules"]]
            if not any(_permits(rule, needed, plural, group, name) for rule in rules):
                resource = ".".join(filter(None, (plural, group)))
                raise NotAuthorized(
                    f"permission denied: user 'ann' cannot {needed} {resource} in the whole cluster",
                    hint="`xpk docs permissions`",
                    resource=resource,
                )


def _permits(rule: Obj, verb: str, plural: str, group: str, name: str) -> bool:
    named = rule.get("resourceNames")
    is_object = named is None or name in named
    return group in rule["apiGroups"] and plural in rule["resources"] and verb in rule["verbs"] and is_object
