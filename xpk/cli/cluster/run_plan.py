"""Options and execution of plans, shared by the commands that change clusters, queues and storages."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from typing import Any

import click

from xpk.capacity.plan.plan import Plan
from xpk.capacity.provider import Provider, load_provider, provider_of
from xpk.cli.cluster.provider_options import chosen_provider, given_flags, located, valid_options
from xpk.cli.options import Command
from xpk.cli.target import preferred_place
from xpk.cli.terminal.output import FORMATS, Console, echo, interactive
from xpk.model.errors import AuthorizationError, UsageError

GCLOUD = "gcloud"  # an output format of commands that plan
_TELL_SECONDS = 30.0  # between two progress lines without a terminal

dry_run_option = click.option("--dry-run", is_flag=True, help="Show the plan without changing anything.")


def plan_output_option(command: Command) -> Command:
    """Add `-o` of a command that plans; `gcloud` prints the plan as commands."""
    formats, text = (
        click.Choice((*FORMATS, GCLOUD)),
        "Output format of the plan; gcloud prints commands. [default: table]",
    )
    return click.option("-o", "--output", type=formats, help=text)(command)


def provider_with(cluster: str, provider: str | None, flags: dict[str, Any]) -> Provider:
    """Return the provider of a cluster, configured by the flags."""
    flag_names = given_flags(flags)
    if "--project" not in flag_names and provider in (None, "gke"):
        flag_names = [*flag_names, *preferred_place(cluster)]
    is_on_gke = bool(flag_names) and chosen_provider(provider, flag_names) == "gke"
    kind = "gke" if is_on_gke else provider_of(cluster, provider).name
    return load_provider(kind, located(valid_options(kind, flags), flags, cluster))


def ask(question: str) -> None:
    """Prompt for confirmation; abort unless it is given. Raises UsageError without a terminal."""
    if not interactive():
        raise UsageError(f"confirmation required: {question}", hint="pass --yes to confirm")
    click.confirm(question, abort=True, err=True)


def carry_out(console: Console, plan: Plan, *, dry_run: bool, then: str = "") -> None:
    """Show a plan, or carry it out; data on stdout follows once it is done."""
    if console.output == GCLOUD and not dry_run:
        raise UsageError("-o gcloud requires --dry-run", hint="add --dry-run")
    if dry_run:
        _show(console, plan)
        for problem in plan.lacking:
            console.warn(f"without --dry-run, this command would fail: {problem}")
        if plan.refusal and not (plan.facts.get("guess") and isinstance(plan.refusal, AuthorizationError)):
            raise plan.refusal  # except for missing credentials: the plan is a guess without them
        return
    console.tell(plan.summary)
    for note in plan.notes:
        console.tell(f"  {note}")
    live = Live(console)
    try:
        plan.carry_out(live.done, live.show, live.warn)
    except KeyboardInterrupt:
        console.tell("  hint: run the same command again to continue; completed steps are not repeated")
        raise
    if console.is_data:
        _show(console, plan)
    console.tell("nothing to do; already up to date" if not plan.steps else f"  next: {then}" if then else "done")


def _show(console: Console, plan: Plan) -> None:
    """Print a plan: data for programs, commands, or a list in which concurrent steps have the same number."""
    if console.is_data:
        console.data({"summary": plan.summary, "steps": [step.title for step in plan.steps], **plan.facts})
        return
    if console.output == GCLOUD:
        if plan.steps and not any(step.commands for step in plan.steps):
            raise UsageError("-o gcloud requires a cluster of the gke provider", hint="use -o json, or omit -o")
        for note in (plan.summary, *plan.notes):
            echo(f"# {note}")
        for command in (line for step in plan.steps for line in step.commands):
            echo(command)
        return
    echo(_fitted(plan.summary, ""))
    for note in plan.notes:
        echo(_fitted(note, "  "))
    for number, step in zip(plan.stages(), plan.steps, strict=True):
        echo(_fitted(step.title, f"  {number}. "))
    if not plan.steps:
        echo("  nothing to do")


def _fitted(text: str, before: str) -> str:
    """Return a line with the prefix `before`, wrapped on a narrow terminal."""
    if not sys.stdout.isatty():
        return f"{before}{text}"
    return textwrap.fill(
        text,
        shutil.get_terminal_size().columns,
        initial_indent=before,
        subsequent_indent=" " * (len(before) + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )


class Live:
    """Progress of a plan: one line that is overwritten on a terminal, elsewhere a line at intervals."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock, self._last, self._shown = console, clock, clock(), 0
        self._tty = sys.stderr.isatty() and not console.quiet

    def done(self, text: str) -> None:
        """Print a completed step."""
        self._clear()
        self._console.done(text)

    def warn(self, text: str) -> None:
        """Print a failure that is ignored."""
        self._clear()
        self._console.tell(f"warning: {text}")

    def show(self, states: Mapping[str, str]) -> None:
        """Print the progress of the running steps."""
        if not states or self._clock() - self._last < (1.0 if self._tty else _TELL_SECONDS):
            return
        self._last = self._clock()
        first = [f"{what.partition(':')[0]} ({state})" for what, state in list(states.items())[:3]]
        line = f"   {len(states)} running: {', '.join(first)}{', ...' if len(states) > 3 else ''}"
        if not self._tty:
            self._console.tell(line)
            return
        self._clear()
        width = shutil.get_terminal_size().columns - 1
        echo(line[:width], err=True, nl=False)
        self._shown = min(len(line), width)

    def _clear(self) -> None:
        if self._shown:
            click.echo(f"\r{' ' * self._shown}\r", err=True, nl=False)
            self._shown = 0
