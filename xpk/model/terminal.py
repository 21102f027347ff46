"""Text from elsewhere, made safe for a terminal."""

from __future__ import annotations

import re

# A control sequence such as a colour is removed whole. Other control characters are shown: what follows them may be
# meant to be hidden. Bidi overrides, line separators, lone surrogates and tags deceive in the same way.
_UNSAFE = re.compile(
    r"\x1b\[[0-?]*+[ -/]*+[@-~]"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\U000e0000-\U000e007f]"
)


def printable(text: str, *, limit: int | None = None) -> str:
    r"""Return `text` with nothing in it that a terminal would obey, and no more than about `limit` characters of it.

    Tabs and newlines stay. Colours and cursor movements (ECMA-48 CSI) are removed; every other control character,
    bidi override and lone surrogate is shown as an escape such as `\x1b`. The result can be encoded as UTF-8, and
    printing it again changes nothing.
    """
    shown = _UNSAFE.sub(_escape, text if limit is None else text[:limit])
    if limit is None or max(len(text), len(shown)) <= limit:
        return shown
    return f"{shown[:limit]}... ({len(text)} characters)"


def _escape(match: re.Match[str]) -> str:
    found = match[0]
    return "" if len(found) > 1 else found.encode("unicode_escape").decode()
