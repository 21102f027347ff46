"""Titles of a plan's steps once they are done: "create cluster 'dev'" becomes "created cluster 'dev'"."""

from __future__ import annotations

import re

_REGULAR = (
    "accept add advertise allow call change check complete cordon create delete enable end install load record reject "
    "remove restart return save uncordon upgrade wait"
)
_PAST = {verb: f"{verb.removesuffix('e')}ed" for verb in _REGULAR.split()} | {
    "apply": "applied",
    "drain": "drained",
    "label": "labeled",
    "let": "let",
    "set": "set",
    "stop": "stopped",
}
_VERB = "|".join(_PAST)
_FIRST = re.compile(rf"(?:{_VERB})\b")
_VERBS = re.compile(rf"(?:^|(?<= and )|(?<= or ))(?:{_VERB})\b")


def past(title: str) -> str:
    """Return the title of a step that is done; other texts are returned as they are."""
    return _VERBS.sub(lambda match: _PAST[match[0]], title) if _FIRST.match(title) else title
