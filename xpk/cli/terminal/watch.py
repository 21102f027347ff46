"""`--watch`: output that is printed again at each change."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from xpk.api.base import ObjectApi
from xpk.cli.terminal.output import Command, Console, echo
from xpk.jobs.outage import SIGNS, Outage
from xpk.jobs.watch import Changes
from xpk.model.errors import UsageError
from xpk.model.terminal import printable

Rows = Sequence[Any]


def watch_option(command: Command) -> Command:
    """Add `--watch`."""
    text = "Update the output at each change, until Ctrl-C."
    return click.option("-w", "--watch", "watch_", is_flag=True, help=text)(command)


def watch(
    console: Console,
    api: ObjectApi,
    read: Callable[[], Rows],
    render: Callable[[Rows, bool], str],
    *,
    kind: str = "JobSet",
    namespace: str | None = None,
    until: Callable[[Rows], bool] = lambda rows: False,
) -> None:
    """Show the rows of `read` again whenever objects of `kind` change, until `until(rows)` is true.

    A terminal is redrawn; elsewhere only changed rows are printed. The second argument of `render` is true at the first
    output.
    """
    if console.is_data or console.output == "name":
        raise UsageError("--watch only prints tables", hint="omit -o, or use `xpk workload wait -o json`")
    screen, changes, outage = Screen(), Changes(api, kind, namespace), Outage()
    last: Rows | None = None
    while True:
        try:
            rows = read()
            outage.end()
        except SIGNS as error:
            outage.pause_or_raise(error)
            continue
        if screen.is_live:
            screen.show(render(rows, True))
        elif news := [row for row in rows if last is None or row not in last]:
            echo(render(news, last is None))
        last = rows
        if until(rows):
            return
        changes.wait()


class Screen:
    """Lines of a terminal that are rewritten."""

    def __init__(self) -> None:
        self.is_live, self._lines = sys.stdout.isatty(), 0

    def show(self, text: str) -> None:
        """Show a text in place of the previous one, cut to the size of the terminal."""
        lines = printable(text, colors=True).splitlines()
        room = shutil.get_terminal_size().lines - 1
        if len(lines) > room:
            lines = [*lines[: room - 1], f"... and {len(lines) - room + 1} more lines"]
        cursor_up = f"\x1b[{self._lines}A" if self._lines else ""
        # No line may wrap: the cursor would not return to the first line.
        shown = "".join(f"{line}\x1b[K\n" for line in lines)
        click.echo(f"{cursor_up}\r\x1b[?7l{shown}\x1b[J\x1b[?7h", nl=False)
        self._lines = len(lines)
