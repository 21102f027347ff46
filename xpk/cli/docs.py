"""`xpk docs`: the documentation pages in the package."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import click

from xpk.cli.complete import completer
from xpk.cli.terminal.help import Command
from xpk.model.errors import NotFoundError
from xpk.render.resources import docs_dir


def _topics(_: click.Context | None = None) -> Iterable[str]:
    pages = (page.relative_to(docs_dir()).with_suffix("") for page in docs_dir().rglob("*.md"))
    return sorted(page.as_posix() for page in pages)


@click.command(cls=Command)
@click.argument("topic", required=False, shell_complete=completer(_topics))
def docs(topic: str | None) -> None:
    """List the documentation pages, or show the page TOPIC."""
    topics = list(_topics())
    if topic is None:
        width = max(map(len, topics)) + 2
        for known in topics:
            click.echo(f"{known:{width}}{_title(known)}")
        return
    name = topic.removeprefix("docs/").removesuffix(".md")
    if name not in topics:  # a page of a folder, without the folder
        name = next((page for page in topics if page.endswith(f"/{name}")), name)
    if name not in topics:
        near = difflib.get_close_matches(name, topics, 1)
        raise NotFoundError(
            f"page '{topic}' not found", hint=f"`xpk docs {near[0]}`" if near else "`xpk docs` lists the pages"
        )
    click.echo_via_pager((docs_dir() / f"{name}.md").read_text(encoding="utf-8"))


def _title(topic: str) -> str:
    lines = (docs_dir() / f"{topic}.md").read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith("# ")).lstrip("# ")
