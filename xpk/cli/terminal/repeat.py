"""`--watch` of commands that act: they look again at intervals, and print what is new."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from xpk.cli.terminal.output import Console
from xpk.model.errors import XpkError

T = TypeVar("T")


def repeat(
    console: Console, look: Callable[[], Sequence[T]], show: Callable[[Sequence[T]], None], *, seconds: float, what: str
) -> None:
    """Show what `look` returns, and then every `seconds` what is new in it, until Ctrl-C; `what` it looks at, in words.

    Failures of the first look are raised. Later ones are printed, and the next look tries again.
    """
    last, failure = look(), ""
    console.tell(f"looking at the {what} every {seconds:g} s, until Ctrl-C")
    show(last)
    while True:
        time.sleep(seconds)
        try:
            rows = look()
            failure = ""
        except XpkError as error:
            if error.message != failure:
                console.warn(f"{error.message}; trying again")
            failure = error.message
            continue
        show([row for row in rows if row not in last])
        last = rows
