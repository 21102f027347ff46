"""A tool of the MCP server: its name, scope, arguments and description, and the JSON of its answers."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from xpk.agents import arguments
from xpk.model.terminal import printable, shortened

Scope = Literal["read", "plan", "apply"]
SCOPES: tuple[Scope, ...] = ("read", "plan", "apply")  # each includes those before it

_CLAUSE = re.compile(r"(?<=[.;]) ")
_ITEMS, _TEXT = 100, 4000  # longest list and text of an answer


@dataclass(frozen=True)
class Tool:
    """A function that an agent may call.

    `documented`: the function of the Python API whose arguments and docstring it has. `place`: arguments before those.
    `run`: called with all of them. `more`: a sentence after the description.
    """

    name: str
    scope: Scope
    documented: Callable[..., Any]
    place: arguments.Fields
    run: Callable[[dict[str, Any]], Any]
    more: str = ""
    fields: arguments.Fields | None = field(default=None)  # instead of those of the documented function

    @cached_property
    def model(self) -> type[BaseModel]:
        """The model of its arguments."""
        own = arguments.of_function(self.documented) if self.fields is None else self.fields
        return arguments.model(self.name, {**self.place, **own})

    @cached_property
    def description(self) -> str:
        """The docstring, without exceptions, which an agent gets as errors, and without hidden parameters."""
        text = (inspect.getdoc(self.documented) or "").partition("Raises")[0]
        clauses = _CLAUSE.split(" ".join(text.split()))
        shown = " ".join(clause for clause in clauses if clause and not arguments.NAMES_HIDDEN.search(clause))
        return " ".join([f"{shown.rstrip(';.')}.", self.more]).strip()

    def call(self, values: Mapping[str, Any]) -> Any:
        """Check the arguments, run the tool and return its answer as JSON data. Raises XpkError."""
        return bounded(to_jsonable_python(self.run(arguments.checked(self.model, values)), fallback=str))


def bounded(value: Any) -> Any:
    """Return JSON data with lists and texts cut to a length that an agent can read, and without control characters."""
    if isinstance(value, dict):
        return {str(key): bounded(item) for key, item in value.items()}
    if isinstance(value, list):
        left_out = [f"... {len(value) - _ITEMS} more"] if len(value) > _ITEMS else []
        return [bounded(item) for item in value[:_ITEMS]] + left_out
    return shortened(printable(value), _TEXT) if isinstance(value, str) else value


def canonical(value: Any) -> str:
    """Return JSON data as text that is equal for equal data."""
    return json.dumps(value, sort_keys=True, indent=1)
