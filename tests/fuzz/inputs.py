"""Commands, and hostile values for their options and files."""

from __future__ import annotations

from collections.abc import Iterator

import click
from hypothesis import strategies as st

from xpk.cli.main import xpk

DIGITS = "9" * 5000
LONG = "a" * 300
TEXTS = ["", " ", "\t", "a\nb", "\0", "a\0b", "a" * 64, LONG, "é", "\u202eevil", "日本語", "😀", "\ud800", "{{7*7}}",
         "{% for x in y %}", "!!python/object/apply:os.system ['id']", "*a", "&a [*a]", "$(id)", "; id #", "'\"", "--",
         "-", "-x", "-1", "0", "-0", "1e400", "nan", "-inf", "9" * 23, "2147483648", DIGITS, f"{DIGITS}s", "1.5",
         "0x10", "1_000", "١٢", "²", "true", "null", "..", "a/b", "gs://", "gs://b", "gs:///x", "gs://b/../x",
         "http://127.0.0.1:9/", "=", "=x", "A=", "a=b", "1A=x", "a b", "\x1b[31mred", "\x1b]0;title\x07", "%s%n", "0s",
         "1h", "-5m", "1w", "1,2", "256", "-1,0", "v4-8", "v4-8\n", "v5litepod-99999999999", "source=x,target=/",
         "source=gs://b/p,target=/../x", "target=/x", "source=x,target=/tmp,subpath=../..", "[", "(", "(a+)+$",
         "default", "w0", "fz", "context:x", "fifo", "device", "loop", "folder", "binary", "deep", "huge", "missing",
         "x" * 100_000]  # fmt: skip
# Without `/`: tests do not write outside their folder.
WORDS = st.text(st.characters(exclude_characters="/"), max_size=12)


def leaves(
    command: click.Command, path: tuple[str, ...], context: click.Context
) -> Iterator[tuple[str, click.Command]]:
    """Yield every command except groups, with its path."""
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    for name in command.list_commands(context):
        member = command.get_command(context, name)
        assert member is not None
        yield from leaves(member, (*path, name), click.Context(member, parent=context, info_name=name))


COMMANDS = dict(leaves(xpk, (), click.Context(xpk, info_name="xpk")))
