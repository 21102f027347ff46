"""Commands of a group."""

from __future__ import annotations

from collections.abc import Iterator

import click


def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield every command below a group."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
