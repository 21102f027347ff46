"""`xpk`: the root command, and the one place where the program exits."""

from __future__ import annotations

import errno
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import click

from xpk.cli.google_xpk import Group
from xpk.cli.target import preferred
from xpk.cli.terminal.output import COLORS, FORMATS, Console, colors, echo
from xpk.model.errors import UsageError, XpkError
from xpk.model.names import text_problems
from xpk.model.terminal import printable, shortened
from xpk.version import __version__

INTERRUPTED = 130
_LONGEST = 2000  # characters of a line of an error

# Module and help of each command: `xpk --help` must not import them.
COMMANDS = {
    "cluster": ("xpk.cli.cluster.commands", "Create and manage clusters."),
    "workload": ("xpk.cli.workload.commands", "Run and manage workloads."),
    "plan": ("xpk.cli.plan.commands", "Forecast goodput, and choose slices for a run."),
    "queue": ("xpk.cli.queue", "Share a cluster among teams by queues with quotas."),
    "usage": ("xpk.cli.usage", "Show who used the chips of a cluster, and what was lost."),
    "node": ("xpk.cli.node", "Quarantine nodes that evidence speaks against."),
    "storage": ("xpk.cli.storage", "Manage volumes that workloads mount by name."),
    "image": ("xpk.cli.image", "Build and push container images for workloads."),
    "info": ("xpk.cli.info", "Show a cluster's LocalQueues and ClusterQueues."),
    "inspector": ("xpk.cli.inspector", "Collect diagnostics of a cluster into one file."),
    "version": ("xpk.cli.version", "Show the versions of xpk and of a cluster."),
    "data": ("xpk.cli.data", "Prepare data sets for the bundled trainer."),
    "doctor": ("xpk.cli.doctor", "Check prerequisites on this machine and on a cluster."),
    "config": ("xpk.cli.config", "Get and set default options."),
    "accelerator": ("xpk.cli.accelerator", "Look up accelerator types."),
    "docs": ("xpk.cli.docs", "Read the documentation."),
    "serve": ("xpk.cli.serve", "Serve the live console as a page of this machine."),
    "top": ("xpk.cli.top", "Show runs and queues, updated once a second."),
    "mcp": ("xpk.cli.mcp", "Serve an agent by the Model Context Protocol."),
    "translate": ("xpk.cli.translate.commands", "Translate commands of gcluster and of Google's xpk."),
    "completion": ("xpk.cli.completion", "Print the completion script of a shell."),
}
HIDDEN = {"gcluster": "xpk.cli.translate.commands"}  # modules of commands that the help does not list


class _UnreadError(Exception):
    """The reader of the output has closed it. click would turn a BrokenPipeError into exit code 1."""


@contextmanager
def _unread() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise _UnreadError from error


class LazyGroup(Group):
    """A group that imports a command's module when the command is used."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse the arguments; may print the help."""
        with _unread():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _unread():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        module = COMMANDS[cmd_name][0] if cmd_name in COMMANDS else HIDDEN.get(cmd_name)
        if module is None:
            return None
        command: click.Command = getattr(importlib.import_module(module), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Treat `xpk help COMMAND` as `xpk COMMAND --help`."""
        if ctx.resilient_parsing and args:  # a shell completes: the callback of `xpk` does not run
            ctx.obj = Console(quiet=True)
            with suppress(XpkError):
                ctx.default_map = preferred(args[0])
        return super().resolve_command(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table above."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "XPK", "max_content_width": 100},
)
@click.option("-o", "--output", type=click.Choice(FORMATS), default="table", show_default=True, help="Output format.")
@click.option(
    "--color",
    type=click.Choice(COLORS),
    default="auto",
    show_default=True,
    help="Use colors. auto: only on a terminal, unless NO_COLOR is set or TERM is dumb.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print only data and errors.")
@click.option("-v", "--verbose", is_flag=True, help="Print tracebacks with errors.")
@click.version_option(__version__, prog_name="xpk")
@click.pass_context
def xpk(ctx: click.Context, output: str, color: str, quiet: bool, verbose: bool) -> None:
    """Run training jobs across many TPU slices, on Kubernetes or on this machine.

    \b
    First run, without a cloud account:
      xpk cluster create dev --tpu-type v5litepod-8 --num-slices 2
      xpk workload create hello --num-slices 2 --command 'echo slice $MEGASCALE_SLICE_ID'
      xpk workload logs hello -f

    `xpk cluster create --provider` selects where slices run: local (this machine), kind (Docker) or gke (Google Cloud).
    """
    ctx.color = colors(color)
    ctx.obj = Console(output=output, quiet=quiet, color=ctx.color)
    logging.getLogger("xpk").setLevel(logging.ERROR if quiet else logging.WARNING)
    ctx.default_map = preferred(ctx.invoked_subcommand)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; errors become one line and a hint on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _open_streams()
    try:
        _check_arguments(arguments)
        code = xpk.main(args=arguments, prog_name="xpk", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        _tell(f"error: {error.format_message().rstrip('.')}")
        _tell(f"  hint: `{context.command_path if context else 'xpk'} --help`")
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except (BrokenPipeError, _UnreadError):  # `xpk ... | head`
        _forget_output()
        return 0
    except XpkError as error:
        _trace(arguments)
        for problem in error.problems if isinstance(error, UsageError) else [error.message]:
            _tell(f"error: {problem}")
        if error.hint:
            _tell(f"  hint: {error.hint}")
        return error.exit_code
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            _tell(f"error: cannot use '{error.filename}': {error.strerror}")
            _tell("  hint: choose a shorter name")
            return UsageError.exit_code
        if error.errno not in (errno.ENOSPC, errno.EIO) or error.filename:
            return _report_bug(error, arguments)
        _tell(f"error: cannot write the output: {error.strerror}")
        _tell("  hint: free some space, or write the output elsewhere")
        _forget_output()
        return 1
    except Exception as error:
        return _report_bug(error, arguments)


def _open_streams() -> None:
    """Open /dev/null for standard streams that are closed (`>&-`)."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            stream = open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8")  # noqa: SIM115 (open until exit)
            setattr(sys, name, stream)


def _check_arguments(arguments: Sequence[str]) -> None:
    """Raise UsageError for arguments that are not text: neither a process nor an API server accepts them."""
    problems = [f"'{argument}' {why}" for argument in arguments for why in text_problems(argument)]
    if problems:
        raise UsageError(problems[0], problems=problems, hint="write arguments as UTF-8 text")


def run() -> NoReturn:
    """Run `xpk` and exit: the console entry point."""
    try:
        sys.exit(main())
    except BrokenPipeError:  # stderr has no reader
        _forget_output()
        sys.exit(1)


def _report_bug(error: Exception, arguments: Sequence[str]) -> int:
    """Report an internal error in one line; --verbose adds the traceback."""
    _trace(arguments)
    _tell(f"internal error: {type(error).__name__}: {error}")
    _tell("  hint: run `xpk --verbose ...` again and report the traceback")
    return 1


def _trace(arguments: Sequence[str]) -> None:
    """Print the traceback of the current error if --verbose is given."""
    if {"-v", "--verbose"} & set(arguments):
        echo(traceback.format_exc(), err=True)


def _tell(line: str) -> None:
    """Print a line of an error, shortened and with control characters escaped."""
    echo(printable(shortened(line, _LONGEST)), err=True)


def _forget_output() -> None:
    """Keep the interpreter from reporting unwritable buffered output at exit."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
            continue
        with suppress(OSError, ValueError, AttributeError):  # without a reader, or closed
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
