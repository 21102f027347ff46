"""Man pages of all commands, from the same source as `--help`: `python -m tools.man_pages FOLDER` writes them.

click-man reads only the commands that a group lists in `commands`; ours are imported on first use, and their help has
sections and examples.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click

from xpk.cli.main import xpk
from xpk.version import __version__


class RoffFormatter(click.HelpFormatter):
    """Writes a help page as roff, with the macros of man(7)."""

    def __init__(self) -> None:
        super().__init__()
        self._is_described = False

    def write(self, string: str) -> None:
        """Write lines of the help page as they are, such as examples."""
        self.write_lines([line.strip() for line in string.splitlines()])

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write the synopsis."""
        self.write_heading("Synopsis")
        self._append(f".B {escaped(prog)}\n{escaped(args)}\n")

    def write_heading(self, heading: str) -> None:
        """Begin a section."""
        self._append(f".SH {escaped(heading.upper())}\n")

    def write_paragraph(self) -> None:
        """Begin a paragraph; sections do so themselves."""

    def write_text(self, text: str) -> None:
        """Write paragraphs; one that begins with `\\b` keeps its lines."""
        if not self._is_described:
            self._is_described = True
            self.write_heading("Description")
        for paragraph in text.strip().split("\n\n"):
            if paragraph.startswith("\b"):
                self.write_lines(paragraph.removeprefix("\b").strip("\n").splitlines())
            else:
                self._append(f".PP\n{escaped(' '.join(paragraph.split()))}\n")

    def write_lines(self, lines: Sequence[str]) -> None:
        """Write lines as they are, such as commands."""
        self._append("".join([".PP\n.nf\n", *(f"{escaped(line)}\n" for line in lines), ".fi\n"]))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write options or commands, each with its meaning."""
        for name, meaning in rows:
            self._append(f".TP\n.B {escaped(name)}\n{escaped(meaning)}\n")

    def _append(self, roff: str) -> None:
        self.buffer.append(roff)


def escaped(text: str) -> str:
    """Return text without meaning for roff: no escapes, no macro at the start of a line; hyphens can be copied."""
    plain = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    plain = "".join(letter if letter.isascii() else f"\\[u{ord(letter):04X}]" for letter in plain)
    return f"\\&{plain}" if plain.startswith(".") else plain


def page(command: click.Command, path: str) -> str:
    """Return the man page of a command."""
    context = click.Context(command, info_name=path, **xpk.context_settings)
    formatter = RoffFormatter()
    command.format_help(context, formatter)
    name, summary = escaped(name_of(path)), escaped(command.get_short_help_str(limit=1000))
    related = [path.rpartition(" ")[0]] if " " in path else []
    related += [f"{path} {child}" for child, _ in children(command)]
    if related:
        formatter.write_heading("See also")
        formatter.write_lines([f"{name_of(item)}(1)" for item in related])
    title = f'.TH "{name.upper()}" 1 "" "xpk {__version__}" "xpk"\n.SH NAME\n{name} \\- {summary}\n'
    return title + formatter.getvalue()


def children(command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """Yield the commands of a group, except hidden ones."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child and not child.hidden:
                yield name, child


def pages(command: click.Command = xpk, path: str = "xpk") -> Iterator[tuple[str, str]]:
    """Yield the file name and the text of each page, of a command and all below it."""
    yield f"{name_of(path)}.1", page(command, path)
    for name, child in children(command):
        yield from pages(child, f"{path} {name}")


def name_of(path: str) -> str:
    """Return the name of a command's page: `xpk-workload-create`."""
    return path.replace(" ", "-")


def main(folder: Path) -> None:
    """Write all pages to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
