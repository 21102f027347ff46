"""Random calls of an agent's tools: without the digest of a plan that was shown, nothing ever changes."""

from __future__ import annotations

import json
import time
from functools import cache
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from tests.agents.conftest import Agent
from tests.fuzz.conftest import CommandLine
from tests.fuzz.counts import inputs
from tests.fuzz.inputs import TEXTS, WORDS
from xpk.model.terminal import printable

if TYPE_CHECKING:
    from xpk.agents.server import Tools

SCALARS = st.sampled_from(TEXTS) | WORDS | st.integers() | st.floats() | st.booleans() | st.none()
VALUES = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(WORDS, SCALARS, max_size=3)
VALID = {
    **{"cluster": "fz", "workload": "w0", "workloads": ["w0"], "namespace": "default", "name": "w1", "command": "true"},
    **{"accelerator_type": "v4-8", "num_slices": 1, "force": True, "all": False, "fresh": True, "provider": "local"},
}


@cache
def tools() -> Tools:
    """Return all tools of an agent; their protocol takes long to import, so not before a test needs them."""
    return Agent("apply").tools


@cache
def properties() -> dict[str, dict[str, Any]]:
    """Return the arguments of each tool, by name."""
    return {tool.name: tool.input_schema["properties"] for tool in tools().listed()}


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Return a call that is valid except for a few arguments, or one of no tool at all."""
    tool = draw(st.sampled_from([*properties(), "drop"]))
    known = properties().get(tool, {})
    arguments = {name: value for name, value in VALID.items() if name in known}
    for name in draw(st.lists(st.sampled_from(sorted(known)) | WORDS if known else WORDS, max_size=3)):
        arguments[name] = draw(VALUES)
    return tool, arguments


@inputs(0.02)
@given(made=st.lists(calls(), min_size=5, max_size=5), wrong=st.text("0123456789abcdef", min_size=15, max_size=17))
def test_no_call_changes_anything_without_a_plan_that_was_shown(
    command_line: CommandLine, made: list[tuple[str, dict[str, Any]]], wrong: str
) -> None:
    before, revision = command_line.everything(), command_line.revision()
    for tool, arguments in [*made, ("apply", {"digest": wrong})]:
        began = time.process_time()
        result = tools().call(tool, arguments)
        text = result.content[0].text  # type: ignore[union-attr]
        assert time.process_time() - began < 10 and len(text) < 300_000
        answer = json.loads(text)
        if result.is_error:
            assert answer["error"] and "Traceback" not in text and printable(answer["error"]) == answer["error"]
    assert (command_line.everything(), command_line.revision()) == (before, revision)
