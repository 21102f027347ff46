"""`xpk completion`: completion scripts for shells."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from xpk.cli.terminal.help import Command


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL, to be sourced from the shell's start-up file.

    \b
    For bash:  eval "$(xpk completion bash)"
    """
    completer = get_completion_class(shell)
    assert completer is not None  # click.Choice above names only shells that click has
    click.echo(completer(ctx.find_root().command, {}, "xpk", "_XPK_COMPLETE").source())
