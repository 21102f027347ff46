"""Tools that plan a change, and `apply`, which carries out a plan that was shown and is still the same."""

from __future__ import annotations

import difflib
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_jsonable_python

from xpk.agents import changes
from xpk.agents.changes import Change
from xpk.agents.tool import Tool, canonical
from xpk.model.errors import ConflictError, NotFoundError, XpkError

_KEPT = 100  # plans
_DIGEST = 16  # characters; an agent copies them
_PLAN_AGAIN = "plan it again, and look at the plan before you apply it"


@dataclass(frozen=True, slots=True)
class _Shown:
    change: Change
    values: dict[str, Any]
    effect: Any


class PlanBook:
    """The plans that were shown since the server started, by digest: the newest 100."""

    def __init__(self) -> None:
        self._shown: OrderedDict[str, _Shown] = OrderedDict()
        self._alone = threading.Lock()

    def tools(self) -> Iterator[Tool]:
        """Yield a tool for each change, and `apply`."""
        for change in changes.CHANGES:
            more = "Changes nothing: returns the plan and its digest, with which the tool `apply` carries it out."
            yield Tool(
                f"plan_{change.name}",
                "plan",
                change.documented,
                change.place,
                self._planner(change),
                more,
                change.fields,
            )
        yield Tool("apply", "apply", self.apply, {}, lambda values: self.apply(**values))

    def _planner(self, change: Change) -> Callable[[dict[str, Any]], Any]:
        def plan(values: dict[str, Any]) -> dict[str, Any]:
            effect = _effect(change, values)
            digest = _digest(change, values, effect)
            with self._alone:
                self._shown[digest] = _Shown(change, values, effect)
                self._shown.move_to_end(digest)
                while len(self._shown) > _KEPT:
                    self._shown.popitem(last=False)
            return {"digest": digest, "plan": effect}

        return plan

    def apply(self, digest: str) -> dict[str, Any]:
        """Carry out the plan with this digest, which a tool plan_... has returned, once.

        The plan is made again first. If it would now do anything else, nothing is changed.
        """
        with self._alone:
            shown = self._shown.get(digest)
            if shown is None:
                raise NotFoundError(
                    f"no plan with the digest '{digest}' was shown, or it was applied", hint=_PLAN_AGAIN
                )
            try:
                effect = _effect(shown.change, shown.values)
            except XpkError as error:
                raise ConflictError(f"the plan no longer applies: {error.message}", hint=_PLAN_AGAIN) from error
            if effect != shown.effect:
                raise ConflictError(
                    f"the plan has changed since it was shown:\n{_difference(shown.effect, effect)}", hint=_PLAN_AGAIN
                )
            del self._shown[digest]
            notes: list[str] = []
            result = shown.change.carry_out(dict(shown.values), lambda notice: notes.append(notice.text))
        return {"applied": digest, "result": result, "notes": notes}


def _effect(change: Change, values: dict[str, Any]) -> Any:
    return to_jsonable_python(change.plan(dict(values)), fallback=str)


def _digest(change: Change, values: dict[str, Any], effect: Any) -> str:
    text = canonical([change.name, to_jsonable_python(values, fallback=str), effect])
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]


def _difference(before: Any, after: Any) -> str:
    lines = difflib.unified_diff(canonical(before).splitlines(), canonical(after).splitlines(), lineterm="", n=0)
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))
