"""Checks of a workload's fields: types, choices and limits, as their annotations and options define them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from xpk.jobs.create import create
from xpk.jobs.create.workload import Workload
from xpk.model.errors import Problems
from xpk.model.options import default_of, option_of, rule_problems, type_problems

# Values in place of invalid ones, for fields whose default is missing or has another meaning.
_STAND_INS = {"name": "unnamed", "command": "true"}


def valid_fields(request: Workload, problems: Problems) -> Workload:
    """Return a request with valid types, choices and limits; record a problem for each field that violates them.

    Defaults replace the invalid values, so that all other fields can be checked.
    """
    changes: dict[str, Any] = {}
    for field in fields(Workload):
        wrong = type_problems(request, field)
        if not wrong and (option := option_of(field)):
            wrong = rule_problems(field.name, getattr(request, field.name), option)
        for problem in wrong:
            problems.add(problem, hint=create.HELP)
        if wrong:
            changes[field.name] = _STAND_INS.get(field.name) or default_of(field)
    return replace(request, **changes) if changes else request
