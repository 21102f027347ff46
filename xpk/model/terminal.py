"""Text from untrusted sources, made safe for a terminal."""

from __future__ import annotations

import re

# A control sequence such as a color is removed whole. Other control characters are shown: what follows them may be
# meant to be hidden. Bidi overrides, line separators, lone surrogates and tags deceive in the same way.
_UNSAFE = re.compile(
    r"\x1b\[[0-?]*+[ -/]*+[@-~]"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\U000e0000-\U000e007f]"
)


_COLOR = re.compile(r"\x1b\[(?:0|1|3[1-6]|9[1-6])m")  # the output of `click.style`, which cannot hide text


def printable(text: str, *, limit: int | None = None, colors: bool = False) -> str:
    r"""Return `text` without terminal control sequences, shortened to about `limit` characters.

    Tabs and newlines stay. Colors and cursor movements (ECMA-48 CSI) are removed; every other control character,
    bidi override and lone surrogate is shown as an escape such as `\\x1b`. The result can be encoded as UTF-8, and
    printing it again changes nothing. With `colors`, plain color sequences stay.
    """
    shown = _UNSAFE.sub(_escape_all_but_colors if colors else _escape, text if limit is None else text[:limit])
    if limit is None or max(len(text), len(shown)) <= limit:
        return shown
    return f"{shown[:limit]}... ({len(text)} characters)"


def shortened(text: str, limit: int) -> str:
    """Return a text of at most about `limit` characters; the middle of a longer one is left out."""
    if len(text) <= limit:
        return text
    end = limit // 3
    return f"{text[: limit - end]}... ({len(text) - limit} characters left out) ...{text[-end:]}"


def escaped_json(text: str) -> str:
    """Return an equivalent JSON text that a terminal shows unchanged."""
    return _UNSAFE.sub(_json_escape, text)


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    return "" if len(character) > 1 else character.encode("unicode_escape").decode()


def _escape_all_but_colors(match: re.Match[str]) -> str:
    return match[0] if _COLOR.fullmatch(match[0]) else _escape(match)


def _json_escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
