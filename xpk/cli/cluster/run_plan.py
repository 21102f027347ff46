"""What the commands share that carry out plans."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from typing import Any

import click

from xpk.capacity.plan.plan import Plan
from xpk.capacity.provider import Provider, load_provider, provider_of
from xpk.cli.cluster.gke_options import chosen_provider
from xpk.cli.options import Command
from xpk.cli.target import preferred_place
from xpk.cli.terminal.output import FORMATS, Console, echo, interactive
from xpk.model.errors import AuthorizationError, UsageError

GCLOUD = "gcloud"  # an output format of commands that plan
_TELL_SECONDS = 30.0  # between two lines about what goes on, where there is no terminal

dry_run_option = click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")


def manifest_options(command: Command) -> Command:
    """Take where the controllers' manifests come from."""
    for name in ("Kueue", "JobSet"):
        flag = f"--{name.lower()}-manifest"
        text = f"{name}'s manifest: PATH or https URL, with #sha256=HEX if it is not the release's."
        command = click.option(flag, metavar="SOURCE", help=text)(command)
    return command


def plan_output_option(command: Command) -> Command:
    """Take `-o` after a command that plans; `gcloud` prints the plan as commands."""
    formats = click.Choice((*FORMATS, GCLOUD))
    return click.option("-o", "--output", type=formats, help="How to print the plan.")(command)


def given_flags(flags: dict[str, Any]) -> dict[str, str]:
    """Return the flags that were given, by their names, as text."""
    return {
        f"--{name.replace('_', '-')}": os.pathsep.join(value) if isinstance(value, tuple) else str(value)
        for name, value in flags.items()
        if value not in (None, False, ())
    }


def provider_with(cluster: str, provider: str | None, flags: dict[str, Any]) -> Provider:
    """Return the provider that has a cluster; flags of one provider are for that one."""
    given = given_flags(flags)
    if "--project" not in given and provider in (None, "gke"):
        given = preferred_place(cluster) | given
    if not given:
        return provider_of(cluster, provider)
    kind = chosen_provider(provider, given)
    return load_provider(kind if kind == "gke" else provider_of(cluster, provider).name, given)


def ask(question: str) -> None:
    """Continue only if a person says so. Raises UsageError where nobody can be asked."""
    if not interactive():
        raise UsageError(f"confirmation required: {question}", hint="confirm with --yes")
    click.confirm(question, abort=True, err=True)


def carry_out(console: Console, plan: Plan, *, dry_run: bool, then: str = "") -> None:
    """Show a plan, or carry it out; a program that reads along gets the plan once it is done."""
    if console.output == GCLOUD and not dry_run:
        raise UsageError("-o gcloud only prints the plan", hint="say so with --dry-run")
    if dry_run:
        _show(console, plan)
        for problem in plan.lacking:
            console.warn(f"without --dry-run this is refused: {problem}")
        if plan.refusal and not (plan.facts.get("guess") and isinstance(plan.refusal, AuthorizationError)):
            raise plan.refusal  # that nobody may look is none: the plan is what can be said without
        return
    console.tell(plan.summary)
    for note in plan.notes:
        console.tell(f"  {note}")
    live = Live(console)
    try:
        plan.carry_out(live.done, live.show, live.warn)
    except KeyboardInterrupt:
        console.tell("  next: the same command again; what is done already is not done twice")
        raise
    if console.is_data:
        _show(console, plan)
    console.tell(
        "nothing to do: everything is as requested" if not plan.steps else f"  next: {then}" if then else "done"
    )


def _show(console: Console, plan: Plan) -> None:
    """Print a plan: data for programs, commands, or a list whose numbers say which steps go on at once."""
    if console.is_data:
        console.data({"summary": plan.summary, "steps": [step.title for step in plan.steps], **plan.facts})
        return
    if console.output == GCLOUD:
        if plan.steps and not any(step.commands for step in plan.steps):
            raise UsageError("-o gcloud is for clusters of the gke provider", hint="-o json, or no -o")
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
    """Return a line after what stands before it, in several lines where a terminal is too narrow."""
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
    """Shows what goes on: one line that is overwritten on a terminal, else a line now and then."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock, self._last, self._shown = console, clock, clock(), 0
        self._tty = sys.stderr.isatty() and not console.quiet

    def done(self, text: str) -> None:
        """Say that a step is done."""
        self._clear()
        self._console.done(text)

    def warn(self, text: str) -> None:
        """Say what did not work and is put up with."""
        self._clear()
        self._console.tell(f"warning: {text}")

    def show(self, states: Mapping[str, str]) -> None:
        """Say how far the steps are that go on."""
        if not states or self._clock() - self._last < (1.0 if self._tty else _TELL_SECONDS):
            return
        self._last = self._clock()
        first = [f"{what.partition(':')[0]} ({state})" for what, state in list(states.items())[:3]]
        line = f"   {len(states)} go on: {', '.join(first)}{', ...' if len(states) > 3 else ''}"
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
