"""The Python API of `xpk translate`, which checks translations against the commands of this xpk."""

from __future__ import annotations

from xpk.cli.translate.command_lines import translate_text
from xpk.cli.translate.flags import Translation


def translate(text: str) -> list[Translation]:
    """Translate command lines of gcluster and of Google's xpk, one a line, as in a shell. Nothing is run.

    Raises UsageError, with all problems, for a line that does not begin with the name of such a tool.
    """
    from xpk.cli.main import xpk

    return translate_text(text, xpk)
