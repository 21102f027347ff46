"""`xpk mcp`: clusters and workloads as tools of an agent."""

from __future__ import annotations

import click

from xpk.cli.terminal.help import Command
from xpk.model.errors import MissingToolError

_SCOPES = ("read", "plan", "apply")


@click.command(cls=Command)
@click.option("--scope", type=click.Choice(_SCOPES), default="read", show_default=True, help="What the agent may do.")
def mcp(scope: str) -> None:
    """Serve an agent by the Model Context Protocol on stdin and stdout.

    Scope read: look at clusters and workloads. plan: also plan changes, which changes nothing. apply: also carry out a
    plan that was shown, by its digest, if it is still the same. An agent's settings start the command:

    \b
      {"mcpServers": {"xpk": {"command": "xpk", "args": ["mcp", "--scope", "plan"]}}}
    """
    try:
        from xpk.agents.server import serve
    except ModuleNotFoundError as error:
        raise MissingToolError(
            f"`xpk mcp` needs the package '{error.name}'", hint="pip install 'xpk-multislice[mcp]'"
        ) from error
    serve(scope)  # type: ignore[arg-type]  # one of _SCOPES
