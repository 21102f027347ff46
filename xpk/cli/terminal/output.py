"""Output: data on stdout in the requested format, everything else on stderr."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from xpk.cli.terminal.tables import Column, sort_rows, table
from xpk.model.terminal import escaped_json, printable

FORMATS = ("table", "wide", "json", "yaml", "name")
COLORS = ("auto", "always", "never")

Row = Mapping[str, Any]
Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Console:
    """Output settings: format, quiet mode, colors. `headers` and `sort_by` apply to lists.

    `color`: None if it depends on stdout being a terminal.
    """

    output: str = "table"
    quiet: bool = False
    color: bool | None = None
    headers: bool = True
    sort_by: Column | None = None

    def choosing(self, output: str | None, *, headers: bool = True, sort_by: Column | None = None) -> Console:
        """Return this console with the options of a subcommand."""
        return replace(self, output=output or self.output, headers=headers, sort_by=sort_by)

    @property
    def prints_color(self) -> bool:
        """True if data on stdout is printed in colors."""
        return sys.stdout.isatty() if self.color is None else self.color

    def tell(self, text: str) -> None:
        """Print a message on stderr, unless quiet."""
        if not self.quiet:
            echo(text, err=True, color=self.color)

    def warn(self, text: str) -> None:
        """Print a warning on stderr, unless quiet."""
        self.tell(f"warning: {text}")

    def done(self, text: str) -> None:
        """Print a completed action on stderr, unless quiet."""
        self.tell(f" {click.style('✓', fg='green')} {text}")

    @property
    def width(self) -> int | None:
        """Width of the terminal in columns; None if stdout is not a terminal."""
        return shutil.get_terminal_size().columns if sys.stdout.isatty() else None

    def table(self, objects: Sequence[Any], columns: Sequence[Column]) -> str:
        """Return a table that fits the terminal."""
        return table(objects, columns, width=self.width, headers=self.headers, whole=self.output == "wide")

    def items(
        self,
        objects: Iterable[Any],
        *,
        columns: Sequence[Column],
        wide: Sequence[Column] = (),
        data: Callable[[Any], Row],
    ) -> None:
        """Print a list: a table of `columns` (and `wide`), or each item's `data`."""
        rows = sort_rows(objects, self.sort_by)
        if self.output in ("json", "yaml"):
            self.data([data(item) for item in rows])
        elif self.output == "name":
            for item in rows:
                echo(data(item)["name"])
        else:
            echo(self._lines(rows, columns, wide), nl=bool(rows))

    def rows(self, objects: Iterable[Any], *, columns: Sequence[Column], wide: Sequence[Column] = ()) -> str:
        """Return the table that `items` prints."""
        return self._lines(sort_rows(objects, self.sort_by), columns, wide)

    def _lines(self, rows: Sequence[Any], columns: Sequence[Column], wide: Sequence[Column]) -> str:
        return self.table(rows, [*columns, *(wide if self.output == "wide" else ())])

    def data(self, value: Any) -> None:
        """Print data as JSON or YAML."""
        if self.output == "yaml":
            import yaml

            text = _json(value)
            plain = escaped_json(text) == text
            click.echo(yaml.safe_dump(json.loads(text), sort_keys=False, allow_unicode=plain), nl=False)
        else:
            click.echo(escaped_json(_json(value)))

    def objects(self, objects: Sequence[dict[str, Any]]) -> None:
        """Print Kubernetes objects as kubectl accepts them: YAML documents, or a List as JSON; or their names."""
        if self.output == "json":
            self.data({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        elif self.output == "name":
            for obj in objects:
                echo(f"{obj['kind'].lower()}/{obj['metadata']['name']}")
        else:
            from xpk.render import to_yaml

            click.echo(to_yaml(list(objects)), nl=False)

    @property
    def is_data(self) -> bool:
        """True if the output is read by a program."""
        return self.output in ("json", "yaml")


def echo(text: str = "", *, err: bool = False, nl: bool = True, color: bool | None = None) -> None:
    """Print text for people: our own colors are kept, other control characters are escaped."""
    click.echo(printable(text, colors=True), err=err, nl=nl, color=color)


def age(time: str | None) -> str:
    """Return the age of an RFC 3339 time in one unit: `42s`, `17m`, `5h`, `3d`; `-` for anything else."""
    try:
        since = datetime.fromisoformat(time or "")
    except ValueError:
        return "-"
    seconds = max(0.0, datetime.now(UTC).timestamp() - since.timestamp())
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"


def duration(seconds: float) -> str:
    """Return a time in its two largest units: `42s`, `3m10s`, `2h05m`, `3d04h`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    for large, small, size, unit in (("d", "h", 86400, 3600), ("h", "m", 3600, 60)):
        if whole >= size:
            return f"{whole // size}{large}{whole % size // unit:02d}{small}"
    return f"{whole // 60}m{whole % 60:02d}s"


def list_options(columns: Sequence[Column]) -> Callable[[Command], Command]:
    """Add the options of a list that can be sorted by these columns."""
    of_title = {column.title.lower().replace(" ", "-"): column for column in columns}
    text = f"Sort by a column, such as {'age' if 'age' in of_title else next(iter(of_title))}."

    def column_of(_ctx: click.Context, _param: click.Parameter, title: str | None) -> Column | None:
        return of_title[title] if title else None

    def decorate(command: Command) -> Command:
        titles = click.Choice(list(of_title), case_sensitive=False)
        command = click.option("--no-headers", is_flag=True, help="Omit the column headers.")(command)
        return click.option("--sort-by", type=titles, metavar="COLUMN", callback=column_of, help=text)(command)

    return decorate


def colors(choice: str) -> bool | None:
    """Return True for always, False for never, None if a terminal decides: then NO_COLOR and TERM are respected."""
    if choice == "auto":
        return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None
    return choice == "always"


def interactive() -> bool:
    """Return True if a person can answer prompts."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=list)
